# SPDX-License-Identifier: Apache-2.0
"""What Anthropic rejects: requests of the wrong shape, blocks that don't fit each other, thinking that is not its own.

What must stay true: a check reads the request as it came over the wire and never changes it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from typing import Any

from andon.testing.providers.anthropic.blocks import check_block
from andon.testing.providers.anthropic.errors import Rejected, missing, unknown, wrong_type
from andon.testing.providers.anthropic.memory import Memory, Prefix, asked, digest_of
from andon.testing.providers.anthropic.schemas import check_output
from andon.testing.providers.api import Json
from andon.testing.providers.server import Request

BINDING_BETA = "thinking-binding-controls-2026-08-01"

_PARAMETERS = """
cache_control container diagnostics inference_geo max_tokens messages metadata model output_config service_tier speed
stop_sequences stream system temperature thinking tool_choice tools top_k top_p
"""
PARAMETERS = frozenset(_PARAMETERS.split())
_TOOL_PARAMETERS = """
allowed_callers cache_control defer_loading description eager_input_streaming input_examples input_schema name strict
type
"""
_TOOL_KEYS = frozenset(_TOOL_PARAMETERS.split())
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_NEWEST = re.compile(r"claude-(?:opus-4-(?:[7-9]|\d{2})|(?:opus|sonnet|haiku|fable|mythos)-[5-9])")
"""The models that take no sampling parameters, no budget for thinking, and no beginning of their answer."""
_BINDING = re.compile(r"claude-(?:(?:fable|mythos)-5-[1-9]|(?:opus|sonnet|haiku)-5-[5-9])")
"""The models whose thinking is bound to what precedes it."""


# -- before the body --------------------------------------------------------------------------------------------------


def parse(request: Request, api_key: str) -> Json:
    authorize(request, api_key)
    if "anthropic-version" not in request.headers:
        raise Rejected("anthropic-version: header is required")
    try:
        body = json.loads(request.body)
    except ValueError:
        raise Rejected("The request body is not valid JSON") from None
    if not isinstance(body, dict):
        raise Rejected("The request body must be an object")
    thinking = body.get("thinking")
    betas = [each.strip() for each in request.headers.get("anthropic-beta", "").split(",")]
    if isinstance(thinking, dict) and "block_binding" in thinking and BINDING_BETA not in betas:
        raise unknown(f"thinking.{thinking.get('type')}.block_binding")
    return body


def authorize(request: Request, api_key: str) -> None:
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        key = request.headers.get("x-api-key", "")
    if not key.strip():
        raise Rejected("x-api-key header is required", status=401)
    if key.strip() != api_key:
        raise Rejected("invalid x-api-key", status=401)


# -- the request ------------------------------------------------------------------------------------------------------


def check(body: Json, extra: Collection[str], memory: Memory, limit: int | None) -> None:
    """Raises `Rejected` for the first thing that Anthropic would object to."""
    for name in body:
        if name not in PARAMETERS and name not in extra:
            raise unknown(name)
    if not isinstance(body.get("model"), str) or not body["model"]:
        raise missing("model")
    _max_tokens(body, limit)
    _sampling(body)
    _thinking(body)
    _options(body)
    _tools(body)
    _output(body)
    messages = _messages(body)
    paused = _ends(body, memory)
    _pairs(messages, paused=paused)
    _signed(body, memory)
    _refused(body, memory)


def _max_tokens(body: Json, limit: int | None) -> None:
    if "max_tokens" not in body:
        raise missing("max_tokens")
    given = body["max_tokens"]
    if not isinstance(given, int) or isinstance(given, bool):
        raise wrong_type("max_tokens", "integer")
    if given < 1:
        raise Rejected("max_tokens: Input should be greater than or equal to 1")
    if limit is not None and given > limit:
        raise Rejected(
            f"max_tokens: {given} > {limit}, which is the maximum allowed number of output tokens for {body['model']}"
        )


def _sampling(body: Json) -> None:
    for name in ("temperature", "top_p", "top_k"):
        if name not in body:
            continue
        if is_newest(body):
            raise Rejected(f"`{name}` is not supported by this model")
        if not isinstance(body[name], int | float):
            raise wrong_type(name, "number")
    if "temperature" in body and not 0 <= body["temperature"] <= 1:
        raise Rejected("temperature: Input should be less than or equal to 1")


def _thinking(body: Json) -> None:
    thinking = body.get("thinking")
    if thinking is None:
        return
    kinds = {
        "adaptive": {"display", "block_binding"},
        "enabled": {"display", "block_binding", "budget_tokens"},
        "disabled": set[str](),
        "between_tools": set[str](),
    }
    if not isinstance(thinking, dict) or thinking.get("type") not in kinds:
        raise Rejected("thinking: Input tag does not match any of the expected tags: 'adaptive', 'disabled', 'enabled'")
    kind = thinking["type"]
    for name in thinking.keys() - {"type"} - kinds[kind]:
        raise unknown(f"thinking.{kind}.{name}")
    if thinking.get("display") not in (None, "summarized", "omitted"):
        raise Rejected(f"thinking.{kind}.display: Input should be 'summarized' or 'omitted'")
    if kind == "enabled":
        budget = thinking.get("budget_tokens")
        if is_newest(body):
            raise Rejected('"thinking.type.enabled" is not supported for this model. Use "thinking.type.adaptive"')
        if not isinstance(budget, int) or budget < 1024:
            raise Rejected("thinking.enabled.budget_tokens: Input should be greater than or equal to 1024")
        if budget >= body["max_tokens"]:
            raise Rejected("`max_tokens` must be greater than `thinking.budget_tokens`")
    behaviour = (thinking.get("block_binding") or {}).get("prefix_mismatch_behavior")
    if behaviour not in (None, "error", "drop_block"):
        raise Rejected("thinking.block_binding.prefix_mismatch_behavior: Input should be 'error' or 'drop_block'")


def _options(body: Json) -> None:
    system = body.get("system")
    if isinstance(system, list):
        for number, block in enumerate(system):
            check_block(block, f"system.{number}", "user")
    elif not isinstance(system, str | None):
        raise wrong_type("system", "string")
    cache = body.get("cache_control")
    if cache is not None and (cache.get("type") != "ephemeral" or cache.get("ttl") not in (None, "5m", "1h")):
        raise Rejected("cache_control: Input should be {'type': 'ephemeral'} with a ttl of '5m' or '1h'")
    if any(name != "user_id" for name in body.get("metadata") or {}):
        raise unknown(f"metadata.{next(name for name in body['metadata'] if name != 'user_id')}")
    if body.get("service_tier") not in (None, "auto", "standard_only"):
        raise Rejected("service_tier: Input should be 'auto' or 'standard_only'")
    for number, each in enumerate(body.get("stop_sequences") or []):
        if not isinstance(each, str) or not each.strip():
            raise Rejected(f"stop_sequences.{number}: each stop sequence must contain non-whitespace")


def _tools(body: Json) -> None:
    tools = body.get("tools") or []
    for number, tool in enumerate(tools):
        if not isinstance(tool, dict):
            raise wrong_type(f"tools.{number}", "dictionary")
        if tool.get("type") not in (None, "custom"):
            continue  # one of the provider's own
        _tool(tool, f"tools.{number}")
    names = [tool.get("name") for tool in tools]
    if len(set(names)) < len(names):
        raise Rejected("tools: Tool names must be unique.")
    choice = body.get("tool_choice")
    if choice is None:
        return
    if not tools:
        raise Rejected("tool_choice: may only be specified while providing `tools`")
    if not isinstance(choice, dict) or choice.get("type") not in ("auto", "any", "tool", "none"):
        raise Rejected("tool_choice: Input tag does not match any of the expected tags: 'auto', 'any', 'tool', 'none'")
    if choice["type"] == "tool" and choice.get("name") not in names:
        raise Rejected(f"Tool '{choice.get('name')}' not found in provided tools")


def _tool(tool: Json, where: str) -> None:
    for name in tool.keys() - _TOOL_KEYS:
        raise unknown(f"{where}.custom.{name}")
    if not isinstance(tool.get("name"), str):
        raise missing(f"{where}.custom.name")
    if not _TOOL_NAME.fullmatch(tool["name"]):
        raise Rejected(f"{where}.custom.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'")
    if not isinstance(schema := tool.get("input_schema"), dict):
        raise missing(f"{where}.custom.input_schema")
    if schema.get("type") != "object":
        raise Rejected(f"{where}.custom.input_schema.type: Input should be 'object'")


def _output(body: Json) -> None:
    config = body.get("output_config")
    if config is None:
        return
    for name in config.keys() - {"effort", "format"}:
        raise unknown(f"output_config.{name}")
    if config.get("effort") not in (None, "low", "medium", "high", "xhigh", "max"):
        raise Rejected("output_config.effort: Input should be 'low', 'medium', 'high', 'xhigh' or 'max'")
    if config.get("format") is not None:
        check_output(config["format"])


# -- messages ---------------------------------------------------------------------------------------------------------


def _messages(body: Json) -> list[Json]:
    """The messages, each with a list of blocks. Neighbours of one role are one message, as the provider sees them."""
    given = body.get("messages")
    if given is None:
        raise missing("messages")
    if not isinstance(given, list):
        raise wrong_type("messages", "list")
    if not given:
        raise Rejected("messages: at least one message is required")
    seen: list[Json] = []
    for number, message in enumerate(given):
        content = _message(message, f"messages.{number}")
        if seen and seen[-1]["role"] == message["role"]:
            seen[-1]["content"] += content
        else:
            seen.append({"role": message["role"], "content": list(content)})
    if seen[0]["role"] != "user":
        raise Rejected('messages: first message must use the "user" role')
    return seen


def _message(message: Any, where: str) -> list[Json]:
    if not isinstance(message, dict):
        raise wrong_type(where, "dictionary")
    for name in message.keys() - {"role", "content"}:
        raise unknown(f"{where}.{name}")
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant"):
        raise Rejected(
            f'messages: Unexpected role "{role}". Allowed roles are "user" or "assistant"; the Messages API accepts '
            "a top-level `system` parameter"
        )
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise wrong_type(f"{where}.content", "list")
    if not content:
        raise Rejected(f"{where}: all messages must have non-empty content")
    for number, block in enumerate(content):
        check_block(block, f"{where}.content.{number}", role)
    return content


def _ends(body: Json, memory: Memory) -> bool:
    """Whether the last message is an answer that was paused. No other answer may be the last message."""
    messages, goes_on = asked(body)
    if not goes_on:
        return False
    if digest_of(body, messages) in memory.paused:
        return True
    if is_newest(body):
        raise Rejected(
            "This model does not support assistant message prefill. The conversation must end with a user message."
        )
    return False


def _pairs(messages: Sequence[Json], *, paused: bool) -> None:
    """Each call is answered in the next message, whose first blocks are all the results, and nothing else is there."""
    used: set[str] = set()
    called: list[str] = []
    for number, message in enumerate(messages):
        kinds = [block["type"] for block in message["content"]]
        if message["role"] == "user":
            _results(message["content"], called, f"messages.{number}")
            called = []
            continue
        called = [block["id"] for block in message["content"] if block["type"] == "tool_use"]
        if len(set(called)) < len(called) or used & set(called):
            raise Rejected("messages: `tool_use` ids must be unique")
        used |= set(called)
        if called and "text" in kinds[kinds.index("tool_use") :]:
            raise Rejected(f"messages.{number}: text may not follow `tool_use` blocks")
        if called and number + 1 == len(messages):
            raise _unanswered(f"messages.{number}", called)
        if not (paused and number + 1 == len(messages)):
            _server_pairs(message["content"], f"messages.{number}")


def _results(content: Sequence[Json], called: Sequence[str], where: str) -> None:
    first = 0
    while first < len(content) and content[first]["type"] == "tool_result":
        first += 1
    results = [block["tool_use_id"] for block in content if block["type"] == "tool_result"]
    for number, block in enumerate(content):
        if block["type"] == "tool_result" and block["tool_use_id"] not in called:
            raise Rejected(
                f"{where}.content.{number}: unexpected `tool_use_id` found in `tool_result` blocks: "
                f"{block['tool_use_id']}. Each `tool_result` block must have a corresponding `tool_use` block in the "
                "previous message."
            )
    for each in results:
        if results.count(each) > 1:
            raise Rejected(f"{where}: each tool_use must have a single result. Found multiple with id: {each}")
    at_once = results[:first]
    if lacking := [each for each in called if each not in at_once]:
        raise _unanswered(where, lacking)


def _unanswered(where: str, lacking: Sequence[str]) -> Rejected:
    return Rejected(
        f"{where}: `tool_use` ids were found without `tool_result` blocks immediately after: {', '.join(lacking)}. "
        "Each `tool_use` block must have a corresponding `tool_result` block in the next message."
    )


def _server_pairs(content: Sequence[Json], where: str) -> None:
    ended = {block.get("tool_use_id") for block in content if block["type"].endswith("_tool_result")}
    for block in content:
        if block["type"] == "server_tool_use" and block["id"] not in ended:
            raise Rejected(
                f"{where}: `{block['name']}` tool use with id `{block['id']}` was found without a corresponding "
                f"`{block['name']}_tool_result` block"
            )


# -- what was said before ---------------------------------------------------------------------------------------------


def _signed(body: Json, memory: Memory) -> None:
    """Thinking is as it was issued; with newer models also in the same place of the same conversation."""
    binding = (body.get("thinking") or {}).get("block_binding") or {}
    is_bound = binds(body["model"]) and binding.get("prefix_mismatch_behavior") != "drop_block"
    prefix = Prefix(body)
    for number, message in enumerate(body["messages"]):
        content = message["content"]
        for place, block in enumerate([{"type": "text", "text": content}] if isinstance(content, str) else content):
            where, kind = f"messages.{number}.content.{place}", block["type"]
            if kind == "thinking":
                issued = memory.thinking.get(block["signature"], set())
                fits = {digest for text, digest in issued if text == block["thinking"]}
                _check_signed(where, "signature", kind, fits, prefix.digest if is_bound else None)
            elif kind == "redacted_thinking":
                fits = memory.redacted.get(block["data"], set())
                _check_signed(where, "data", kind, fits, prefix.digest if is_bound else None)
            prefix.add(message["role"], block)


def _check_signed(where: str, field: str, kind: str, fits: set[str], digest: str | None) -> None:
    if not fits:
        raise Rejected(f"{where}: Invalid `{field}` in `{kind}` block")
    if digest is not None and digest not in fits:
        raise Rejected(
            f"{where}: Invalid `{field}` in `{kind}` block. The block is bound to a different conversation. Remove the "
            'block, or set `thinking.block_binding.prefix_mismatch_behavior` to "drop_block".'
        )


def _refused(body: Json, memory: Memory) -> None:
    """The real one refuses again. Here it is an error, because no client wants that."""
    messages = body["messages"]
    prefix = Prefix(body)
    for number, message in enumerate(messages):
        prefix.add_messages([message])
        if number + 1 < len(messages) and prefix.digest in memory.refused:
            raise Rejected(f"messages.{number}: this turn was refused; remove it, or it is refused again")


def is_newest(body: Json) -> bool:
    return _NEWEST.match(body["model"]) is not None


def binds(model: str) -> bool:
    return _BINDING.match(model) is not None

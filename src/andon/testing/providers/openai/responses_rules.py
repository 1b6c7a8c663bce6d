# SPDX-License-Identifier: Apache-2.0
"""What Responses rejects: requests of the wrong shape, and items that don't fit each other or what it remembers.

What must stay true: calls and outputs come in pairs. A reasoning item and what it led to stay together. An id is known
only if this fake issued it in an answer that has ended.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from andon.testing.providers.api import Json
from andon.testing.providers.openai import rules
from andon.testing.providers.openai.memory import Memory
from andon.testing.providers.openai.rules import Rejected

ID_LENGTH = 64

_PARAMETERS = """
access_programs background context_management conversation image include input instructions max_output_tokens
max_tool_calls metadata model moderation parallel_tool_calls previous_response_id prompt prompt_cache_key
prompt_cache_options prompt_cache_retention reasoning safety_identifier service_tier store stream stream_options
temperature text tool_choice tools top_logprobs top_p truncation user
"""
PARAMETERS = frozenset(_PARAMETERS.split())
_INCLUDE = (
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
    "reasoning.encrypted_content",
    "message.output_text.logprobs",
)
_KEYS: dict[str, frozenset[str]] = {
    "message": frozenset({"type", "role", "content", "id", "status", "phase"}),
    "function_call": frozenset({"type", "id", "call_id", "name", "arguments", "status", "caller", "namespace"}),
    "function_call_output": frozenset({"type", "id", "call_id", "output", "status", "caller", "name", "namespace"}),
    "reasoning": frozenset({"type", "id", "summary", "content", "encrypted_content", "status"}),
    "item_reference": frozenset({"type", "id"}),
}
_PREFIX = {"message": "msg", "function_call": "fc", "reasoning": "rs"}
_ROLES = ("assistant", "system", "developer", "user")
_STATUS = ("in_progress", "completed", "incomplete")
_ASKED = {"input_text": "text", "input_image": "type", "input_file": "type"}
_ANSWERED = {"output_text": "text", "refusal": "refusal"}
_TOOL_KEYS = frozenset(
    {"type", "name", "description", "parameters", "strict", "allowed_callers", "defer_loading", "output_schema"}
)


def check(body: Json, extra: Collection[str], memory: Memory) -> None:
    """Raises `Rejected` for the first thing that OpenAI would object to."""
    rules.known(body, PARAMETERS, extra)
    rules.model(body)
    _options(body)
    if body.get("input") is None:
        raise rules.missing("input")
    given = body["input"]
    if not isinstance(given, str):
        if not isinstance(given, list):
            raise rules.wrong_type("input", "one of a string or array of objects", given)
        if not given:
            raise rules.empty_array("input")
        for number, item in enumerate(given):
            _item(rules.thing(item, f"input[{number}]"), f"input[{number}]", extra)
    before = body.get("previous_response_id")
    if before is not None and before not in memory.responses:
        message = f"Previous response with id '{before}' not found."
        raise Rejected(message, "previous_response_id", "previous_response_not_found")
    items = conversation(body, memory)
    _ids(given if isinstance(given, list) else [], body.get("store") is not False, memory)
    _pairs(items)
    _reasoning(items, memory)


def conversation(body: Json, memory: Memory) -> list[Json]:
    """All items of a request: those of the answers before it, and what item references stand for."""
    given = body["input"]
    if isinstance(given, str):
        given = [{"type": "message", "role": "user", "content": given}]
    referred = [memory.stored.get(item["id"], item) if _kind(item) == "item_reference" else item for item in given]
    return [*memory.responses.get(body.get("previous_response_id") or "", []), *referred]


# -- the request ------------------------------------------------------------------------------------------------------


def _options(body: Json) -> None:
    if body.get("background") and body.get("store") is False:
        raise Rejected("Background mode requires 'store' to be true.", "background")
    for value in rules.listed(body.get("include") or [], "include"):
        if value not in _INCLUDE:
            raise rules.wrong_value("include", value, _INCLUDE)
    for number, tool in enumerate(rules.listed(body.get("tools") or [], "tools")):
        where = f"tools[{number}]"
        kind = rules.thing(tool, where).get("type")
        if kind is None:
            raise rules.missing(f"{where}.type")
        if kind != "function":
            raise rules.wrong_value(f"{where}.type", kind, ["function"])
        # Checked before unknown parameters: for a tool in the form of Chat, OpenAI says that its name is missing.
        rules.function(tool, where)
        rules.known(tool, _TOOL_KEYS, (), where)
    if body.get("stream_options") is not None:
        if not body.get("stream"):
            message = "The 'stream_options' parameter is only allowed when 'stream' is enabled."
            raise Rejected(message, "stream_options")
        rules.known(
            rules.thing(body["stream_options"], "stream_options"), {"include_obfuscation"}, (), "stream_options"
        )
    wanted = rules.thing(body.get("text") or {}, "text")
    rules.known(wanted, {"format", "verbosity"}, (), "text")
    shape = rules.thing(wanted.get("format") or {"type": "text"}, "text.format")
    if shape.get("type") not in ("text", "json_object", "json_schema"):
        raise rules.wrong_value("text.format.type", shape.get("type"), ["json_object", "json_schema", "text"])
    if shape["type"] == "json_schema":
        called = rules.name(shape, "text.format")
        if "schema" not in shape:
            raise rules.missing("text.format.schema")
        if shape.get("strict") is True:
            whose = f"response_format '{called}'"
            rules.strict_schema(shape["schema"], whose, "text.format.schema", "invalid_json_schema")


# -- items ------------------------------------------------------------------------------------------------------------


def _kind(item: Json) -> str | None:
    """An item's type, which messages and references may leave out."""
    if item.get("type") is not None:
        return str(item["type"])
    if "role" in item:
        return "message"
    return "item_reference" if set(item) == {"id"} else None


def _item(item: Json, where: str, extra: Collection[str]) -> None:
    kind = _kind(item)
    if kind is None:
        raise rules.missing(f"{where}.type")
    if kind not in _KEYS:
        raise rules.wrong_value(where, kind, list(_KEYS))
    rules.known(item, _KEYS[kind], extra, where)
    if item.get("status") is not None and item["status"] not in _STATUS:
        raise rules.wrong_value(f"{where}.status", item["status"], _STATUS)
    prefix, found = _PREFIX.get(kind), item.get("id")
    if found is not None:
        rules.string(item, "id", where, longest=ID_LENGTH)
    if prefix is not None and found is not None and not found.startswith(prefix):
        message = f"Invalid '{where}.id': '{found}'. Expected an ID that begins with '{prefix}'."
        raise Rejected(message, f"{where}.id", "invalid_value")
    if kind == "message":
        _message(item, where)
    elif kind == "function_call":
        rules.string(item, "call_id", where, longest=ID_LENGTH)
        rules.name(item, where)
        rules.arguments(item, where)
    elif kind == "function_call_output":
        rules.string(item, "call_id", where, longest=ID_LENGTH)
        if item.get("output") is None:
            raise rules.missing(f"{where}.output")
        rules.content(item["output"], f"{where}.output", _ASKED)
    elif kind == "reasoning":
        if item.get("summary") is None:
            raise rules.missing(f"{where}.summary")
        rules.listed(item["summary"], f"{where}.summary")
        rules.content(item["summary"], f"{where}.summary", {"summary_text": "text"})
    else:
        rules.string(item, "id", where)


def _message(item: Json, where: str) -> None:
    role = item.get("role")
    if role is None:
        raise rules.missing(f"{where}.role")
    if role not in _ROLES:
        raise rules.wrong_value(f"{where}.role", role, _ROLES)
    if "content" not in item:
        raise rules.missing(f"{where}.content")
    rules.content(item["content"], f"{where}.content", _ANSWERED if role == "assistant" else _ASKED)


# -- what belongs together --------------------------------------------------------------------------------------------


def _ids(given: Sequence[Json], store: bool, memory: Memory) -> None:
    """Ids are known, and none comes twice. Encrypted reasoning is known by its content instead, if it has no id."""
    seen: set[str] = set()
    for number, item in enumerate(given):
        kind, found, sealed = _kind(item), item.get("id"), item.get("encrypted_content")
        if kind == "function_call_output":
            continue
        if sealed is not None and sealed not in memory.encrypted:
            shown = f"{sealed[:4]}...{sealed[-4:]}"
            raise Rejected(
                f"The encrypted content {shown} could not be verified. "
                "Reason: Encrypted content could not be decrypted or parsed.",
                None,
                "invalid_encrypted_content",
            )
        if found in seen:
            message = f"Duplicate item found with id {found}. Remove duplicate items from your input and try again."
            raise Rejected(message, "input")
        if found is not None:
            seen.add(found)
        if kind in ("reasoning", "item_reference"):
            if (sealed is not None and not (store and found)) or found in memory.stored:
                continue
            if found is None:
                raise rules.missing(f"input[{number}].id")
            raise _not_found(found, store and found not in memory.completed)
        if found is not None and found not in memory.completed:
            raise _not_found(found, store)


def _not_found(found: str, store: bool) -> Rejected:
    message = f"Item with id '{found}' not found."
    if not store:
        message += (
            " Items are not persisted when `store` is set to false. Try again with `store` set to true, "
            "or remove this item from your input."
        )
    return Rejected(message, "input", status=404)


def _pairs(items: Sequence[Json]) -> None:
    """Each call has its output after it, and each output its call before it."""
    calls: dict[str, bool] = {}
    for item in items:
        kind, call_id = _kind(item), item.get("call_id", "")
        if kind == "function_call":
            if call_id in calls:
                raise Rejected(f"Duplicate function call found with call_id {call_id}.", "input")
            calls[call_id] = False
        elif kind == "function_call_output":
            if calls.get(call_id) is not False:
                raise Rejected(f"No tool call found for function call output with call_id {call_id}.", "input")
            calls[call_id] = True
    for call_id, answered in calls.items():
        if not answered:
            raise Rejected(f"No tool output found for function call {call_id}.", "input")


def _reasoning(items: Sequence[Json], memory: Memory) -> None:
    """Reasoning is followed by the item that it led to, and that item is not sent without the reasoning."""
    present: set[Any] = set()
    for number, item in enumerate(items):
        kind = _kind(item)
        if kind == "reasoning":
            reasoning = item.get("id") or memory.encrypted.get(item.get("encrypted_content") or "")
            present |= {reasoning, memory.encrypted.get(item.get("encrypted_content") or "")}
            after = items[number + 1] if number + 1 < len(items) else {}
            if not _follows(after, str(reasoning), memory):
                raise Rejected(
                    f"Item '{reasoning}' of type 'reasoning' was provided without its required following item.", "input"
                )
        elif kind == "function_call" or (kind == "message" and item.get("id") is not None):
            issued = memory.calls.get(item.get("call_id") or "") or memory.items.get(item.get("id") or "")
            if issued is not None and issued.reasoning is not None and issued.reasoning not in present:
                called = item.get("id") or item["call_id"]
                raise Rejected(
                    f"Item '{called}' of type '{kind}' was provided without its required 'reasoning' item: "
                    f"'{issued.reasoning}'.",
                    "input",
                )


def _follows(item: Json, reasoning: str, memory: Memory) -> bool:
    """Whether an item may come right after this reasoning: an item of the same answer, or a message without an id."""
    kind = _kind(item)
    issued = memory.items.get(item.get("id") or "") or memory.calls.get(item.get("call_id") or "")
    led = memory.items.get(reasoning)
    if kind == "reasoning":
        return True
    if kind == "function_call" or (kind == "message" and item.get("role") == "assistant"):
        # A message without an id is text that was cut or rewritten: OpenAI can't know which answer it is from.
        return (kind == "message" and issued is None) or (
            issued is not None and led is not None and issued.response == led.response
        )
    return False

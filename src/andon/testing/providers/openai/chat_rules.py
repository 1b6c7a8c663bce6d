# SPDX-License-Identifier: Apache-2.0
"""What Chat Completions rejects: requests of the wrong shape, and calls without results or results without calls."""

from __future__ import annotations

from collections.abc import Collection

from andon.testing.providers.api import Json
from andon.testing.providers.openai import rules
from andon.testing.providers.openai.rules import Rejected

ID_LENGTH = 40

_PARAMETERS = """
messages model audio frequency_penalty function_call functions logit_bias logprobs max_completion_tokens max_tokens
metadata modalities moderation n parallel_tool_calls prediction presence_penalty prompt_cache_key
prompt_cache_options prompt_cache_retention reasoning_effort response_format safety_identifier seed service_tier
stop store stream stream_options temperature tool_choice tools top_logprobs top_p user verbosity web_search_options
"""
PARAMETERS = frozenset(_PARAMETERS.split())
_ROLES: dict[str, frozenset[str]] = {
    "system": frozenset({"role", "content", "name"}),
    "assistant": frozenset(
        {"role", "content", "name", "refusal", "tool_calls", "function_call", "audio", "annotations"}
    ),
    "user": frozenset({"role", "content", "name"}),
    "tool": frozenset({"role", "content", "tool_call_id"}),
    "developer": frozenset({"role", "content", "name"}),
}
_TEXT = {"text": "text"}
_PARTS: dict[str, dict[str, str]] = {
    "user": {**_TEXT, "image_url": "image_url", "input_audio": "input_audio", "file": "file"},
    "assistant": {**_TEXT, "refusal": "refusal"},
}


def check(body: Json, extra: Collection[str]) -> None:
    """Raises `Rejected` for the first thing that OpenAI would object to."""
    rules.known(body, PARAMETERS, extra)
    rules.model(body)
    if "messages" not in body:
        raise rules.missing("messages")
    messages = rules.listed(body["messages"], "messages")
    if not messages:
        raise rules.empty_array("messages")
    for number, message in enumerate(messages):
        _message(rules.thing(message, f"messages[{number}]"), number, extra)
    _answered(messages)
    _tools(body)
    _options(body)


# -- the request ------------------------------------------------------------------------------------------------------


def _tools(body: Json) -> None:
    tools = body.get("tools")
    if tools is not None and not rules.listed(tools, "tools"):
        raise rules.empty_array("tools")
    for number, tool in enumerate(tools or []):
        where = f"tools[{number}]"
        rules.thing(tool, where)
        if "type" not in tool:
            raise rules.missing(f"{where}.type")
        if tool["type"] != "function":
            raise rules.wrong_value(f"{where}.type", tool["type"], ["function", "custom"])
        if "function" not in tool:
            raise rules.missing(f"{where}.function")
        rules.known(tool, {"type", "function"}, (), where)
        function = rules.thing(tool["function"], f"{where}.function")
        rules.known(function, {"name", "description", "parameters", "strict"}, (), f"{where}.function")
        rules.function(function, f"{where}.function")
    rules.only_with(body, "tool_choice", "tools")
    rules.only_with(body, "parallel_tool_calls", "tools")


def _options(body: Json) -> None:
    options = body.get("stream_options")
    if options is not None:
        if not body.get("stream"):
            message = "The 'stream_options' parameter is only allowed when 'stream' is enabled."
            raise Rejected(message, "stream_options")
        rules.known(
            rules.thing(options, "stream_options"), {"include_usage", "include_obfuscation"}, (), "stream_options"
        )
    answer_format = body.get("response_format")
    if answer_format is None:
        return
    kind = rules.thing(answer_format, "response_format").get("type")
    if kind not in ("text", "json_object", "json_schema"):
        raise rules.wrong_value("response_format.type", kind, ["json_object", "json_schema", "text"])
    if kind == "json_schema":
        where = "response_format.json_schema"
        if "json_schema" not in answer_format:
            raise rules.missing(where)
        called = rules.name(rules.thing(answer_format["json_schema"], where), where)
        schema = answer_format["json_schema"].get("schema")
        if answer_format["json_schema"].get("strict") is True:
            rules.strict_schema(schema, f"response_format '{called}'", "response_format", None)


# -- the conversation -------------------------------------------------------------------------------------------------


def _message(message: Json, number: int, extra: Collection[str]) -> None:
    where = f"messages[{number}]"
    role = message.get("role")
    if role is None:
        raise rules.missing(f"{where}.role")
    if role not in _ROLES:
        raise rules.wrong_value(f"{where}.role", role, list(_ROLES))
    rules.known(message, _ROLES[role], extra, where)
    calls = message.get("tool_calls")
    if calls is not None:
        if not rules.listed(calls, f"{where}.tool_calls"):
            raise rules.empty_array(f"{where}.tool_calls")
        for index, each in enumerate(calls):
            _call(rules.thing(each, f"{where}.tool_calls[{index}]"), f"{where}.tool_calls[{index}]")
    if role == "tool":
        rules.string(message, "tool_call_id", where)
    content = message.get("content")
    if content is None and role == "assistant":
        if not calls and message.get("refusal") is None:
            raise Rejected("Invalid value for 'content': expected a string, got null.", f"messages.[{number}].content")
        return
    if content is None and "content" not in message:
        raise rules.missing(f"{where}.content")
    if isinstance(content, list) and not content:
        raise rules.empty_array(f"{where}.content")
    rules.content(content, f"{where}.content", _PARTS.get(role, _TEXT))


def _call(call: Json, where: str) -> None:
    rules.string(call, "id", where, longest=ID_LENGTH)
    if "type" not in call:
        raise rules.missing(f"{where}.type")
    if call["type"] != "function":
        raise rules.wrong_value(f"{where}.type", call["type"], ["function", "custom"])
    if "function" not in call:
        raise rules.missing(f"{where}.function")
    rules.known(call, {"id", "type", "function"}, (), where)
    function = rules.thing(call["function"], f"{where}.function")
    rules.known(function, {"name", "arguments"}, (), f"{where}.function")
    rules.name(function, f"{where}.function")
    rules.arguments(function, f"{where}.function")


def _answered(messages: list[Json]) -> None:
    """Each call has its result in the `tool` messages right after it, and each of these has its call."""
    open_ids: list[str] = []  # the calls that wait for their result
    asked: set[str] = set()  # the calls of the assistant's message that the tool messages belong to
    for number, message in enumerate(messages):
        if message["role"] == "tool":
            found = message["tool_call_id"]
            if found not in asked:
                raise Rejected(
                    "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with "
                    "'tool_calls'.",
                    f"messages.[{number}].role",
                )
            if found not in open_ids:
                raise Rejected(f"Duplicate value for 'tool_call_id' of '{found}' in message[{number}]", "messages")
            open_ids.remove(found)
            continue
        if open_ids:
            raise _unanswered(open_ids, f"messages.[{number}].role")
        ids = [each["id"] for each in message.get("tool_calls") or []]
        if twice := [each for each in ids if ids.count(each) > 1]:
            raise Rejected(f"Duplicate value for 'id' of '{twice[0]}' in message[{number}].tool_calls", "messages")
        open_ids, asked = list(ids), set(ids)
    if open_ids:
        raise _unanswered(open_ids, "messages")


def _unanswered(ids: list[str], param: str) -> Rejected:
    return Rejected(
        "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. "
        f"The following tool_call_ids did not have response messages: {', '.join(ids)}",
        param,
    )

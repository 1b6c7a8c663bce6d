# SPDX-License-Identifier: Apache-2.0
"""What the fake of Chat Completions rejects, and that it takes what OpenAI takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from andon.testing.providers import FakeChat
from tests.testing.wire import Json, accepted, asking, post, rejected

USER: Json = {"role": "user", "content": "Hi"}
SAID: Json = {"role": "assistant", "content": "Yes?"}


@pytest.fixture(scope="module")
def fake() -> Iterator[FakeChat]:
    with FakeChat() as fake:
        yield fake


def called(*ids: str, content: Any = None, **function: Any) -> Json:
    calls = [{"id": i, "type": "function", "function": {"name": "f", "arguments": "{}", **function}} for i in ids]
    return {"role": "assistant", "content": content, "tool_calls": calls}


def result(of: str, content: Any = "done") -> Json:
    return {"role": "tool", "tool_call_id": of, "content": content}


def tool(**function: Any) -> Json:
    given = {"name": "f", "description": "F.", "parameters": {"type": "object", "properties": {}}, **function}
    return {"type": "function", "function": given}


# -- conversations ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "messages",
    [
        [USER],
        [{"role": "system", "content": "Be kind."}, {"role": "developer", "content": [{"type": "text", "text": "!"}]}],
        [USER, SAID, USER],
        [USER, SAID, SAID, USER],  # only others mind who speaks twice
        [USER, {"role": "assistant", "content": ""}],
        [USER, {"role": "assistant", "content": [{"type": "text", "text": "Yes?"}]}],
        [USER, {"role": "assistant", "content": None, "refusal": "No."}],
        [USER, called("a"), result("a")],
        [USER, {key: value for key, value in called("a").items() if key != "content"}, result("a")],
        [USER, called("a", "b", content="Both."), result("b"), result("a", [{"type": "text", "text": "x"}]), USER],
        [USER, called("a"), result("a"), called("a"), result("a"), SAID],  # an id may come again
        [USER, called("a" * 40, name="f-_9" * 16, arguments='{"x": 1}'), result("a" * 40)],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}],
    ],
)
def test_accepted(fake: FakeChat, messages: list[Json]) -> None:
    accepted(fake, {"model": "m", "messages": messages})


AFTER = "must be followed by tool messages responding to each 'tool_call_id'. The following tool_call_ids did not"
BEFORE = "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'"


@pytest.mark.parametrize(
    ("messages", "param", "code", "says"),
    [
        # calls and results
        ([USER, called("a")], "messages", None, f"{AFTER} have response messages: a"),
        ([USER, called("a", "b"), result("a"), USER], "messages.[3].role", None, "did not have response messages: b"),
        ([USER, called("a", "b"), USER, result("a")], "messages.[2].role", None, "response messages: a, b"),
        ([USER, called("a"), SAID, result("a")], "messages.[2].role", None, AFTER),
        ([USER, result("a")], "messages.[1].role", None, BEFORE),
        ([result("a")], "messages.[0].role", None, BEFORE),
        ([USER, called("a"), result("a"), result("b")], "messages.[3].role", None, BEFORE),
        ([USER, called("a"), result("a"), USER, result("a")], "messages.[4].role", None, BEFORE),
        ([USER, called("a"), result("a"), result("a")], "messages", None, "Duplicate value for 'tool_call_id' of 'a'"),
        ([USER, called("a", "a"), result("a")], "messages", None, "Duplicate value for 'id' of 'a'"),
        # calls
        ([called("a" * 41)], "messages[0].tool_calls[0].id", "string_above_max_length", "maximum length 40"),
        ([called("a", name="f g")], "messages[0].tool_calls[0].function.name", "invalid_value", "not match pattern"),
        ([called("a", name="")], "messages[0].tool_calls[0].function.name", "invalid_value", "not match pattern"),
        ([called("a", name="f" * 65)], "messages[0].tool_calls[0].function.name", "string_above_max_length", "65"),
        ([called("a", arguments={})], "messages[0].tool_calls[0].function.arguments", "invalid_type", "got an object"),
        ([called("a", arguments="{")], "messages[0].tool_calls[0].function.arguments", "invalid_value", "JSON object"),
        ([called("a", arguments="1")], "messages[0].tool_calls[0].function.arguments", "invalid_value", "JSON object"),
        ([called("a", more=1)], "messages[0].tool_calls[0].function.more", "unknown_parameter", "Unknown parameter"),
        ([called()], "messages[0].tool_calls", "empty_array", "Expected an array with minimum length 1"),
        ([{**called(), "tool_calls": {}}], "messages[0].tool_calls", "invalid_type", "an array of objects"),
        ([{**called(), "tool_calls": [1]}], "messages[0].tool_calls[0]", "invalid_type", "got an integer"),
        ([{**called(), "tool_calls": [{}]}], "messages[0].tool_calls[0].id", "missing_required_parameter", "Missing"),
        (
            [{**called(), "tool_calls": [{"id": "a"}]}],
            "messages[0].tool_calls[0].type",
            "missing_required_parameter",
            "Missing",
        ),
        (
            [{**called(), "tool_calls": [{"id": "a", "type": "x"}]}],
            "messages[0].tool_calls[0].type",
            "invalid_value",
            "'function' and 'custom'",
        ),
        (
            [{**called(), "tool_calls": [{"id": "a", "type": "function"}]}],
            "messages[0].tool_calls[0].function",
            "missing_required_parameter",
            "Missing",
        ),
        # messages
        ([{"role": "assistant"}], "messages.[0].content", None, "expected a string, got null"),
        ([{"role": "assistant", "content": None}], "messages.[0].content", None, "expected a string, got null"),
        ([{"role": "user"}], "messages[0].content", "missing_required_parameter", "Missing required parameter"),
        ([{"role": "user", "content": None}], "messages[0].content", "invalid_type", "but got null instead"),
        ([{"role": "user", "content": 1}], "messages[0].content", "invalid_type", "a string or array of objects"),
        ([{"role": "user", "content": []}], "messages[0].content", "empty_array", "empty array"),
        ([{"role": "user", "content": [1]}], "messages[0].content[0]", "invalid_type", "expected an object"),
        ([{"role": "user", "content": [{}]}], "messages[0].content[0].type", "missing_required_parameter", "Missing"),
        (
            [{"role": "user", "content": [{"type": "output_text", "text": "x"}]}],
            "messages[0].content[0]",
            "invalid_value",
            "Supported values are: 'text', 'image_url', 'input_audio', and 'file'.",
        ),
        (
            [{"role": "assistant", "content": [{"type": "image_url", "image_url": {}}]}],
            "messages[0].content[0]",
            "invalid_value",
            "'text' and 'refusal'",
        ),
        (
            [USER, called("a"), result("a", [{"type": "image_url"}])],
            "messages[2].content[0]",
            "invalid_value",
            "Supported values are: 'text'.",
        ),
        (
            [{"role": "user", "content": [{"type": "text"}]}],
            "messages[0].content[0].text",
            "missing_required_parameter",
            "Missing",
        ),
        (
            [{"role": "user", "content": [{"type": "text", "text": True}]}],
            "messages[0].content[0].text",
            "invalid_type",
            "got a boolean",
        ),
        ([{"role": "tool", "content": "x"}], "messages[0].tool_call_id", "missing_required_parameter", "Missing"),
        ([{"content": "x"}], "messages[0].role", "missing_required_parameter", "Missing"),
        ([{"role": "model", "content": "x"}], "messages[0].role", "invalid_value", "'system', 'assistant', 'user'"),
        ([{**SAID, "reasoning_content": "x"}], "messages[0].reasoning_content", "unknown_parameter", "Unknown"),
        (["Hi"], "messages[0]", "invalid_type", "expected an object, but got a string"),
        ([], "messages", "empty_array", "empty array"),
        ("Hi", "messages", "invalid_type", "expected an array of objects, but got a string"),
    ],
)
def test_rejected(fake: FakeChat, messages: Any, param: str, code: str | None, says: str) -> None:
    error = rejected(fake, {"model": "m", "messages": messages})
    assert (error["param"], error["code"]) == (param, code)
    assert says in error["message"]


# -- requests ---------------------------------------------------------------------------------------------------------

CLOSED = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False}


def shaped(schema: Any, **more: Any) -> Json:
    return {"type": "json_schema", "json_schema": {"name": "s", "strict": True, "schema": schema, **more}}


@pytest.mark.parametrize(
    "more",
    [
        {"temperature": 0.5, "max_completion_tokens": 5, "reasoning_effort": "low", "stop": ["x"], "user": "u"},
        {"tools": [tool()], "tool_choice": "auto", "parallel_tool_calls": False},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"tools": [tool(strict=True, parameters=CLOSED)]},
        {"response_format": {"type": "json_object"}},
        {"response_format": shaped(CLOSED)},
        {"response_format": shaped({"type": "object"}, strict=False)},
        {"stream_options": None, "tools": None},
    ],
)
def test_accepted_requests(fake: FakeChat, more: Json) -> None:
    accepted(fake, asking(fake, **more))


@pytest.mark.parametrize(
    ("more", "param", "code", "says"),
    [
        ({"top_k": 5}, "top_k", "unknown_parameter", "Unknown parameter: 'top_k'."),
        ({"input": "x"}, "input", "unknown_parameter", "Unknown parameter: 'input'."),
        ({"model": ""}, None, None, "you must provide a model parameter"),
        ({"model": 5}, "model", "invalid_type", "expected a string, but got an integer"),
        ({"tools": []}, "tools", "empty_array", "empty array"),
        ({"tools": {}}, "tools", "invalid_type", "array of objects"),
        ({"tools": [{"name": "f", "parameters": {}}]}, "tools[0].type", "missing_required_parameter", "Missing"),
        ({"tools": [{"type": "function", "name": "f"}]}, "tools[0].function", "missing_required_parameter", "Missing"),
        ({"tools": [{**tool(), "name": "f"}]}, "tools[0].name", "unknown_parameter", "Unknown"),
        ({"tools": [{"type": "web"}]}, "tools[0].type", "invalid_value", "'function' and 'custom'"),
        ({"tools": [tool(name="f g")]}, "tools[0].function.name", "invalid_value", "pattern"),
        ({"tools": [tool(name=None)]}, "tools[0].function.name", "missing_required_parameter", "Missing"),
        ({"tools": [tool(inputs={})]}, "tools[0].function.inputs", "unknown_parameter", "Unknown"),
        ({"tools": [tool(description=5.5)]}, "tools[0].function.description", "invalid_type", "got a decimal"),
        ({"tools": [tool(parameters=[])]}, "tools[0].function.parameters", "invalid_type", "got an array"),
        (
            {"tools": [tool(parameters={"type": "string"})]},
            "tools[0].function.parameters",
            "invalid_function_parameters",
            "Invalid schema for function 'f': schema must be a JSON Schema of 'type: \"object\"'",
        ),
        (
            {"tools": [tool(strict=True)]},
            "tools[0].function.parameters",
            "invalid_function_parameters",
            "In context=(), 'additionalProperties' is required to be supplied and to be false.",
        ),
        ({"tool_choice": "auto"}, "tool_choice", None, "only allowed when 'tools' are specified"),
        ({"parallel_tool_calls": True}, "parallel_tool_calls", None, "only allowed when 'tools' are specified"),
        ({"stream_options": {"include_usage": True}}, "stream_options", None, "only allowed when 'stream' is enabled"),
        ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x", "unknown_parameter", "Unknown"),
        ({"response_format": {"type": "yaml"}}, "response_format.type", "invalid_value", "'json_schema', and 'text'"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "missing_required_parameter", ""),
        (
            {"response_format": shaped({**CLOSED, "required": []})},
            "response_format",
            None,
            "'required' is required to be supplied and to be an array including every key in properties. Missing 'a'.",
        ),
        (
            {"response_format": shaped({**CLOSED, "$defs": {"b": {"type": "object"}}})},
            "response_format",
            None,
            "In context=('$defs', 'b'), 'additionalProperties'",
        ),
        (
            {"response_format": shaped({"type": "array", "items": {"anyOf": [{"type": "null"}, {"type": "object"}]}})},
            "response_format",
            None,
            "In context=('items', 'anyOf', '1'), 'additionalProperties'",
        ),
    ],
)
def test_rejected_requests(fake: FakeChat, more: Json, param: str | None, code: str | None, says: str) -> None:
    error = rejected(fake, asking(fake, **more))
    assert (error["param"], error["code"]) == (param, code)
    assert says in error["message"]


def test_no_messages(fake: FakeChat) -> None:
    assert rejected(fake, {"model": "m"})["param"] == "messages"


@pytest.mark.parametrize("body", [b"{", b"[]", b"\xff"])
def test_what_is_no_json_object(fake: FakeChat, body: bytes) -> None:
    status, answer = post(fake, body)
    assert status == 400
    assert "could not parse the JSON body" in answer["error"]["message"]


@pytest.mark.parametrize(
    ("headers", "says", "code"),
    [
        ({}, "You didn't provide an API key", None),
        ({"authorization": "Basic abc"}, "You didn't provide an API key", None),
        ({"authorization": "Bearer "}, "You didn't provide an API key", None),
        ({"authorization": "Bearer sk-other"}, "Incorrect API key provided: sk-o***.", "invalid_api_key"),
    ],
)
def test_no_key_or_a_wrong_one(fake: FakeChat, headers: dict[str, str], says: str, code: str | None) -> None:
    status, answer = post(fake, asking(fake), headers)
    assert status == 401
    assert says in answer["error"]["message"]
    assert answer["error"]["code"] == code


def test_compatible_servers_take_more() -> None:
    with FakeChat(extra={"top_k", "reasoning_content"}) as fake:
        accepted(fake, {"model": "m", "messages": [USER, {**SAID, "reasoning_content": "Hm"}], "top_k": 5})
        assert rejected(fake, asking(fake, top_j=5))["param"] == "top_j"


def test_what_is_rejected_takes_nothing_from_the_script() -> None:
    with FakeChat([["one"], ["two"]]) as fake:
        rejected(fake, {})
        assert accepted(fake, asking(fake))["choices"][0]["message"]["content"] == "one"
        rejected(fake, {})
        assert accepted(fake, asking(fake))["choices"][0]["message"]["content"] == "two"

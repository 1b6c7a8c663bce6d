# SPDX-License-Identifier: Apache-2.0
"""What the fake of Responses rejects, by the shape of things and by what it remembers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from andon.testing.providers import FakeResponses, Word, call, cut, fail, finish, reasoning, stall, text
from tests.testing.wire import Json, Wire, accepted, asking, body_of, events_of, post, rejected

USER: Json = {"role": "user", "content": "Hi"}
SAID: Json = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Yes?"}]}
CALLED: Json = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
RESULT: Json = {"type": "function_call_output", "call_id": "c", "output": "done"}
SEALED = ["reasoning.encrypted_content"]


@pytest.fixture(scope="module")
def fake() -> Iterator[FakeResponses]:
    with FakeResponses() as fake:
        yield fake


def given(*items: Json, **more: Any) -> Json:
    return {"model": "m", "input": list(items), **more}


def without(item: Json, *keys: str) -> Json:
    return {key: value for key, value in item.items() if key not in keys}


def outputs(output: list[Json]) -> list[Json]:
    calls = [item["call_id"] for item in output if item["type"] == "function_call"]
    return [{"type": "function_call_output", "call_id": each, "output": "done"} for each in calls]


# -- the shape of items -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "items",
    [
        [USER],
        [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]}],
        [{"role": "system", "content": "Be kind."}, {"role": "developer", "content": "!"}, USER],
        [USER, SAID, USER],
        [USER, {"role": "assistant", "content": "Yes?"}, USER],
        [USER, CALLED, RESULT],
        [USER, SAID, CALLED, {**CALLED, "call_id": "d"}, {**RESULT, "call_id": "d"}, RESULT, USER],
        [USER, CALLED, USER, RESULT],  # after it, but not right after it
        [USER, {**CALLED, "call_id": "c" * 64, "status": "completed"}, {**RESULT, "call_id": "c" * 64}],
        [USER, CALLED, {**RESULT, "output": [{"type": "input_text", "text": "done"}]}],
    ],
)
def test_accepted(fake: FakeResponses, items: list[Json]) -> None:
    accepted(fake, given(*items))


@pytest.mark.parametrize(
    ("items", "param", "code", "says"),
    [
        # calls and outputs
        ([USER, CALLED], "input", None, "No tool output found for function call c."),
        ([USER, RESULT], "input", None, "No tool call found for function call output with call_id c."),
        ([USER, RESULT, CALLED], "input", None, "No tool call found for function call output with call_id c."),
        ([USER, CALLED, RESULT, RESULT], "input", None, "No tool call found for function call output with call_id c."),
        ([USER, CALLED, RESULT, CALLED, RESULT], "input", None, "Duplicate function call found with call_id c."),
        ([without(CALLED, "call_id")], "input[0].call_id", "missing_required_parameter", "Missing"),
        ([{**CALLED, "call_id": "c" * 65}], "input[0].call_id", "string_above_max_length", "maximum length 64"),
        ([without(RESULT, "call_id")], "input[0].call_id", "missing_required_parameter", "Missing"),
        ([without(RESULT, "output")], "input[0].output", "missing_required_parameter", "Missing"),
        ([{**RESULT, "output": {"a": 1}}], "input[0].output", "invalid_type", "a string or array of objects"),
        ([without(CALLED, "name")], "input[0].name", "missing_required_parameter", "Missing"),
        ([{**CALLED, "name": "f.g"}], "input[0].name", "invalid_value", "'^[a-zA-Z0-9_-]+$'"),
        ([{**CALLED, "arguments": {}}], "input[0].arguments", "invalid_type", "but got an object"),
        ([{**CALLED, "arguments": "{"}], "input[0].arguments", "invalid_value", "JSON object"),
        ([{**CALLED, "id": "call_1"}], "input[0].id", "invalid_value", "Expected an ID that begins with 'fc'."),
        ([{**CALLED, "id": 5}], "input[0].id", "invalid_type", "expected a string"),
        ([{**CALLED, "status": "cut"}], "input[0].status", "invalid_value", "'in_progress', 'completed', and"),
        # messages
        ([{"type": "message", "content": "x"}], "input[0].role", "missing_required_parameter", "Missing"),
        ([{"role": "tool", "content": "x"}], "input[0].role", "invalid_value", "Invalid value: 'tool'."),
        ([{"role": "user"}], "input[0].content", "missing_required_parameter", "Missing"),
        ([{"role": "assistant", "content": None}], "input[0].content", "invalid_type", "but got null"),
        (
            [{"role": "assistant", "content": [{"type": "input_text", "text": "x"}]}],
            "input[0].content[0]",
            "invalid_value",
            "Invalid value: 'input_text'. Supported values are: 'output_text' and 'refusal'.",
        ),
        (
            [{"role": "user", "content": [{"type": "text", "text": "x"}]}],
            "input[0].content[0]",
            "invalid_value",
            "Invalid value: 'text'.",
        ),
        (
            [{"role": "assistant", "content": [{"type": "output_text", "text": "x", "parsed": None}]}],
            "input[0].content[0].parsed",
            "unknown_parameter",
            "Unknown parameter",
        ),
        ([{**USER, "tool_calls": []}], "input[0].tool_calls", "unknown_parameter", "Unknown parameter"),
        ([{**SAID, "id": "m1"}], "input[0].id", "invalid_value", "Expected an ID that begins with 'msg'."),
        # others
        ([{"type": "reasoning", "id": "rs_1"}], "input[0].summary", "missing_required_parameter", "Missing"),
        ([{"type": "reasoning", "summary": "Hm"}], "input[0].summary", "invalid_type", "array of objects"),
        ([{"type": "reasoning", "summary": []}], "input[0].id", "missing_required_parameter", "Missing"),
        ([{"type": "item_reference", "id": ""}, USER], "input", None, "Item with id '' not found."),
        ([{"type": "thought"}], "input[0]", "invalid_value", "Invalid value: 'thought'."),
        ([{"content": "x"}], "input[0].type", "missing_required_parameter", "Missing"),
        (["Hi"], "input[0]", "invalid_type", "expected an object, but got a string"),
        ([], "input", "empty_array", "empty array"),
    ],
)
def test_rejected(fake: FakeResponses, items: Any, param: str, code: str | None, says: str) -> None:
    error = rejected(fake, given(*items))
    assert (error["param"], error["code"]) == (param, code)
    assert says in error["message"]


# -- requests ---------------------------------------------------------------------------------------------------------

TOOL: Json = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}, "strict": False}
SCHEMA: Json = {"type": "json_schema", "name": "s", "strict": True, "schema": {"type": "object"}}


@pytest.mark.parametrize(
    "more",
    [
        {"instructions": "Be kind.", "max_output_tokens": 5, "reasoning": {"effort": "low"}, "truncation": "auto"},
        {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False},
        {"tools": [], "include": []},
        {"text": {"format": {"type": "text"}, "verbosity": "low"}},
        {"text": {"format": {**SCHEMA, "strict": False}}},
    ],
)
def test_accepted_requests(fake: FakeResponses, more: Json) -> None:
    accepted(fake, asking(fake, **more))


@pytest.mark.parametrize(
    ("more", "param", "code", "says"),
    [
        ({"messages": []}, "messages", "unknown_parameter", "Unknown parameter: 'messages'."),
        ({"reasoning_effort": "low"}, "reasoning_effort", "unknown_parameter", "Unknown parameter"),
        ({"model": None}, None, None, "you must provide a model parameter"),
        ({"input": None}, "input", "missing_required_parameter", "Missing"),
        ({"input": 5}, "input", "invalid_type", "a string or array of objects"),
        ({"include": ["everything"]}, "include", "invalid_value", "Invalid value: 'everything'."),
        (
            {"tools": [{"type": "function", "function": {"name": "f"}}]},
            "tools[0].name",
            "missing_required_parameter",
            "",
        ),
        ({"tools": [{"name": "f"}]}, "tools[0].type", "missing_required_parameter", "Missing"),
        ({"tools": [{"type": "magic"}]}, "tools[0].type", "invalid_value", "Supported values are: 'function'."),
        ({"tools": [{**TOOL, "function": {}}]}, "tools[0].function", "unknown_parameter", "Unknown"),
        ({"tools": [{**TOOL, "strict": True}]}, "tools[0].parameters", "invalid_function_parameters", "'additional"),
        ({"stream_options": {}}, "stream_options", None, "only allowed when 'stream' is enabled"),
        (
            {"stream": True, "stream_options": {"include_usage": True}},
            "stream_options.include_usage",
            "unknown_parameter",
            "Unknown",
        ),
        ({"text": {"type": "text"}}, "text.type", "unknown_parameter", "Unknown"),
        ({"text": {"format": {"type": "yaml"}}}, "text.format.type", "invalid_value", "Invalid value: 'yaml'."),
        ({"text": {"format": without(SCHEMA, "name")}}, "text.format.name", "missing_required_parameter", "Missing"),
        (
            {"text": {"format": without(SCHEMA, "schema")}},
            "text.format.schema",
            "missing_required_parameter",
            "Missing",
        ),
        ({"text": {"format": SCHEMA}}, "text.format.schema", "invalid_json_schema", "'additionalProperties'"),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "previous_response_not_found", "'resp_1' not"),
    ],
)
def test_rejected_requests(fake: FakeResponses, more: Json, param: str | None, code: str | None, says: str) -> None:
    error = rejected(fake, asking(fake, **more))
    assert (error["param"], error["code"]) == (param, code)
    assert says in error["message"]


def test_no_key(fake: FakeResponses) -> None:
    assert post(fake, asking(fake), {})[0] == 401


# -- what it remembers ------------------------------------------------------------------------------------------------

THINKS: list[Word] = [reasoning("Hm."), text("Wait."), call("f", {"a": 1}), call("g")]


@pytest.mark.parametrize("more", [{}, {"store": True}, {"store": False, "include": SEALED}])
def test_an_answer_is_taken_back_as_it_was_given(more: Json) -> None:
    with FakeResponses([THINKS, ["Done."]]) as fake:
        output = accepted(fake, given(USER, **more))["output"]
        assert [item["type"] for item in output] == ["reasoning", "message", "function_call", "function_call"]
        again = accepted(fake, given(USER, *output, *outputs(output), **more))
        accepted(fake, given(USER, *output, *outputs(output), *again["output"], USER, **more))


def test_it_is_also_taken_back_without_ids_by_its_encrypted_content() -> None:
    with FakeResponses([THINKS]) as fake:
        more: Json = {"store": False, "include": SEALED}
        output = accepted(fake, given(USER, **more))["output"]
        bare = [without(item, "id", "status") for item in output]
        accepted(fake, given(USER, *bare, *outputs(output), **more))
        assert "No" in rejected(fake, given(USER, *bare, **more))["message"]


def test_reasoning_must_be_followed_by_what_it_led_to() -> None:
    with FakeResponses([THINKS, [call("h")], ["Yes."]]) as fake:
        thought, said, first, second = accepted(fake, given(USER))["output"]
        (other,) = accepted(fake, given(USER))["output"]
        (later,) = accepted(fake, given(USER))["output"]
        lonely = f"Item '{thought['id']}' of type 'reasoning' was provided without its required following item."
        results = outputs([first, second])
        for wrong in (
            [USER, thought],
            [USER, thought, USER],
            [USER, thought, later, USER],
            [USER, thought, other, *outputs([other])],
            [USER, thought, {**CALLED}, RESULT],
            [USER, first, second, *results, thought],
        ):
            error = rejected(fake, given(*wrong))
            assert error["param"] == "input"
            assert error["message"] == lonely or "'reasoning' item" in error["message"]
        accepted(fake, given(USER, thought, said))
        accepted(fake, given(USER, thought, first, second, *results))
        # Text without an id is text that was cut, and then marked: OpenAI can't know whose it was.
        accepted(fake, given(USER, thought, {"role": "assistant", "content": "Wai Cancelled by user"}, USER))


def test_what_reasoning_led_to_is_not_sent_without_it() -> None:
    with FakeResponses([THINKS]) as fake:
        thought, said, first, second = accepted(fake, given(USER))["output"]
        error = rejected(fake, given(USER, first, second, *outputs([first, second])))
        assert error["message"] == (
            f"Item '{first['id']}' of type 'function_call' was provided without its required 'reasoning' item: "
            f"'{thought['id']}'."
        )
        bare = without(second, "id")
        assert f"Item '{bare['call_id']}' of" in rejected(fake, given(USER, bare, *outputs([bare])))["message"]
        assert "of type 'message' was provided without" in rejected(fake, given(USER, said))["message"]
        # Retold without its id, a message is anybody's.
        accepted(fake, given(USER, without(said, "id")))


def test_several_reasoning_items_each_have_their_own() -> None:
    with FakeResponses([[reasoning("A"), call("f"), reasoning("B"), call("g")]]) as fake:
        first, f, second, g = accepted(fake, given(USER))["output"]
        results = outputs([f, g])
        accepted(fake, given(USER, first, f, second, g, *results))
        assert f"'{second['id']}'" in rejected(fake, given(USER, first, f, g, *results))["message"]


@pytest.mark.parametrize(
    "item", [{**SAID, "id": "msg_1"}, {**CALLED, "id": "fc_1"}, {"type": "item_reference", "id": "x"}]
)
def test_ids_that_were_never_issued_are_not_found(fake: FakeResponses, item: Json) -> None:
    status, answer = post(fake, given(USER, item, RESULT))
    assert status == 404
    assert answer["error"]["message"] == f"Item with id '{item['id']}' not found."
    assert "Items are not persisted when `store`" in rejected(fake, given(item, store=False))["message"]


def test_reasoning_that_was_not_stored_is_not_found() -> None:
    with FakeResponses([[reasoning("Hm."), text("Wait.")]]) as fake:
        thought, said = accepted(fake, given(USER, store=False))["output"]
        for store in (False, True):
            status, answer = post(fake, given(USER, thought, said, store=store))
            assert status == 404
            assert answer["error"]["message"].startswith(
                f"Item with id '{thought['id']}' not found. Items are not persisted when `store` is set to false."
            )


def test_encrypted_content_must_be_what_was_issued() -> None:
    with FakeResponses([[reasoning("Hm."), text("Wait.")]]) as fake:
        thought, said = accepted(fake, given(USER, store=False, include=SEALED))["output"]
        forged = {**thought, "encrypted_content": "gAAAAAforged"}
        error = rejected(fake, given(USER, forged, said, store=False))
        assert error["code"] == "invalid_encrypted_content"
        assert "The encrypted content gAAA...rged could not be verified." in error["message"]
        # Where items are stored, the id is what counts.
        assert "not found" in rejected(fake, given(USER, thought, said))["message"]
        accepted(fake, given(USER, thought, said, store=False))


def test_the_same_item_twice() -> None:
    with FakeResponses() as fake:
        (said,) = accepted(fake, given(USER))["output"]
        assert f"Duplicate item found with id {said['id']}." in rejected(fake, given(said, said))["message"]


def test_previous_responses_and_references_stand_for_their_items() -> None:
    with FakeResponses([[reasoning("Hm."), call("f")], ["Done."]]) as fake:
        first = accepted(fake, given(USER))
        thought, called = first["output"]
        results = outputs(first["output"])
        before = first["id"]
        assert "No tool output found" in rejected(fake, given(USER, previous_response_id=before))["message"]
        second = accepted(fake, given(*results, previous_response_id=before))
        third = accepted(fake, asking(fake, previous_response_id=second["id"]))
        assert "No tool call found" in rejected(fake, given(*results, previous_response_id=third["id"]))["message"]
        names = [{"type": "item_reference", "id": thought["id"]}, {"id": called["id"]}]
        accepted(fake, given(USER, *names, *results))
        assert "its required 'reasoning' item" in rejected(fake, given(USER, names[1], *results))["message"]
        hidden = accepted(fake, given(USER, store=False))
        assert rejected(fake, asking(fake, previous_response_id=hidden["id"]))["param"] == "previous_response_id"


# -- what was cut -----------------------------------------------------------------------------------------------------


def _streamed(fake: FakeResponses, body: Json) -> list[Json]:
    with Wire(fake) as wire:
        wire.send({**body, "stream": True}, connection="close")
        response = wire.rest()
    # A cut body lacks its end.
    return [event for event in events_of(body_of(response + b"0\r\n\r\n")) if isinstance(event, dict)]


@pytest.mark.parametrize("how", [cut(), fail(500, "It broke."), fail(500, "It broke.", event="response.failed")])
def test_items_of_an_answer_that_was_cut_are_not_found(how: Any) -> None:
    with FakeResponses([[reasoning("Hm."), text("Wait."), call("f"), how], ["Done."]]) as fake:
        events = _streamed(fake, given(USER, include=SEALED))
        done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
        assert [item["type"] for item in done] == ["reasoning", "message", "function_call"]
        thought, said, called = done
        assert f"'{said['id']}' not found" in rejected(fake, given(USER, said))["message"]
        assert f"'{thought['id']}' not found" in rejected(fake, given(USER, thought, SAID))["message"]
        response = events[0]["response"]["id"]
        assert rejected(fake, asking(fake, previous_response_id=response))["code"] == "previous_response_not_found"
        # What is complete can go on without its ids: the reasoning by its encrypted content.
        more: Json = {"store": False, "include": SEALED}
        bare = [without(item, "id", "status") for item in (thought, said, called)]
        accepted(fake, given(USER, *bare, *outputs([called]), **more))
        accepted(fake, given(USER, thought, *bare[1:], *outputs([called]), **more))
        lonely = rejected(fake, given(USER, bare[2], *outputs([called]), **more))
        assert "without its required 'reasoning' item" in lonely["message"]


def test_an_item_that_was_cut_in_the_middle_has_no_encrypted_content() -> None:
    with FakeResponses([[reasoning("Hm."), stall()]]) as fake, Wire(fake) as wire:
        wire.send(given(USER, include=SEALED, stream=True))
        fake.wait_for(at="stalled")
        got = wire.until(b'"Hm."')
        assert b"gAAAA" not in got + wire.received
        assert b"output_item.done" not in got + wire.received
        assert fake.memory.encrypted == {}


def test_an_answer_that_was_too_long_is_kept() -> None:
    with FakeResponses([["Much too", finish("length")]]) as fake:
        events = _streamed(fake, given(USER))
        assert events[-1]["type"] == "response.incomplete"
        accepted(fake, given(USER, *events[-1]["response"]["output"], USER))

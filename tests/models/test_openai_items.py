# SPDX-License-Identifier: Apache-2.0
"""Events of Responses as compatible servers and gateways send them: items that come whole, errors without a type."""

from __future__ import annotations

import json
from typing import Any

import pytest

from andon import Agent, RunStatus, tool
from andon.errors import ModelError
from andon.messages import Reasoning, Text
from andon.models.openai import OpenAIResponses
from andon.testing.providers import FakeResponses, raw, text
from tests.support import play


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def event(type: str | None = None, **fields: Any) -> Any:
    named = {} if type is None else {"type": type}
    return raw(b"data: " + json.dumps(named | fields).encode() + b"\n\n")


def done(**item: Any) -> Any:
    return event("response.output_item.done", output_index=0, item=item)


def ask(*answers: Any, **agent: Any) -> Any:
    with FakeResponses(answers) as fake:
        model = OpenAIResponses("gpt-5.2", base_url=fake.base_url, api_key=fake.api_key)
        return Agent("Tester", model, **agent).run("go")


def test_a_message_that_comes_whole() -> None:
    parts = [{"type": "output_text", "text": "Once "}, {"type": "refusal", "refusal": "and no more."}]
    result = ask([done(type="message", id="msg_1", content=parts)])
    assert result.content == "Once and no more."


def test_a_message_that_was_streamed_is_not_said_twice() -> None:
    said = event("response.output_text.delta", delta="Once.")
    result = ask([said, done(type="message", id="msg_1", content=[{"type": "output_text", "text": "Once."}])])
    assert result.content == "Once."


def test_a_call_that_comes_whole() -> None:
    call = done(type="function_call", id="fc_1", call_id="call_1", name="add", arguments='{"a": 1, "b": 2}')
    result = ask([call], [text("3.")], tools=[add])
    assert [each.content for each in result.messages[2].tool_results] == ["3"]


def test_pieces_of_a_call_that_was_never_begun_are_left_alone() -> None:
    stray = event("response.function_call_arguments.delta", item_id="fc_9", delta='{"a"')
    assert ask([stray, text("Fine.")]).content == "Fine."


def test_reasoning_that_comes_whole() -> None:
    summary = [{"type": "summary_text", "text": "One."}, {"type": "summary_text", "text": "Two."}]
    result = ask([done(type="reasoning", id="rs_1", summary=summary), text("Fine.")])
    (thought, said) = result.message.content
    assert isinstance(thought, Reasoning)
    assert thought.text == "One.\n\nTwo."
    assert said == Text("Fine.")


def test_the_parts_of_a_summary_stand_apart() -> None:
    def part(number: int) -> Any:
        return event("response.reasoning_summary_part.added", summary_index=number)

    def piece(words: str) -> Any:
        return event("response.reasoning_summary_text.delta", delta=words)

    result = ask([part(0), piece("One."), part(1), piece("Two."), done(type="reasoning", id="rs_1"), text("Fine.")])
    assert result.message.content[0].text == "One.\n\nTwo."


def test_a_refusal_is_text() -> None:
    assert ask([event("response.refusal.delta", delta="No.")]).content == "No."


@pytest.mark.parametrize(
    "error",
    [
        event(error={"message": "Out of luck.", "code": "bad_luck"}),
        event("error", message="Out of luck.", code="bad_luck"),
        event("error", error={"message": "Out of luck.", "type": "bad_luck"}),
        event("response.failed", response={"error": {"message": "Out of luck.", "code": "bad_luck"}}),
    ],
)
def test_an_error_in_any_of_its_forms(error: Any) -> None:
    result = ask([text("Half "), error])
    assert result.status is RunStatus.error
    assert isinstance(result.error, ModelError)
    assert "Out of luck." in str(result.error)
    assert result.error.code == "bad_luck"
    assert result.content == "Half "


def test_an_error_without_words() -> None:
    assert "gave no reason" in str(ask([text("Half "), event("response.failed", response={})]).error)


def test_a_done_line_is_left_alone() -> None:
    assert ask([raw(b"data: [DONE]\n\n"), text("Fine.")]).content == "Fine."


def test_usage_that_can_not_be_read_costs_no_answer() -> None:
    odd = event("response.completed", response={"usage": {"input_tokens": "many"}})
    result = ask([text("Fine."), odd])
    assert result.content == "Fine."
    assert result.usage.input_tokens is None


def test_items_of_a_kind_that_is_not_known_may_look_as_they_like() -> None:
    async def main() -> None:
        strange = b"".join(
            b'data: {"type": "response.output_item.%s", "item": {"type": "web_search_call", "arguments": {}, '
            b'"content": "text", "summary": 5}}\n\n' % when
            for when in (b"added", b"done")
        )
        with FakeResponses([[raw(strange), text("Fine.")]]) as fake:
            result = await Agent("Tester", OpenAIResponses("gpt-5.2", fake.api_key, fake.base_url)).invoke_async("go")
        assert (result.status, result.content) == (RunStatus.completed, "Fine."), result.error

    play(main)

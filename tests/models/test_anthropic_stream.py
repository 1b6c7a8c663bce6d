# SPDX-License-Identifier: Apache-2.0
"""Answers of Anthropic's: what becomes of each event, how they end, and what is left if they end too early."""

from __future__ import annotations

import http.client
import json
from typing import Any

import anthropic
import pytest

from andon import Agent, FinishReason, Retry, RunResult, RunStatus, Usage, tool
from andon.errors import ModelConnectionError, ModelError, ModelStreamError, RateLimitError
from andon.messages import Reasoning, Text, ToolCall
from andon.models.anthropic.endpoint import MOST_PAUSES
from andon.testing import validate
from andon.testing.providers import FakeAnthropic, call, cut, end, fail, finish, raw, reasoning, stall, text, usage
from tests.support import HANG, play
from tests.support.anthropic import OLDER, agent, block, errors, event, model

HALF = text("Half an ")
MARKED = [Text("Half an "), Text("Stopped by an error")]


@tool
async def add(a: int = 0, b: int = 0) -> int:
    """Add two numbers."""
    return a + b


def ask(*answers: Any, fake: dict[str, Any] | None = None, **options: Any) -> RunResult:
    with FakeAnthropic(list(answers), **(fake or {})) as served:
        result = agent(served, tools=[add], **options).run("go")
        assert errors(served) == []
        return result


def broken(answer: Any, *, fake: dict[str, Any] | None = None, **options: Any) -> RunResult:
    """The result of a run whose answer breaks; then the same conversation goes on."""
    with FakeAnthropic([answer, [text("Fine.")]], **(fake or {})) as served:
        tester = agent(served, tools=[add], **options)
        result = tester.run("go")
        after = tester.run("and now?")
        assert (after.status, after.content) == (RunStatus.completed, "Fine."), after.error
        assert errors(served) == []
        assert len(served.served) == 2, "it was tried again, after something was shown"
        return result


def check_failed(result: RunResult, kind: type[ModelError], *words: str) -> None:
    assert result.status is RunStatus.error
    assert type(result.error) is kind, result.error
    for word in words:
        assert word in str(result.error)
    assert result.message.content == MARKED


# -- events -----------------------------------------------------------------------------------------------------------


def test_unknown_events_and_blocks_are_left_alone() -> None:
    odd = [
        raw(b": keep-alive\n\n"),
        event("new_thing", index="x", delta=7, message=[1]),
        *block(9, {"type": "new_block", "x": 1}, {"type": "new_delta", "y": [2]}),
        event("content_block_delta", index=8, delta={"type": "new_delta"}),
        event("content_block_delta", index=8),
        event("content_block_stop", index=5),
        event("content_block_start", index=5),
    ]
    result = ask([*odd, text("All of it."), *odd])
    assert (result.content, result.warnings) == ("All of it.", []), result.error


def test_text_and_thinking_that_come_with_the_beginning_of_their_block() -> None:
    """As some compatible servers send them."""
    words = [
        *block(0, {"type": "thinking", "thinking": "Hm."}),
        *block(1, {"type": "text", "text": "Once "}, {"type": "text_delta", "text": "more."}),
    ]
    result = ask(words)
    assert result.content == "Once more."
    assert isinstance(result.message.content[0], Reasoning)
    assert result.message.content[0].text == "Hm."


def test_text_whose_block_was_never_begun() -> None:
    assert ask([event("content_block_delta", index=3, delta={"type": "text_delta", "text": "Hi."})]).content == "Hi."


@pytest.mark.parametrize("pieces", [[], [""], ["{}"], ['{"a"', ": 1}"]])
def test_arguments_in_pieces(pieces: list[str]) -> None:
    deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
    words = [
        *block(0, {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {}}, *deltas),
        finish("tool_use"),
    ]
    result = ask(words, [text("Done.")])
    assert result.messages[1].content == [ToolCall("toolu_1", "add", {"a": 1} if len(pieces) == 2 else {})]
    assert result.content == "Done."


def test_arguments_that_come_whole() -> None:
    words = block(0, {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": 1, "b": 2}})
    result = ask([*words, finish("tool_use")], [text("Done.")])
    assert [each.content for each in result.messages[2].tool_results] == ["3"]


def test_thinking_without_a_signature_is_shown_and_not_sent() -> None:
    """Compatible servers send none. It must not be taken for the beginning of the next block."""
    words = [
        *block(7, {"type": "thinking", "thinking": ""}, {"type": "thinking_delta", "thinking": "Unsigned."}),
        reasoning("Signed.", signature="one"),
        text("A."),
    ]
    with FakeAnthropic([words, [text("B.")]]) as fake:
        tester = agent(fake, OLDER)
        said = tester.run("go").message.content
        assert [each.text for each in said if isinstance(each, Reasoning)] == ["Unsigned.", "Signed."]
        assert tester.run("and?").content == "B."
        sent = fake.requests[1]["messages"][1]["content"]
        assert [each["type"] for each in sent] == ["thinking", "text"]


def half(words: bytes) -> Any:
    said = b'{"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "%b"}}' % words
    return raw(b"data: %b\n\n" % said)


def test_half_a_character_is_no_reason_to_fail() -> None:
    pieces = [rb"a\ud83d", rb"\ude00b", rb" \ud83d\ude00 \\ud83d \uD800\u0041"]
    result = ask([*map(half, pieces)])
    assert result.content == "a\ufffd\ufffdb 😀 \\ud83d \ufffdA"


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("split", [1, 7])
def test_lines_and_characters_may_be_cut_anywhere(newline: str, split: int) -> None:
    words = [reasoning("Hmm… 🤔"), text(pieces=["Grüße ", "aus ", "東京 ", "🗼 ", "\r\n\u2028."])]
    result = broken(words, fake={"newline": newline, "split": split})
    assert result.content == "Grüße aus 東京 🗼 \r\n\u2028."


# -- the end ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "reason", "warning"),
    [
        ("end_turn", FinishReason.end_turn, None),
        ("stop_sequence", FinishReason.stop_sequence, None),
        ("max_tokens", FinishReason.length, "limit of output tokens"),
        ("model_context_window_exceeded", FinishReason.context_window, "context window is full"),
        ("refusal", FinishReason.refusal, "declined"),
        ("new_reason", FinishReason.other, "new_reason"),
    ],
)
def test_reasons(said: str, reason: FinishReason, warning: str | None) -> None:
    result = broken([HALF, finish(said)])
    assert (result.status, result.content, result.finish_reason) == (RunStatus.completed, "Half an ", reason)
    assert len(result.warnings) == (warning is not None)
    assert (warning or "") in "".join(result.warnings)


def test_calls_are_a_reason_too() -> None:
    with FakeAnthropic([[call("add")]]) as fake:
        result = Agent("Tester", agent(fake).model, tools=[add], max_turns=1).run("go")
        assert result.finish_reason is FinishReason.tool_calls


def test_a_refusal_without_details() -> None:
    last = [event("message_delta", delta={"stop_reason": "refusal"}, usage={}), event("message_stop"), end()]
    result = ask([HALF, *last])
    assert result.finish_reason is FinishReason.refusal
    assert result.warnings == ["the model declined to answer"]


def test_no_reason_is_a_warning() -> None:
    with FakeAnthropic([[HALF, event("message_stop"), end()]]) as fake:
        result = agent(fake).run("go")
        assert result.status is RunStatus.completed
        assert "without a reason" in result.warnings[0]


def test_how_the_connection_ends_is_no_part_of_a_complete_answer() -> None:
    last = [event("message_delta", delta={"stop_reason": "end_turn"}, usage={}), event("message_stop")]
    result = ask([text("All of it."), *last, cut()])
    assert (result.status, result.content) == (RunStatus.completed, "All of it."), result.error


# -- usage ------------------------------------------------------------------------------------------------------------


def test_usage() -> None:
    result = ask([reasoning("Hm."), text("A."), usage(100, 50, cached_tokens=40, reasoning_tokens=20)])
    assert result.usage == Usage(100, 50, 40, 20)


def test_input_is_the_sum_of_its_parts_and_what_is_absent_keeps_its_value() -> None:
    begun = {"input_tokens": 5, "cache_read_input_tokens": 20, "cache_creation_input_tokens": 300, "output_tokens": 1}
    words = [
        event("message_start", message={"usage": begun}),
        text("A."),
        event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 9}),
        event("message_stop"),
        end(),
    ]
    assert ask(words).usage == Usage(325, 9, 20, 0)  # the fake's own message_start has said that nothing was thought


def test_usage_that_can_not_be_read_costs_no_answer() -> None:
    odd = event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": "many"})
    assert ask([text("Fine."), odd]).content == "Fine."


def test_what_was_said_before_a_cut_is_kept() -> None:
    result = broken([reasoning("Hm."), text("Half an "), cut()])
    assert result.usage.estimated
    with FakeAnthropic([[text("A.")]]) as fake:
        sent = agent(fake, tools=[add]).run("go").usage.input_tokens
    assert result.usage.input_tokens == sent, "it is the provider's number, and no estimate"
    assert result.usage.cached_tokens == 0
    assert (result.usage.output_tokens or 0) >= 2


# -- pauses -----------------------------------------------------------------------------------------------------------

SEARCH = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [{"type": "web_search_result"}]}
QUERY = {"type": "input_json_delta", "partial_json": '{"query": "x"}'}


def paused(*, stop: bool = True) -> list[Any]:
    return [reasoning("Hm.", signature="one"), text("I look. "), *block(7, SEARCH, QUERY, stop=stop)]


def test_a_paused_turn_goes_on() -> None:
    """The answer so far is sent back as it is, and what comes then is the same answer."""
    first = [*paused(), usage(10, 5), finish("pause_turn")]
    second = [*block(8, FOUND), text("Found."), usage(20, 7, cached_tokens=3)]
    with FakeAnthropic([first, second, [text("Bye.")]]) as fake:
        tester = agent(fake, OLDER)
        result = tester.run("go")
        assert (result.status, result.content) == (RunStatus.completed, "I look. Found."), result.error
        assert result.finish_reason is FinishReason.end_turn
        assert result.usage == Usage(30, 12, 3, 0)
        called = {**SEARCH, "input": {"query": "x"}}
        content = [
            {"type": "thinking", "thinking": "Hm.", "signature": "one"},
            {"type": "text", "text": "I look. "},
            called,
        ]
        assert fake.requests[1]["messages"][1:] == [{"role": "assistant", "content": content}]
        assert {**fake.requests[1], "messages": 0} == {**fake.requests[0], "messages": 0}
        assert validate(tester.messages) == []
        assert tester.run("and?").content == "Bye."
        kept = fake.requests[2]["messages"][1]["content"]
        assert kept == [*content, FOUND, {"type": "text", "text": "Found."}]
        assert errors(fake) == []


def test_an_answer_with_sources_is_sent_back_with_them() -> None:
    citation = {"type": "web_search_result_location", "url": "https://x.org"}
    words = [
        *block(7, {"type": "text", "text": ""}, {"type": "text_delta", "text": "So."}),
        event("content_block_delta", index=7, delta={"type": "citations_delta", "citation": citation}),
        *block(8, {"type": "text", "text": ""}, {"type": "text_delta", "text": " "}),
        *block(9, {**SEARCH, "id": "srvtoolu_2"}, {"type": "input_json_delta", "partial_json": '{"half'}),
        finish("pause_turn"),
    ]
    with FakeAnthropic([words, [text("Found.")]]) as fake:
        assert agent(fake).run("go").status is RunStatus.completed
        assert fake.requests[1]["messages"][-1]["content"] == [
            {"type": "text", "text": "So.", "citations": [citation]},
            {**SEARCH, "id": "srvtoolu_2"},
        ]


def test_a_pause_before_anything_was_said() -> None:
    """There is nothing to send back: the provider refuses an empty message, and blank text."""
    first: list[Any] = [*paused(), finish("pause_turn")]
    blank: list[Any] = [text("\n\n"), finish("pause_turn")]
    answers: list[Any]
    for answers, sent in (([blank, [text("A")]], [1, 1]), ([first, blank, [text("A")]], [1, 2, 2])):
        with FakeAnthropic(answers) as fake:
            result = agent(fake, OLDER).run("go")
            assert result.status is RunStatus.completed, result.error
            assert [len(each["messages"]) for each in fake.requests] == sent
            assert errors(fake) == []


def test_after_a_second_pause_all_of_the_answer_is_sent_back() -> None:
    answers: list[Any] = [[text("A "), finish("pause_turn")], [text("B "), finish("pause_turn")], [text("C.")]]
    with FakeAnthropic(answers) as fake:
        assert agent(fake, OLDER).run("go").content == "A B C."
        (_, said) = fake.requests[-1]["messages"]
        assert [each["text"] for each in said["content"]] == ["A ", "B "]
        assert errors(fake) == []


def test_text_before_and_after_a_pause_are_two_blocks_to_the_provider() -> None:
    """Thinking that comes later is bound to them as they came."""
    first: list[Any] = [text("A "), finish("pause_turn")]
    blank: list[Any] = [text("\n"), finish("pause_turn")]
    last: list[Any] = [text("B "), reasoning("Hm.", signature="one"), text("C.")]
    with FakeAnthropic([first, blank, last, [text("Bye.")]]) as fake:
        tester = agent(fake)
        assert tester.run("go").content == "A \nB C."
        assert tester.run("and?").content == "Bye."
        said = fake.requests[-1]["messages"][1]["content"]
        assert [each.get("text") or each["thinking"] for each in said] == ["A ", "B ", "Hm.", "C."]
        assert errors(fake) == []
        assert validate(tester.messages) == []


def test_pauses_are_bounded() -> None:
    with FakeAnthropic([[text("A "), finish("pause_turn")]]) as fake:
        result = agent(fake).run("go")
        assert len(fake.served) == MOST_PAUSES + 1
        assert result.finish_reason is FinishReason.other
        assert "paused the turn too often" in result.warnings[0]


def test_a_cut_search_is_left_out() -> None:
    """Its call is complete, its result never came. The provider refuses one without the other."""
    result = broken([*paused(), cut()])
    assert result.status is RunStatus.error


def test_a_failure_after_a_pause() -> None:
    with FakeAnthropic([[*paused(), finish("pause_turn")], [fail(400, "No.")], [text("Fine.")]]) as fake:
        tester = agent(fake, OLDER)
        result = tester.run("go")
        assert result.content == "I look. "
        assert "400: No." in str(result.error)
        assert tester.run("and?").content == "Fine."
        assert errors(fake) == []


# -- too early --------------------------------------------------------------------------------------------------------

WHOLE: list[Any] = [
    reasoning("Let me see.", signature="a-signature-of-some-length"),
    reasoning(redacted="hidden"),
    reasoning("Well.", signature="another-signature-of-some-length"),
    text("I look. "),
    call("add", {"a": 1}, id="toolu_1", pieces=2),
    call("add", {"a": 2}, id="toolu_2", pieces=2),
]


def events_of(words: list[Any]) -> list[bytes]:
    """The events of an answer, as the fake sends them to the request of these tests."""
    with FakeAnthropic([words]) as fake:
        body = {"model": "m", "max_tokens": 5, "stream": True, "messages": [{"role": "user", "content": "go"}]}
        connection = http.client.HTTPConnection(fake.base_url.removeprefix("http://"))
        headers = {"x-api-key": fake.api_key, "anthropic-version": "2026-10-21"}
        connection.request("POST", "/v1/messages", json.dumps(body), headers)
        said = connection.getresponse().read()
        connection.close()
    return [each + b"\n\n" for each in said.split(b"\n\n")[:-1]]


EVENTS = events_of(WHOLE)


@pytest.mark.parametrize("at", range(len(EVENTS)))
@pytest.mark.parametrize("how", [end(), cut()], ids=["end", "cut"])
def test_it_breaks_after_any_event(at: int, how: Any) -> None:
    """What is left is accepted. Only thinking whose last event has come is sent back."""

    def script(body: dict[str, Any]) -> Any:
        return [raw(b"".join(EVENTS[:at])), how] if len(body["messages"]) == 1 else [text("Fine.")]

    with FakeAnthropic(script) as fake:
        tester = Agent("Tester", model(fake, OLDER), tools=[add], retry=Retry(attempts=1))
        fake.memory.sign("a-signature-of-some-length", "Let me see.", "")
        fake.memory.sign_redacted("hidden", "")
        fake.memory.sign("another-signature-of-some-length", "Well.", "")
        assert tester.run("go").status is RunStatus.error
        assert validate(tester.messages) == []
        stops = sum(b"content_block_stop" in each for each in EVENTS[:at])
        assert tester.run("and now?").content == "Fine."
        sent = [each for each in fake.requests[-1]["messages"] if each["role"] == "assistant"]
        kinds = [each["type"] for message in sent for each in message["content"]]
        assert len([kind for kind in kinds if "thinking" in kind]) == min(stops, 3)
        assert errors(fake) == []


@pytest.mark.parametrize(
    "data", [b'data: {"type": "content_bl\n\n', b"data: not JSON\n\n", b"data: [1]\n\n", b'data: {"type": 7}\n\n']
)
def test_an_event_that_can_not_be_read(data: bytes) -> None:
    check_failed(broken([HALF, raw(data), stall()]), ModelStreamError, "can't be read")


def test_a_silence_that_is_too_long() -> None:
    result = broken([HALF, stall()], timeout=anthropic.Timeout(HANG, read=1))
    check_failed(result, ModelConnectionError, "the provider stopped sending")


@pytest.mark.parametrize(
    ("error", "kind", "retryable"),
    [
        (fail(529, "Overloaded"), ModelError, True),
        (fail(429, "Slow down."), RateLimitError, True),
        (fail(500, "Oh."), ModelError, True),
        (fail(400, "No."), ModelError, False),
    ],
)
def test_an_error_in_the_stream(error: Any, kind: type[ModelError], retryable: bool) -> None:
    result = broken([HALF, error])
    check_failed(result, kind, error.message)
    assert isinstance(result.error, ModelError)
    assert result.error.retryable is retryable


def test_an_error_in_the_stream_before_anything_was_shown_is_tried_again() -> None:
    async def main() -> None:
        overloaded = event("error", error={"type": "overloaded_error", "message": "Overloaded"})
        with FakeAnthropic([[overloaded, stall()], [text("Fine.")]]) as fake:
            assert (await agent(fake).invoke_async("go")).content == "Fine."
            assert len(fake.served) == 2

    play(main)


PAGE = b"<html><head><title>Login</title></head><body>Please log in</body></html>"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (raw(PAGE, content_type="text/html"), ["text/html", "Please log in", "base_url"]),
        (raw(b'{"type": "error", "error": {"message": "Gone"}}', content_type="application/json"), ["Gone"]),
        (raw(PAGE, content_type="text/html", status=404), ["404", "Please log in"]),
    ],
)
def test_a_page_instead_of_a_stream(answer: Any, words: list[str]) -> None:
    result = broken([answer])
    assert isinstance(result.error, ModelError)
    for word in words:
        assert word in str(result.error)

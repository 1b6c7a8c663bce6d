# SPDX-License-Identifier: Apache-2.0
"""Answers of Bedrock, from their frames: blocks, seals, ends, usage; whole, cut at every event, and damaged."""

from __future__ import annotations

import base64
import http.client
import json
import logging
from typing import Any
from urllib.parse import urlsplit

import pytest

from andon import Agent, FinishReason, Retry, RunResult, RunStatus, tool
from andon.errors import ModelConnectionError, ModelStreamError
from andon.messages import Reasoning, Text, Usage
from andon.models.bedrock import endpoint
from andon.models.bedrock.answer import ConverseAnswer, read_seal
from andon.models.bedrock.frames import Frame, FrameSplitter
from andon.testing.providers import FakeBedrock, call, cut, end, fail, finish, raw, reasoning, text, usage
from andon.testing.providers.bedrock import frames
from tests.support import play
from tests.support.bedrock import CLAUDE, client_of, model_of

ONCE = Retry(attempts=1)


@tool
async def search(query: str = "") -> str:
    """Look something up."""
    return f"found {query}"


def run(words: list[Any], **options: Any) -> RunResult:
    with FakeBedrock([words, [text("Fine.")]], **options) as fake:
        result = Agent("Tester", model_of(fake), tools=[search], retry=ONCE).run("go")
        assert [each.error for each in fake.served if each.error] == []
        return result


# -- what an answer has -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"split": 1}, {"split": 7}, {"newline": "\r\n"}], ids=str)
def test_all_that_an_answer_has(options: Any) -> None:
    words = [
        reasoning("Hm. Well."),
        reasoning(redacted="secret thoughts"),
        text("I look. ü€😀\n\n"),
        call("search", {"query": "a\nb"}, id="one", pieces=5),
        call("search", id="two"),
        call("search", {"query": "c"}, id="three", pieces=3, interleaved=True),
        call("search", {"query": "d"}, id="four", pieces=3, interleaved=True),
    ]
    result = run(words, **options)
    assert result.status is RunStatus.completed, result.error
    thought, redacted, said, *calls = result.messages[1].content
    assert isinstance(thought, Reasoning)
    assert thought.text == "Hm. Well."
    seal = read_seal(thought.signature)
    assert seal is not None
    assert seal.family == "anthropic"
    assert seal.signature
    assert isinstance(redacted, Reasoning)
    again = read_seal(redacted.signature)
    assert again is not None
    assert (again.redacted, again.signature) == (b"secret thoughts", None)
    assert said == Text("I look. ü€😀\n\n")
    assert [each.arguments for each in calls] == [{"query": "a\nb"}, {}, {"query": "c"}, {"query": "d"}]  # type: ignore[union-attr]
    assert [each.content for each in result.messages[2].tool_results] == ["found a\nb", "found ", "found c", "found d"]


def event(kind: str, value: dict[str, Any]) -> bytes:
    return frames.event(kind, frames.as_payload(value))


def delta(value: dict[str, Any], index: int = 0) -> bytes:
    return event("contentBlockDelta", {"delta": value, "contentBlockIndex": index})


def stop(index: int = 0) -> bytes:
    return event("contentBlockStop", {"contentBlockIndex": index})


def test_a_signature_and_redacted_thoughts_in_pieces() -> None:
    thoughts = [{"text": "Hm."}, {"signature": "abc"}, {"signature": "def=="}]
    parts = [base64.b64encode(part).decode() for part in (b"\xff", b"\x00rest")]
    data = b"".join(delta({"reasoningContent": each}) for each in thoughts) + stop()
    data += b"".join(delta({"reasoningContent": {"redactedContent": each}}, 1) for each in parts) + stop(1)
    content = run([raw(data), text("So.")]).messages[1].content
    seals = [read_seal(block.signature) for block in content if isinstance(block, Reasoning)]
    assert [(each.signature, each.redacted) for each in seals if each] == [("abcdef==", None), (None, b"\xff\0rest")]


@pytest.mark.parametrize("signature", [[], [{"signature": ""}]])
def test_reasoning_without_a_signature(signature: list[Any]) -> None:
    """Other families have none. It is shown, and never sent back."""
    data = b"".join(delta({"reasoningContent": each}) for each in [{"text": "Hm."}, *signature])
    result = run([raw(data + stop()), text("So.")])
    assert result.messages[1].content == [Reasoning("Hm."), Text("So.")]


def test_what_is_not_known_is_skipped() -> None:
    data = event("somethingNew", {"a": 1}) + delta({"citation": {"title": "x"}}) + delta({"image": {}}, 3)
    data += event("contentBlockStart", {"start": {"toolResult": {"toolUseId": "t"}}, "contentBlockIndex": 4})
    server = {"toolUse": {"toolUseId": "s", "name": "web", "type": "server_tool_use"}}
    data += event("contentBlockStart", {"start": server, "contentBlockIndex": 5})
    data += delta({"toolUse": {"input": "{}"}}, 5) + stop(5)
    result = run([raw(data), text("So.")])
    assert result.messages[1].content == [Text("So.")]


def test_half_a_character() -> None:
    piece = frames.event("contentBlockDelta", rb'{"delta":{"text":"a\ud83db"},"contentBlockIndex":0}')
    assert run([raw(piece), text("c")]).content == "a\ufffdbc"


# -- why it ended -----------------------------------------------------------------------------------------------------

REASONS = {
    "end_turn": (FinishReason.end_turn, None),
    "stop_sequence": (FinishReason.stop_sequence, None),
    "max_tokens": (FinishReason.length, "limit of output tokens"),
    "model_context_window_exceeded": (FinishReason.context_window, "context window is full"),
    "refusal": (FinishReason.refusal, "declined"),
    "guardrail_intervened": (FinishReason.content_filter, "content filter: guardrail_intervened"),
    "content_filtered": (FinishReason.content_filter, "content filter"),
    "malformed_model_output": (FinishReason.other, "malformed_model_output"),
    "malformed_tool_use": (FinishReason.other, "malformed_tool_use"),
    "something_new": (FinishReason.other, "something_new"),
}


@pytest.mark.parametrize("said", REASONS)
def test_reasons(said: str) -> None:
    reason, warning = REASONS[said]
    result = run([text("Well."), finish(said)])
    assert (result.status, result.finish_reason) == (RunStatus.completed, reason)
    assert [warning in each for each in result.warnings] == [True] if warning else result.warnings == []


def test_a_call_for_tools_is_a_reason_too() -> None:
    with FakeBedrock([[call("search")]]) as fake:
        result = Agent("Tester", model_of(fake), tools=[search], max_turns=1).run("go")
        assert result.finish_reason in (FinishReason.tool_calls, None)


# -- usage ------------------------------------------------------------------------------------------------------------


def test_input_is_what_was_sent_read_from_a_cache_and_written_to_it() -> None:
    spent = {"inputTokens": 10, "outputTokens": 5, "totalTokens": 115, "cacheReadInputTokens": 70}
    last = event("messageStop", {"stopReason": "end_turn"})
    last += event("metadata", {"usage": {**spent, "cacheWriteInputTokens": 30}})
    assert run([text("Well."), raw(last), end()]).usage == Usage(110, 5, 70, None)


@pytest.mark.parametrize("metadata", [{}, {"usage": {}}, {"usage": {"inputTokens": "ten"}}, {"usage": None}])
def test_usage_that_can_not_be_read(metadata: dict[str, Any]) -> None:
    last = event("messageStop", {"stopReason": "end_turn"}) + event("metadata", metadata)
    result = run([text("Well."), raw(last), end()])
    assert result.status is RunStatus.completed, result.error
    assert result.usage.input_tokens is None


# -- an early end -----------------------------------------------------------------------------------------------------


class Sink:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.got: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *values, **named: self.got.append((name, *values, named))


def events_of(words: list[Any]) -> list[Frame]:
    """All frames of an answer, taken from the fake's own writer."""
    with FakeBedrock([words]) as fake:
        connection = http.client.HTTPConnection(urlsplit(fake.base_url).netloc, timeout=10)
        body = {"messages": [{"role": "user", "content": [{"text": "Hi"}]}]}
        headers = {"authorization": f"Bearer {fake.api_key}"}
        connection.request("POST", f"/model/{CLAUDE}/converse-stream", json.dumps(body), headers)
        found = FrameSplitter().feed(connection.getresponse().read())
        connection.close()
        return found


def test_a_cut_at_every_event() -> None:
    """Only with `messageStop` the answer is complete, and what is there at a cut is what was said by then."""
    words = [reasoning("Hm."), text("I look."), call("search", {"query": "a"}, pieces=3), usage(7, 3)]
    whole = events_of(words)
    kinds = [meaning.kind for meaning, _ in whole]
    assert kinds[-2:] == ["messageStop", "metadata"]
    for count in range(len(whole) + 1):
        answer = ConverseAnswer(Sink(), "anthropic")
        answer.take(whole[:count])
        assert answer.finished == (count == len(whole))
        answer.end()
        assert answer.finished == (count >= len(whole) - 1)


def test_metadata_alone_is_no_end() -> None:
    answer = ConverseAnswer(Sink(), "anthropic")
    answer.take([frame for frame in events_of(["Well."]) if frame[0].kind != "messageStop"])
    answer.end()
    assert not answer.finished


def test_an_end_without_metadata_is_complete_and_usage_is_not_known() -> None:
    last = event("messageStop", {"stopReason": "end_turn"})
    result = run([text("Well."), raw(last), end()])
    assert (result.status, result.content) == (RunStatus.completed, "Well."), result.error
    assert result.usage.input_tokens is None


@pytest.mark.parametrize("word", [end(), cut(), cut(reset=True), cut(mid_chunk=True)], ids=str)
def test_a_stream_that_breaks(word: Any) -> None:
    result = run([text("Half an "), word])
    assert result.status is RunStatus.error
    assert isinstance(result.error, ModelStreamError if word == end() else ModelConnectionError), result.error
    assert result.error.retryable
    assert result.message.content == [Text("Half an "), Text("Stopped by an error")]
    assert result.usage.estimated


def test_damage_ends_the_answer_and_what_came_before_it_stays() -> None:
    good = delta({"text": "answer"})
    result = run([text("Half an "), raw(good + frames.damaged(good, 30) + good), text("more")])
    assert result.status is RunStatus.error
    assert type(result.error) is ModelStreamError
    assert "checksum" in str(result.error)
    assert result.content == "Half an answer"


@pytest.mark.parametrize("payload", [b"no JSON", b"[]", b'{"delta": 7}', b'{"delta": {"text": "\xff"}}', b"{}"])
def test_events_that_can_not_be_read(payload: bytes) -> None:
    result = run([text("Half an "), raw(frames.event("contentBlockDelta", payload))])
    assert type(result.error) is ModelStreamError, result.error
    assert "can't be read" in str(result.error)


def test_redacted_thoughts_that_are_no_base64() -> None:
    result = run([text("Half an "), raw(delta({"reasoningContent": {"redactedContent": "?"}}, 1))])
    assert type(result.error) is ModelStreamError, result.error


# -- private names of the SDK -----------------------------------------------------------------------------------------


def test_canary_the_bytes_are_where_they_are_looked_for() -> None:
    """If this fails, a new aiobotocore has moved them: the model works on, and is eight times slower."""

    async def main() -> None:
        with FakeBedrock() as fake:
            async with client_of(fake) as client:
                messages = [{"role": "user", "content": [{"text": "Hi"}]}]
                stream = (await client.converse_stream(modelId=CLAUDE, messages=messages))["stream"]
                content = endpoint.raw_content(stream)
                assert content is not None
                assert isinstance(await content.read(16), bytes)
                stream.close()

    play(main)


def test_without_the_private_names_it_works_all_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def hidden(stream: Any) -> Any:
        return found(object())

    found = endpoint.raw_content
    monkeypatch.setattr(endpoint, "raw_content", hidden)
    monkeypatch.setattr(endpoint, "_has_warned", False)
    words: list[Any] = [
        reasoning("Hm."),
        reasoning(redacted="x"),
        text("I look."),
        call("search", {"query": "a"}, pieces=2),
    ]
    with caplog.at_level(logging.WARNING), FakeBedrock([[*words, usage(9, 3)], [text("Fine.")]]) as fake:
        agent = Agent("Tester", model_of(fake), tools=[search], retry=ONCE)
        result = agent.run("go")
        assert result.content == "I look.Fine.", result.error
        assert result.usage.output_tokens is not None
        assert len([each for each in result.messages[1].content if isinstance(each, Reasoning)]) == 2
        assert agent.run("and now?").status is RunStatus.completed
        assert [each.error for each in fake.served if each.error] == []
    assert len([each for each in caplog.records if "slower public way" in each.message]) == 1
    with FakeBedrock([[text("Half "), fail(429, "Slow down.")]]) as fake:
        result = Agent("Tester", model_of(fake), retry=ONCE).run("go")
        assert "Slow down." in str(result.error)
    assert run([text("Half an "), end()]).status is RunStatus.error

# SPDX-License-Identifier: Apache-2.0
"""What Gemini sends: cut at every event, reasons to end, answers that go on, usage; on both ways through the SDK."""

from __future__ import annotations

from typing import Any

import pytest

from andon import Agent, FinishReason, Retry, RunResult, RunStatus, Usage, tool
from andon.errors import ModelConnectionError, ModelError, ModelStreamError, RateLimitError
from andon.messages import Reasoning, Text, ToolCall
from andon.testing import validate
from andon.testing.providers import Answer, FakeGemini, call, cut, end, finish, raw, reasoning, stall, text, usage
from andon.testing.providers.google.gemini import GeminiWriter
from andon.testing.providers.google.rules import Asked
from tests.support import play, until
from tests.support.gemini import ID, OLD, model, way

__all__ = ["way"]

HALF = text("Half an ")
QUICK = Retry(base_seconds=0)


@tool
async def search(query: str) -> str:
    """Look something up."""
    return f"found {query}"


def event(inner: bytes) -> Any:
    return raw(b"data: %b\n\n" % inner)


async def broken(answer: Answer, **options: Any) -> RunResult:
    """The result of a run whose answer breaks; then the same conversation goes on."""
    with FakeGemini([answer, [text("Fine.")]], **options) as fake:
        agent = Agent("Tester", model(fake))
        result = await agent.invoke_async("go")
        after = await agent.invoke_async("and now?")
        assert (after.status, after.content) == (RunStatus.completed, "Fine."), after.error
        assert [each.error for each in fake.served] == [None, None]
        return result


# -- cut anywhere -----------------------------------------------------------------------------------------------------

PIECES = 3 + 4 + 2
"""Of reasoning, of text, and calls."""


@pytest.mark.no_cover
@pytest.mark.parametrize("place", range(PIECES + 1))
def test_cut_after_every_event(place: int) -> None:
    """The events of one answer, up to one of them. The signatures are this fake's, so it takes them back."""

    async def main() -> None:
        answers: list[list[Any]] = [[], [text("Fine.")]]
        with FakeGemini(lambda _: answers.pop(0)) as fake:
            asked = Asked()
            asked.model = ID
            writer = GeminiWriter(asked, fake.memory)
            events = [*writer.reasoning(reasoning("Let me see.")), *writer.text(text("I look at it."))]
            events += writer.calls([call("search", {"query": "a"}), call("search", {"query": "b"})])
            assert len(events) == PIECES
            answers[0] = [raw(b"".join(events[:place])), stall()]
            agent = Agent("Tester", model(fake), tools=[search])
            async with agent.start("go") as run:
                await fake.wait_for_async(0, at="stalled")
                await until(lambda: place == 0 or run.phase == "streaming")
                run.cancel()
                result = await run.result()
            assert result.status is RunStatus.cancelled
            assert validate(agent.messages) == []
            blocks = [each for message in result.messages for each in message.content]
            assert all(block.signature for block in blocks if isinstance(block, Reasoning))
            assert sum(isinstance(block, ToolCall) for block in blocks) == max(0, place - 7)
            assert (await agent.invoke_async("and now?")).status is RunStatus.completed
            assert [each.error for each in fake.served] == [None, None]

    play(main)


def test_without_an_end_it_is_a_failure(way: str) -> None:
    async def main() -> None:
        for last in (end(), cut(), cut(reset=True), cut(mid_chunk=True)):
            result = await broken([HALF, last])
            assert isinstance(result.error, ModelStreamError | ModelConnectionError), result.error
            assert result.message.content == [Text("Half an "), Text("Stopped by an error")]

    play(main)


def test_an_end_that_comes_early_and_a_chunk_without_parts(way: str) -> None:
    async def main() -> None:
        early = b'{"candidates": [{"content": {"parts": [{"text": "%b"}], "role": "model"}, "finishReason": "STOP"}]}'
        last = b'{"candidates": [{"content": {"role": "model"}, "finishReason": "STOP"}], "modelVersion": "x"}'
        result = await broken([event(early % b"All "), event(early % b"of it."), event(last), end()])
        assert (result.status, result.content) == (RunStatus.completed, "All of it."), result.error
        assert result.finish_reason is FinishReason.end_turn

    play(main)


def test_what_is_not_known_is_left_alone(way: str) -> None:
    async def main() -> None:
        odd = b'{"candidates": [{"content": {"parts": [{"executableCode": {"code": "1"}}]}, "index": 0}], "more": [1]}'
        comment = [raw(b": ping\n\n")] if way == "wire" else []  # the SDK takes a comment for an event
        result = await broken([*comment, event(odd), event(b'{"usageMetadata": {}}'), text("Fine.")])
        assert (result.status, result.content, result.warnings) == (RunStatus.completed, "Fine.", []), result.error

    play(main)


@pytest.mark.parametrize(
    "data", [b'{"candidates": [{"con', b"no JSON", b"[DON", b'{"candidates": 7}', b'{"candidates": "\xff"}', b"[1]"]
)
def test_an_event_that_can_not_be_read(data: bytes) -> None:
    async def main() -> None:
        result = await broken([HALF, event(data), stall()])
        assert type(result.error) is ModelStreamError
        assert "can't be read" in str(result.error)
        assert result.content == "Half an "

    play(main)


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("split", [1, 7, None])
def test_lines_and_characters_may_be_cut_anywhere(newline: str, split: int | None) -> None:
    async def main() -> None:
        words = text(pieces=["Grüße ", "aus ", "東京 ", "🗼 {\n[\r"])
        result = await broken([reasoning("Hmm… 🤔"), words], newline=newline, split=split)
        assert (result.status, result.content) == (RunStatus.completed, "Grüße aus 東京 🗼 {\n[\r"), result.error

    play(main)


def test_half_a_character() -> None:
    async def main() -> None:
        part = rb'{"candidates": [{"content": {"parts": [{"text": "a\ud83d"}]}}]}'
        assert (await broken([event(part), text("b")])).content == "a\ufffdb"
        with FakeGemini([[call("search", r'{"query": "a\ud83d"}', "c1")], [text("Fine.")]]) as fake:
            result = await Agent("Tester", model(fake, OLD), tools=[search]).invoke_async("go")
            assert result.content == "Fine.", result.error
            assert "JSON" in result.messages[-2].tool_results[0].content

    play(main)


def test_calls_without_ids_and_arguments(way: str) -> None:
    async def main() -> None:
        calls = b'{"functionCall": {"name": "now"}}, {"functionCall": {"name": "now", "args": {}}}'
        part = b'{"candidates": [{"content": {"parts": [%b]}}]}' % calls

        @tool
        async def now() -> str:
            """The time."""
            return "noon"

        with FakeGemini([[event(part), text("So.")], [text("Fine.")]]) as fake:
            result = await Agent("Tester", model(fake, OLD), tools=[now]).invoke_async("go")
            assert result.content == "So.Fine.", result.error
            ids = [each.id for each in result.messages[1].tool_calls]
            assert len(set(ids)) == 2
            assert [each.status for each in result.messages[2].tool_results] == ["ok", "ok"]

    play(main)


def test_calls_with_the_same_id(way: str) -> None:
    """As gateways send them. A call that comes a second time is made once."""

    async def main() -> None:
        one, two = (
            b'{"functionCall": {"id": "search", "name": "search", "args": {"query": "%b"}}}' % q for q in (b"a", b"b")
        )
        part = b'{"candidates": [{"content": {"parts": [%b]}}]}'
        answer = [event(part % one), event(part % one), event(part % two), text("So.")]
        with FakeGemini([answer, [text("Fine.")]]) as fake:
            result = await Agent("Tester", model(fake, OLD), tools=[search]).invoke_async("go")
            assert result.content == "So.Fine.", result.error
            assert [each.content for each in result.messages[2].tool_results] == ["found a", "found b"]

    play(main)


# -- reasons ----------------------------------------------------------------------------------------------------------

REASONS = {
    "STOP": (FinishReason.end_turn, None),
    "MAX_TOKENS": (FinishReason.length, "limit of output tokens"),
    **{
        name: (FinishReason.content_filter, name)
        for name in ("SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "MODEL_ARMOR", "IMAGE_SAFETY")
    },
    **{
        name: (FinishReason.other, name)
        for name in (
            "LANGUAGE",
            "MALFORMED_FUNCTION_CALL",
            "UNEXPECTED_TOOL_CALL",
            "MALFORMED_RESPONSE",
            "TOO_MANY_TOOL_CALLS",
            "OTHER",
        )
    },
}


@pytest.mark.parametrize("reason", REASONS)
def test_reasons(reason: str, way: str) -> None:
    async def main() -> None:
        result = await broken([HALF, finish(reason)])
        kind, words = REASONS[reason]
        assert (result.status, result.finish_reason) == (RunStatus.completed, kind), result.error
        assert result.content == "Half an "
        assert len(result.warnings) == (0 if words is None else 1)
        assert words is None or words in result.warnings[0]

    play(main)


def test_a_reason_of_a_later_version_and_its_message() -> None:
    async def main() -> None:
        last = b'{"candidates": [{"finishReason": "BRAND_NEW", "finishMessage": "It is new."}]}'
        result = await broken([HALF, event(last), end()])
        assert result.finish_reason is FinishReason.other
        assert "BRAND_NEW: It is new." in result.warnings[0]

    play(main)


def test_a_prompt_that_is_blocked(way: str) -> None:
    async def main() -> None:
        feedback = (
            b'{"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}, "usageMetadata": {"promptTokenCount": 7}}'
        )
        result = await broken([event(feedback), end()])
        assert (result.status, result.finish_reason) == (RunStatus.completed, FinishReason.content_filter), result.error
        assert "the prompt was blocked: PROHIBITED_CONTENT" in result.warnings[0]
        assert result.usage == Usage(7, 0, 0, 0)

    play(main)


# -- an answer that goes on -------------------------------------------------------------------------------------------


def test_an_interrupted_answer_goes_on(way: str) -> None:
    async def main() -> None:
        script: list[Answer] = [
            [text("One, "), usage(10, 2), finish("CONTINUATION")],
            [text("two, "), usage(20, 3, cached_tokens=4), finish("CONTINUATION")],
            [text("three."), usage(30, 4, reasoning_tokens=1)],
            [text("Fine.")],
        ]
        with FakeGemini(script) as fake:
            agent = Agent("Tester", model(fake))
            result = await agent.invoke_async("Count.")
            assert (result.status, result.content) == (RunStatus.completed, "One, two, three."), result.error
            assert result.usage == Usage(60, 9, 4, 1)
            assert result.finish_reason is FinishReason.end_turn
            tokens = [each.get("continuationToken") for each in fake.requests]
            assert tokens[0] is None
            assert len({*tokens}) == 3
            assert (await agent.invoke_async("and now?")).content == "Fine."

    play(main)


def test_an_answer_that_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        monkeypatch.setattr("andon.models.google.answer.MAX_CONTINUATIONS", 3)
        with FakeGemini([[text("on "), finish("CONTINUATION")]]) as fake:
            result = await Agent("Tester", model(fake)).invoke_async("Count.")
            assert (result.content, result.finish_reason) == ("on " * 4, FinishReason.other), result.error
            assert len(fake.requests) == 4

    play(main)


@pytest.mark.parametrize("token", [b"", b', "continuationToken": "c2FtZQ=="'])
def test_an_interruption_without_progress_is_an_end(token: bytes) -> None:
    async def main() -> None:
        last = event(b'{"candidates": [{"finishReason": "CONTINUATION"%b}]}' % token)
        with FakeGemini([[HALF, last, end()]]) as fake:
            fake.memory.continuations[b"same"] = [{"role": "user", "parts": [{"text": "go"}]}]
            result = await Agent("Tester", model(fake)).invoke_async("go")
            assert result.finish_reason is FinishReason.other
            assert len(fake.requests) == (2 if token else 1)

    play(main)


def test_a_cancel_in_the_second_request_of_an_answer(way: str) -> None:
    async def main() -> None:
        script: list[Answer] = [[text("One, "), usage(10, 2), finish("CONTINUATION")], [stall()], [text("Fine.")]]
        with FakeGemini(script) as fake:
            agent = Agent("Tester", model(fake))
            async with agent.start("Count.") as run:
                await fake.wait_for_async(1, at="stalled")
                run.cancel()
                result = await run.result()
            await fake.wait_for_async(1, at="left")
            assert result.message.content[0] == Text("One, ")
            assert (await agent.invoke_async("and now?")).content == "Fine."

    play(main)


# -- usage ------------------------------------------------------------------------------------------------------------


def test_usage_adds_up(way: str) -> None:
    async def main() -> None:
        counts = (
            b'{"usageMetadata": {"promptTokenCount": 100, "toolUsePromptTokenCount": 11, '
            b'"cachedContentTokenCount": 40, "candidatesTokenCount": 30, "thoughtsTokenCount": 20}, '
            b'"candidates": [{"finishReason": "STOP"}]}'
        )
        assert (await broken([HALF, event(counts), end()])).usage == Usage(111, 50, 40, 20)

    play(main)


def test_what_was_said_before_a_cut_is_kept(way: str) -> None:
    async def main() -> None:
        with FakeGemini([[reasoning("Let me see."), text("Half "), stall()]]) as fake:
            agent = Agent("Tester", model(fake))
            async with agent.start("go") as run:
                await until(lambda: bool(run.phase == "streaming") and bool(fake.served[0].state == "stalled"))
                run.cancel()
                result = await run.result()
            asked = result.usage.input_tokens
            assert (result.usage.reasoning_tokens, result.usage.estimated) == (3, True)
            assert asked is not None
            assert asked > 20  # the fake counts the whole body, our estimate the text alone

    play(main)


def test_usage_that_can_not_be_read() -> None:
    async def main() -> None:
        result = await broken([event(b'{"usageMetadata": {"promptTokenCount": "many"}}'), HALF, finish("STOP")])
        assert result.content == "Half an "

    play(main)


# -- errors in the stream ---------------------------------------------------------------------------------------------

ERROR = b'{"error": {"code": 503, "message": "Overloaded.", "status": "UNAVAILABLE"}}'
BARE = b'[{\n  "error": {\n    "code": 503,\n    "message": "Overloaded.",\n    "status": "UNAVAILABLE"\n  }\n}\n]\n'


@pytest.mark.parametrize("data", [b"data: %b\n\n" % ERROR, ERROR, BARE], ids=["event", "line", "list"])
@pytest.mark.parametrize("split", [None, 5])
def test_an_error_in_the_stream(data: bytes, split: int | None) -> None:
    async def main() -> None:
        pieces = [data] if split is None else [data[n : n + split] for n in range(0, len(data), split)]
        result = await broken([HALF, *map(raw, pieces), end()])
        assert type(result.error) is ModelError
        assert "Overloaded." in str(result.error)
        assert (result.error.code, result.error.status, result.error.retryable) == ("UNAVAILABLE", 503, True)
        assert result.content == "Half an "

    play(main)


def test_the_end_of_a_quota_of_a_day_is_final() -> None:
    quota = b'{"violations": [{"quotaId": "GenerateRequestsPerDayPerProjectPerModel"}]}'
    error = b'{"error": {"code": 429, "message": "No more.", "status": "RESOURCE_EXHAUSTED", "details": [%b]}}' % quota
    with FakeGemini([[event(error), end()], [text("Fine.")]]) as fake:
        result = Agent("Tester", model(fake), retry=QUICK).run("go")
        assert isinstance(result.error, RateLimitError)
        assert not result.error.retryable
        assert len(fake.requests) == 1


def test_an_error_before_anything_was_shown_is_tried_again(way: str) -> None:
    async def main() -> None:
        with FakeGemini([[event(ERROR), end()], [text("Fine.")]]) as fake:
            result = await Agent("Tester", model(fake), retry=QUICK).invoke_async("go")
            assert result.content == "Fine.", result.error
            assert len(fake.served) == 2

    play(main)

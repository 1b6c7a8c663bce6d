# SPDX-License-Identifier: Apache-2.0
"""How large results and events may be: what is too large is refused with words that the model can use."""

from __future__ import annotations

import math
from typing import Any

import pytest

from andon import Agent, CancelCause, ConfigurationError, Event, RunEvent, RunStatus, Runtime, ToolContext, tool
from andon.core.journal import Journal
from andon.models.scripted import Burst, Call, ScriptedModel, Stall
from andon.testing import probe
from tests.support import play


def agent(*turns: Any, **limits: Any) -> Agent:
    @tool
    async def read(size: int, fails: bool = False) -> str:
        if fails:
            raise ValueError("é" * size)
        return "é" * size  # two bytes each

    @tool
    def read_in_thread(size: int) -> str:
        return "x" * size

    @tool
    async def ask(size: int, ctx: ToolContext) -> str:
        return str(ctx.interrupt("Which?", ["é" * size]))

    model = ScriptedModel(*turns, then="OK.")
    return Agent("Helper", model, tools=[read, read_in_thread, ask], runtime=Runtime(**limits))


@pytest.mark.parametrize(("name", "fits", "bytes"), [("read", 50, 2), ("read_in_thread", 100, 1)])
def test_a_result_that_is_too_large_is_an_error_result(name: str, fits: int, bytes: int) -> None:
    async def main() -> None:
        helper = agent([Call(name, {"size": fits}), Call(name, {"size": fits + 1}, id="big")], max_result_bytes=100)
        result = await helper.invoke_async("Go")
        assert result.status is RunStatus.completed
        small, big = result.messages[2].content
        assert small.status == "ok"  # type: ignore[union-attr]
        assert big.status == "error"  # type: ignore[union-attr]
        told = big.content  # type: ignore[union-attr]
        assert f"its result has {(fits + 1) * bytes} bytes, and may have 100" in told
        assert "ran to its end" in told

    play(main)


def test_without_a_limit_of_ones_own_a_hundred_megabytes_are_refused() -> None:
    async def main() -> None:
        helper = agent([Call("read_in_thread", {"size": 100 * 2**20})])
        result = await helper.invoke_async("Go")
        (told,) = result.messages[2].content
        assert "has 104,857,600 bytes, and may have 1,048,576" in told.content  # type: ignore[union-attr]
        assert "x" * 100 not in str(result.messages)

    play(main)


def test_an_error_that_says_too_much_is_cut() -> None:
    async def main() -> None:
        helper = agent([Call("read", {"size": 10_000, "fails": True})], max_result_bytes=3000)
        result = await helper.invoke_async("Go")
        (told,) = result.messages[2].content
        text = told.content  # type: ignore[union-attr]
        assert text.startswith("ValueError: ééé")
        assert text.endswith("(cut here: it has 10,012 characters)")
        assert len(text.encode()) <= 3000

    play(main)


def test_a_question_that_is_too_large_is_not_asked() -> None:
    """It was stored with the run and its events, and sent to whoever read them, whatever its size."""

    async def main() -> None:
        helper = agent(Call("ask", {"size": 45}), Call("ask", {"size": 46}), max_result_bytes=100)
        asked = await helper.invoke_async("Go")
        assert asked.status is RunStatus.paused
        result = await helper.continue_run(asked.run_id, answers={asked.interrupts[0].id: "This one."})
        assert result.status is RunStatus.completed
        (small,), (big,) = (message.content for message in result.messages if message.role == "tool")
        assert small.content == "This one."  # type: ignore[union-attr]
        assert big.status == "error"  # type: ignore[union-attr]
        told = "its question has 102 bytes, and may have 100, so no person was asked"
        assert told in big.content  # type: ignore[union-attr]

    play(main)


def test_zero_sets_no_limit() -> None:
    async def main() -> None:
        result = await agent([Call("read", {"size": 3_000_000})], max_result_bytes=0).invoke_async("Go")
        assert len(result.messages[2].content[0].content) == 3_000_000  # type: ignore[union-attr]

    play(main)


def test_a_run_whose_results_are_too_large_together_is_cancelled() -> None:
    async def main() -> None:
        turns = [Call("read_in_thread", {"size": 10_000})] * 20
        async with agent(*turns, max_event_bytes=100_000).start("Go") as run:
            result = await run.result()
            assert result.status is RunStatus.cancelled
            assert result.receipt is not None
            assert result.receipt.cause is CancelCause.budget
            assert "events of 100,000 bytes" in str(result.receipt.reason)
            done = [event for event in probe(run).events if event.event is RunEvent.tool_call_completed]
            assert 7 <= len(done) <= 10

    play(main)


def test_a_run_that_writes_too_many_bytes_of_text_is_cancelled() -> None:
    async def main() -> None:
        helper = Agent(
            "Helper", ScriptedModel([Burst("x" * 1000, 5000), Stall()]), runtime=Runtime(max_event_bytes=10**6)
        )
        async with helper.start("Go") as run:
            result = await run.result()
            assert result.receipt is not None
            assert result.receipt.cause is CancelCause.budget

    play(main)


@pytest.mark.parametrize(("count", "size"), [(60, 5_000_000), (900, 300_000), (999, 50_000)])
def test_text_in_large_pieces_is_bounded_too(count: int, size: int) -> None:
    async def main() -> None:
        model = ScriptedModel([Burst("x" * size, count, every=1), Stall()])
        async with Agent("Helper", model, runtime=Runtime(max_event_bytes=10**7)).start("Go") as run:
            result = await run.result()
            assert result.receipt is not None
            assert result.receipt.cause is CancelCause.budget
            assert len(result.content) <= 10**7 + 65_536 + 2 * size

    play(main)


def test_text_that_is_shown_for_another_run_is_bounded_too() -> None:
    async def main() -> None:
        journal = Journal("r", "s", "a")
        looks: list[int] = []

        def look() -> float:
            looks.append(len(journal.events))
            return math.inf

        journal.limit(math.inf, look)
        for _ in range(10):
            journal.relay(Event(RunEvent.run_content, "below", "s", "b", 1, 0.0, "x" * 30_000))
        assert looks == [3, 6, 9]

    play(main)


@pytest.mark.parametrize("name", ["max_result_bytes", "max_event_bytes", "abandoned_user_threads"])
def test_limits_that_mean_nothing_are_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=name):
        Runtime(**{name: -1})  # type: ignore[arg-type]

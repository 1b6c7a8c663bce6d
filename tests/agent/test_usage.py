# SPDX-License-Identifier: Apache-2.0
"""Token usage: what the provider said, an estimate for what it had no chance to say, and unknown is not zero."""

from __future__ import annotations

import asyncio

import pytest

from andon import RunEvent, RunStatus, Usage, tool
from andon.errors import ModelError
from andon.models.base import ModelRequest, Sink
from andon.models.scripted import Call, Fail, Say, Spend, Think, Turn
from tests.support import Flag, Silence, check_cancelled, cut, forever, make, play, read_all

PROMPT = "x" * 40  # ten tokens, at four characters each


@tool
async def echo(text: str) -> str:
    return text


# -- of runs that end by themselves -----------------------------------------------------------------------------------


def test_what_the_provider_said() -> None:
    agent = make(["Hello.", Spend(Usage(10, 5, 3, 2))])
    assert agent.run("go").usage == Usage(10, 5, 3, 2, estimated=False)


def test_the_turns_are_summed() -> None:
    agent = make(
        [Call("echo", {"text": "x"}), Spend(Usage(10, 5, 3, 2))], ["Done.", Spend(Usage(20, 7, 0, 0))], tools=[echo]
    )
    assert agent.run("go").usage == Usage(30, 12, 3, 2, estimated=False)


def test_a_later_report_replaces_an_earlier_one() -> None:
    agent = make([Spend(Usage(10, 1)), "Hello.", Spend(Usage(10, 5))])
    assert agent.run("go").usage == Usage(10, 5)


def test_unknown_is_not_zero() -> None:
    usage = make("Hello.").run("go").usage
    assert usage.input_tokens is None
    assert usage.output_tokens is None


def test_one_unknown_turn_makes_the_sum_unknown() -> None:
    agent = make([Call("echo", {"text": "x"}), Spend(Usage(10, 5))], "Done.", tools=[echo])
    assert agent.run("go").usage.output_tokens is None


def test_it_is_on_the_terminal_event_and_in_the_record() -> None:
    async def main() -> None:
        agent = make(["Hello.", Spend(Usage(10, 5))])
        async with agent.start("go") as run:
            events = await read_all(run)
            result = await run.result()
        assert events[-1].usage == result.usage == Usage(10, 5)
        assert [event for event in events[:-1] if event.usage is not None] == []
        assert agent.runtime.store is not None
        record = await agent.runtime.store.find(run.run_id)
        assert record is not None
        assert record.usage == result.usage

    play(main)


# -- of cut runs ------------------------------------------------------------------------------------------------------


def test_nothing_sent_is_zero_and_no_estimate() -> None:
    async def main() -> None:
        ended = await cut(make(), None, prompt=PROMPT)
        assert ended.result.usage == Usage(0, 0, 0, 0, estimated=False)

    play(main)


def test_cut_before_the_first_event() -> None:
    async def main() -> None:
        silence = Silence()
        ended = await cut(make([silence]), silence.reached, prompt=PROMPT)
        assert (ended.result.usage.input_tokens, ended.result.usage.output_tokens) == (10, 0)
        assert ended.result.usage.estimated
        assert ended.result.usage.cached_tokens is None  # unknown

    play(main)


def test_cut_in_the_text() -> None:
    async def main() -> None:
        silence = Silence()
        agent = make([Think("t" * 8, None), Say("y" * 20), silence])
        ended = await cut(agent, silence.reached, prompt=PROMPT)
        check_cancelled(ended, phase="streaming")
        assert (ended.result.usage.input_tokens, ended.result.usage.output_tokens) == (10, 7)
        assert ended.result.usage.estimated

    play(main)


def test_instructions_and_history_are_part_of_the_estimate() -> None:
    async def main() -> None:
        silence = Silence()
        agent = make("a" * 8, [silence], instructions="i" * 12)
        await agent.invoke_async("p" * 4)
        ended = await cut(agent, silence.reached, prompt=PROMPT)
        assert ended.result.usage.input_tokens == (12 + 4 + 8 + 40) // 4

    play(main)


def test_what_the_provider_said_before_the_cut_is_kept() -> None:
    async def main() -> None:
        silence = Silence()
        agent = make([Spend(input_tokens=123, cached_tokens=100, output_tokens=1), Say("y" * 40), silence])
        ended = await cut(agent, silence.reached, prompt=PROMPT)
        usage = ended.result.usage
        assert (usage.input_tokens, usage.cached_tokens) == (123, 100)
        assert usage.output_tokens is not None
        assert usage.output_tokens >= 10  # it had said 1 before the text came
        assert usage.estimated

    play(main)


def test_what_the_provider_says_while_it_is_cut_is_welcome() -> None:
    class Honest:
        """A model that is told the price when it hangs up."""

        id = "honest"
        reached = Flag()

        async def stream(self, request: ModelRequest, sink: Sink) -> None:
            sink.text("Half a ")
            self.reached.set()
            try:
                await forever()
            finally:
                sink.usage(Usage(50, 20))

    async def main() -> None:
        agent = make()
        agent.model = Honest()
        ended = await cut(agent, Honest.reached)
        assert (ended.result.usage.input_tokens, ended.result.usage.output_tokens) == (50, 20)
        assert ended.result.content == "Half a "

    play(main)


def test_a_cut_turn_is_added_to_the_finished_ones() -> None:
    async def main() -> None:
        silence = Silence()
        agent = make(
            [Call("echo", {"text": "x"}), Spend(Usage(10, 5))], [Spend(input_tokens=30), silence], tools=[echo]
        )
        ended = await cut(agent, silence.reached)
        assert ended.result.usage.input_tokens == 40
        assert ended.result.usage.output_tokens == 5
        assert ended.result.usage.estimated

    play(main)


def test_cut_in_a_tool_nothing_is_estimated() -> None:
    """The model's call had ended, and its price was known."""

    async def main() -> None:
        started = Flag()

        @tool
        async def slow() -> str:
            started.set()
            await forever()

        agent = make([Call("slow", id="c"), Spend(Usage(10, 5, 0, 0))], tools=[slow])
        ended = await cut(agent, started)
        assert ended.result.usage == Usage(10, 5, 0, 0, estimated=False)

    play(main)


# -- of failed ones ---------------------------------------------------------------------------------------------------


def test_a_failure_in_the_middle_has_an_estimate_too() -> None:
    agent = make([Say("y" * 20), Fail(ModelError("gone"))])
    result = agent.run(PROMPT)
    assert result.status is RunStatus.error
    assert (result.usage.input_tokens, result.usage.output_tokens) == (10, 5)
    assert result.usage.estimated


def test_a_retry_counts_what_was_said() -> None:
    async def main() -> None:
        agent = make(
            [Spend(Usage(7, 0, 0, 0)), Fail(ModelError("busy", retryable=True, retry_after=0))],
            ["Hello.", Spend(Usage(10, 5, 0, 0))],
        )
        async with agent.start("go") as run:
            result = await run.result()
            kinds = [event.event for event in await read_all(run)]
        assert result.status is RunStatus.completed
        assert result.usage == Usage(17, 5, 0, 0)
        assert kinds == [RunEvent.run_started, RunEvent.model_retry, RunEvent.run_content, RunEvent.run_completed]

    play(main)


# -- the numbers themselves -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "total"),
    [
        (Usage(1, 2, 3, 4), Usage(10, 20, 30, 40), Usage(11, 22, 33, 44)),
        (Usage(1, 2), Usage(None, 2), Usage(None, 4)),
        (Usage(1, 2, estimated=True), Usage(1, 2), Usage(2, 4, estimated=True)),
    ],
)
def test_adding(one: Usage, other: Usage, total: Usage) -> None:
    assert one + other == total
    assert other + one == total


def test_runs_at_once_do_not_mix() -> None:
    async def main() -> None:
        turns: list[Turn] = [[f"{number}", Spend(Usage(number, number))] for number in range(20)]
        agent = make(*turns)
        results = await asyncio.gather(*(agent.invoke_async("go", session_id=str(number)) for number in range(20)))
        for result in results:
            assert result.usage == Usage(int(result.content), int(result.content))

    play(main)

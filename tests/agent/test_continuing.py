# SPDX-License-Identifier: Apache-2.0
"""After a cut: going on from there as a new run, or putting the session back to what it was."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from andon import Agent, Phase, RunStatus, Runtime, tool
from andon.errors import (
    AnswersError,
    ConfigurationError,
    ModelError,
    NotContinuableError,
    RunIdTakenError,
    SessionBusyError,
    UnknownRunError,
)
from andon.messages import Message, Text
from andon.models.scripted import Call, Fail
from andon.store import open_store
from andon.store.memory import MemoryStore
from andon.testing import probe, validate
from tests.support import Flag, Silence, asked, cut, forever, make, paused, play, record_of, until
from tests.support.till import DELETE, Till


class Three:
    """One call that is done, one that is cut, one that never starts."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.reached = Flag()
        self.cut = True

    def agent(self, *, idempotent: bool) -> Agent:
        @tool
        async def done() -> str:
            self.ran.append("done")
            return "it is done"

        @tool(idempotent=idempotent)
        async def stuck() -> str:
            self.ran.append("stuck")
            if self.cut:
                self.reached.set()
                await forever()
            return "it went well"

        @tool
        async def later() -> str:
            self.ran.append("later")
            return "better late"

        calls = [Call("done", id="a"), Call("stuck", id="b"), Call("later", id="c")]
        return make(calls, "All done.", tools=[done, stuck, later], parallel_tools=False)


@pytest.mark.parametrize("idempotent", [True, False])
def test_going_on_in_the_middle_of_tools(idempotent: bool) -> None:
    async def main() -> None:
        three = Three()
        agent = three.agent(idempotent=idempotent)
        ended = await cut(agent, three.reached)
        three.cut = False
        result = await agent.continue_run(ended.result.run_id)
        assert result.status is RunStatus.completed
        assert result.run_id != ended.result.run_id
        assert (await record_of(agent, result.run_id)).continues == ended.result.run_id
        # What was done is not repeated; what never started is done now; of the third nobody knows.
        assert three.ran == ["done", "stuck", *(["stuck"] if idempotent else []), "later"]
        roles = [message.role for message in result.messages]
        assert roles == ["user", "assistant", "tool", "assistant"]
        told = {each.call_id: each.content for each in result.messages[2].tool_results}
        assert (told["a"], told["c"]) == ("it is done", "better late")
        assert ("it went well" if idempotent else "outcome is unknown") in told["b"]
        assert validate(result.messages) == []
        assert agent.messages == result.messages

    play(main)


def test_going_on_in_the_middle_of_a_sentence() -> None:
    async def main() -> None:
        silence = Silence()
        agent = make(["Once upon ", silence], "a time.")
        ended = await cut(agent, silence.reached)
        result = await agent.continue_run(ended.result.run_id)
        assert result.status is RunStatus.completed
        assert result.messages[1].content == [Text("Once upon ")]
        assert result.messages[2].role == "user"
        assert result.messages[3].text == "a time."
        assert validate(result.messages) == []

    play(main)


def test_going_on_where_nothing_was_said() -> None:
    async def main() -> None:
        silence = Silence()
        agent = make(silence, "Here I am.")
        ended = await cut(agent, silence.reached)
        result = await agent.continue_run(ended.result.run_id)
        assert [message.text for message in result.messages] == ["go", "Here I am."]

    play(main)


def test_going_on_after_a_failure() -> None:
    agent = make([Fail(ModelError("overloaded"))], "Here I am.")
    failed = agent.run("go")
    assert failed.status is RunStatus.error
    result = asyncio.run(agent.continue_run(failed.run_id))
    assert [message.text for message in result.messages] == ["go", "Here I am."]


def test_going_on_twice_and_being_cut_again() -> None:
    async def main() -> None:
        first, second = Silence(), Silence()
        agent = make(["One. ", first], ["Two. ", second], "Three.")
        ended = await cut(agent, first.reached)
        run = await agent.resume_run(ended.result.run_id)
        await second.reached.arrived()
        await run.cancel_and_wait()
        again = await run.result()
        assert again.status is RunStatus.cancelled
        assert validate(again.messages) == []
        with pytest.raises(NotContinuableError):
            await agent.continue_run(ended.result.run_id)  # it is part of the later one now
        result = await agent.continue_run(run.run_id)
        assert [message.text for message in result.messages if message.role == "assistant"] == [
            "One. ",
            "Two. ",
            "Three.",
        ]
        assert validate(result.messages) == []

    play(main)


def test_being_cut_again_in_the_same_tools() -> None:
    """One of the calls has its result from the first time, and keeps it through the second and the third."""

    async def main() -> None:
        three = Three()
        agent = three.agent(idempotent=True)
        ended = await cut(agent, three.reached)
        three.reached = Flag()
        run = await agent.resume_run(ended.result.run_id)
        await three.reached.arrived()
        receipt = await run.cancel_and_wait()
        assert receipt is not None
        assert {each.call_id: each.outcome for each in receipt.tools} == {"b": "cut", "c": "not_started"}
        again = await run.result()
        told = {each.call_id: each.content for each in again.messages[2].tool_results}
        assert told["a"] == "it is done"
        assert "outcome is unknown" in told["b"]
        assert again.message.text == "Cancelled by user"
        assert validate(again.messages) == []
        three.cut = False
        result = await agent.continue_run(run.run_id)
        assert result.status is RunStatus.completed
        assert [each.content for each in result.messages[2].tool_results] == [
            "it is done",
            "it went well",
            "better late",
        ]
        assert three.ran == ["done", "stuck", "stuck", "stuck", "later"]

    play(main)


def test_a_cancel_before_it_has_gone_on_leaves_all_as_it_was() -> None:
    async def main() -> None:
        silence, other = Silence(), Silence()
        agent = make(["Once upon ", silence], other, "a time.")
        ended = await cut(agent, silence.reached, session_id="s")
        before = list(ended.result.messages)
        async with agent.start("other", session_id="s") as holder:
            await other.reached.arrived()
            with pytest.raises(NotContinuableError):
                # Later runs build on it as soon as they are in the store; until then the session is busy.
                await agent.rollback_run(holder.run_id)
            with pytest.raises(SessionBusyError):
                await agent.continue_run(ended.result.run_id)
            run = await agent.resume_run(ended.result.run_id, on_busy="queue")
            run.cancel()
            result = await run.result()
            assert result.status is RunStatus.cancelled
            assert len(asked(agent)) == 2
        after = await agent.invoke_async("and now?", session_id="s")
        assert after.messages[: len(before)] == before

    play(main)


def test_what_can_not_be_continued() -> None:
    async def main() -> None:
        agent = make("Fine.", "Fine.")
        done = await agent.invoke_async("go")
        with pytest.raises(NotContinuableError, match="send another prompt"):
            await agent.continue_run(done.run_id)
        with pytest.raises(UnknownRunError):
            await agent.continue_run("nobody")
        with pytest.raises(UnknownRunError):
            await agent.rollback_run("nobody")
        other = Agent("Other", agent.model, runtime=agent.runtime)
        with pytest.raises(UnknownRunError):
            await other.continue_run(done.run_id)

    play(main)


# -- the new run's id -------------------------------------------------------------------------------------------------


def test_the_new_run_has_the_id_that_was_given_and_a_second_call_makes_no_other_run() -> None:
    async def main() -> None:
        first, second = Silence(), Silence()
        agent = make(["One. ", first], ["Two. ", second], "Three.")
        cut_id = (await cut(agent, first.reached)).result.run_id
        run = await agent.resume_run(cut_id, new_run_id="n")
        assert run.run_id == "n"
        await second.reached.arrived()
        with pytest.raises(RunIdTakenError):  # while it goes on
            await agent.continue_run(cut_id, new_run_id="n")
        assert agent.runtime.runs == [run]
        await run.cancel_and_wait()
        for _ in range(2):  # and when it has ended
            with pytest.raises(RunIdTakenError, match="'n'"):
                await agent.continue_run(cut_id, new_run_id="n")
        assert (await record_of(agent, "n")).continues == cut_id
        with pytest.raises(NotContinuableError):  # another id is no retry
            await agent.continue_run(cut_id, new_run_id="m")
        with pytest.raises(NotContinuableError):
            await agent.continue_run(cut_id)
        assert (await agent.continue_run("n", new_run_id="m")).run_id == "m"

    play(main)


def test_an_id_that_is_taken() -> None:
    async def main() -> None:
        silence = Silence()
        agent = make("Hello.", ["One. ", silence], "Two.")
        await agent.invoke_async("Hi", run_id="other", session_id="elsewhere")
        ended = await cut(agent, silence.reached)
        for taken in ("other", ended.result.run_id):
            with pytest.raises(RunIdTakenError, match=repr(taken)):
                await agent.continue_run(ended.result.run_id, new_run_id=taken)
        for odd in ("", 5):
            with pytest.raises(ConfigurationError, match="new_run_id"):
                await agent.continue_run(ended.result.run_id, new_run_id=odd)  # type: ignore[arg-type]
        assert (await agent.continue_run(ended.result.run_id, new_run_id="n")).status is RunStatus.completed

    play(main)


def test_a_paused_run_keeps_its_id() -> None:
    async def main() -> None:
        till = Till()
        agent = make(DELETE, "Done.", tools=till.tools)
        run, result = await paused(agent)
        answers = {result.interrupts[0].id: True}
        with pytest.raises(ConfigurationError, match="goes on under its own id, not as 'n'"):
            await agent.continue_run(run.run_id, answers, new_run_id="n")
        assert (probe(run).is_paused, till.did) == (True, [])
        done = await agent.continue_run(run.run_id, answers, new_run_id=run.run_id)
        assert (done.run_id, done.status) == (run.run_id, RunStatus.completed)
        with pytest.raises(NotContinuableError):
            await agent.continue_run(run.run_id, answers, new_run_id=run.run_id)

    play(main)


def test_answers_to_a_run_that_asked_nothing() -> None:
    async def main() -> None:
        silence = Silence()
        agent = make(silence, "Fine.")
        ended = await cut(agent, silence.reached)
        with pytest.raises(AnswersError):
            await agent.continue_run(ended.result.run_id, answers={"x": True})

    play(main)


def test_later_runs_build_on_it() -> None:
    async def main() -> None:
        silence = Silence()
        agent = make(silence, "Fine.")
        ended = await cut(agent, silence.reached)
        later = await agent.invoke_async("something else")
        before = agent.messages
        for way in (agent.continue_run, agent.rollback_run):
            with pytest.raises(NotContinuableError, match="later runs build on it"):
                await way(ended.result.run_id)
        assert agent.messages == before
        await agent.rollback_run(later.run_id)
        await agent.rollback_run(ended.result.run_id)
        assert agent.messages == []

    play(main)


def texts(messages: list[Message]) -> list[str]:
    return [message.text for message in messages]


def test_rolling_back() -> None:
    async def main() -> None:
        silence = Silence()
        agent = make("One.", ["Two", silence], "Three.")
        await agent.invoke_async("first")
        ended = await cut(agent, silence.reached)
        await agent.rollback_run(ended.result.run_id)
        assert texts(agent.messages) == ["first", "One."]
        record = await record_of(agent, ended.result.run_id)
        assert record.status is RunStatus.cancelled
        assert record.receipt == ended.result.receipt
        with pytest.raises(NotContinuableError):
            await agent.rollback_run(ended.result.run_id)
        with pytest.raises(NotContinuableError):
            await agent.continue_run(ended.result.run_id)
        result = await agent.invoke_async("third")
        assert texts(result.messages) == ["first", "One.", "third", "Three."]

    play(main)


def test_rolling_back_a_run_that_had_gone_on_brings_back_what_it_had_taken_up() -> None:
    async def main() -> None:
        silence = Silence()
        agent = make(["Once upon ", silence], "a time.", "again a time.")
        ended = await cut(agent, silence.reached)
        result = await agent.continue_run(ended.result.run_id)
        await agent.rollback_run(result.run_id)
        assert agent.messages == ended.result.messages
        again = await agent.continue_run(ended.result.run_id)
        assert again.messages[-1].text == "again a time."

    play(main)


class Slow(MemoryStore):
    """A store that takes its time to take a run back, before or after it has done so."""

    def __init__(self, *, done: bool = False) -> None:
        super().__init__()
        self.done, self.asked, self.go_on = done, Flag(), Flag()

    async def rollback(self, run_id: str) -> None:
        if self.done:
            await super().rollback(run_id)
        self.asked.set()
        await self.go_on.arrived()
        if not self.done:
            await super().rollback(run_id)


@pytest.mark.parametrize("done", [True, False])
def test_a_prompt_that_comes_while_a_run_is_taken_back_is_answered_without_it(done: bool) -> None:
    async def main() -> None:
        store = Slow(done=done)
        agent = make("One.", "Two.", runtime=Runtime(store))
        first = await agent.invoke_async("first")
        rollback = asyncio.create_task(agent.rollback_run(first.run_id))
        await store.asked.arrived()
        async with agent.start("second") as run:
            await until(lambda: run.phase is Phase.loading)
            store.go_on.set()
            result = await run.result()
        await rollback
        assert texts(asked(agent)[-1].messages) == ["second"]
        assert texts(result.messages) == texts(agent.messages) == ["second", "Two."]

    play(main)


def test_a_prompt_that_waits_for_a_run_to_be_taken_back_can_be_cancelled() -> None:
    async def main() -> None:
        store = Slow()
        agent = make("One.", "Two.", runtime=Runtime(store))
        first = await agent.invoke_async("first")
        rollback = asyncio.create_task(agent.rollback_run(first.run_id))
        await store.asked.arrived()
        async with agent.start("second") as run:
            await until(lambda: run.phase is Phase.loading)
            receipt = await run.cancel_and_wait()
        assert receipt is not None
        assert receipt.phase is Phase.loading
        store.go_on.set()
        with pytest.raises(NotContinuableError, match="later runs build on it"):  # what was said meanwhile is kept
            await rollback
        assert texts(agent.messages) == ["first", "One.", "second", "Cancelled by user"]
        assert (await agent.invoke_async("third")).content == "Two."

    play(main)


@pytest.mark.parametrize("paused", [True, False])
def test_a_run_in_flight_is_not_rolled_back(paused: bool) -> None:
    async def main() -> None:
        silence = Silence()

        @tool(approval=True)
        async def delete() -> str:
            return "deleted"

        turn: Any = Call("delete") if paused else silence
        agent = make(turn, tools=[delete])
        async with agent.start("go") as run:
            if paused:
                await run.result()
            else:
                await silence.reached.arrived()
            with pytest.raises(NotContinuableError, match="cancel it"):
                await agent.rollback_run(run.run_id)
        agent.cancel()

    play(main)


def test_a_call_that_waited_for_approval_is_asked_about_again() -> None:
    async def main() -> None:
        ran: list[str] = []

        @tool(approval=True)
        async def delete() -> str:
            ran.append("delete")
            return "deleted"

        agent = make(Call("delete"), "Done.", tools=[delete])
        paused = await agent.invoke_async("go")
        (run,) = agent.runtime.runs
        agent.cancel()
        await probe(run).settled()
        again = await agent.continue_run(paused.run_id)
        assert again.status is RunStatus.paused
        done = await agent.continue_run(again.run_id, {again.interrupts[0].id: True})
        assert (done.status, ran) == (RunStatus.completed, ["delete"])

    play(main)


def test_a_call_that_was_cancelled_alone_stays_cancelled() -> None:
    """Whoever goes on with the run did not take that back."""

    async def main() -> None:
        three = Three()
        agent = three.agent(idempotent=True)
        async with agent.start("go") as run:
            await three.reached.arrived()
            assert run.cancel_tool("c")
            run.cancel()
        three.cut = False
        result = await agent.continue_run(run.run_id)
        assert result.status is RunStatus.completed
        assert three.ran == ["done", "stuck", "stuck"]

    play(main)


def test_what_a_tool_says_is_not_taken_for_what_became_of_it() -> None:
    async def main() -> None:
        calls: list[str] = []
        reached = Flag()

        @tool(idempotent=True)
        async def quote() -> str:
            calls.append("quote")
            raise ValueError("This call was cancelled before it started.")

        @tool
        async def stuck() -> str:
            reached.set()
            await forever()

        agent = make([Call("quote"), Call("stuck")], "Done.", tools=[quote, stuck], parallel_tools=False)
        ended = await cut(agent, reached)
        result = await agent.continue_run(ended.result.run_id)
        assert (result.status, calls) == (RunStatus.completed, ["quote"])

    play(main)


def test_a_run_that_another_process_has_at_work_is_not_to_be_gone_on_with(tmp_path: Path) -> None:
    async def main() -> None:
        silence = Silence()
        here, there = (
            make([silence], name="Same", runtime=Runtime(open_store(f"sqlite:///{tmp_path / 'andon.db'}")))
            for _ in range(2)
        )
        async with here.start("go") as run:
            await silence.reached.arrived()
            with pytest.raises(NotContinuableError, match="is running: wait for its end, or cancel it"):
                await there.continue_run(run.run_id)
        for agent in (here, there):
            await agent.runtime.close()

    play(main)

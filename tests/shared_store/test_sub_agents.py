# SPDX-License-Identifier: Apache-2.0
"""Sub-agents without a runtime of their own: their runs are where the run is that calls them, and survive with it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from andon import Agent, CancelCause, CancelOutcome, Event, RunEvent, RunStatus, Runtime, ToolOutcome, tool
from andon.agent.hooks import BeforeTool
from andon.core.receipt import CancelRequest
from andon.core.records import RequestKey, RunRecord
from andon.core.selection import Selection
from andon.core.shared.store import Lease, Taken
from andon.errors import SetupError, StoreError, SubAgentLostError
from andon.messages import Message, ToolResult
from andon.models.scripted import Call, ScriptedModel, Turn
from andon.store.sql import SQLStore
from andon.testing import probe
from tests.shared_store.helpers import LONG, check_stored, ended, found, leased, on, runtimes, store_of, stored_events
from tests.support import Flag, paused, play, until
from tests.support.till import DELETE, PAY, Till

ASK = Call("young", {"prompt": "look"}, id="c")


def family(runtime: Runtime, tools: list[Any], child: Turn, *parent: Turn) -> tuple[Agent, Agent]:
    """A parent on this runtime, and its child, which brought none."""
    young = Agent("Young", ScriptedModel(*child) if isinstance(child, tuple) else ScriptedModel(child), tools=tools)
    return on(runtime, *parent, name="Old", tools=[young.as_tool()]), young


def yes(interrupts: Any) -> dict[str, Any]:
    return {each.id: True for each in interrupts}


def test_a_child_is_in_its_parents_store(url: str) -> None:
    async def main() -> None:
        till = Till()
        async with runtimes(url, 1) as (runtime,):
            old, young = family(runtime, till.tools, DELETE, ASK)
            await paused(old, run_id="r", session_id="s", user_id="ann")
            assert sorted(run.run_id for run in runtime.runs) == ["r", "r.c"]
            assert young.runtime.runs == []
            listed = await store_of(runtime).list_runs(Selection(statuses=(RunStatus.paused,)), 10)
            assert {(each.run_id, each.session.agent_id, each.session.user_id) for each in listed} == {
                ("r", "old", "ann"),
                ("r.c", "young", "ann"),
            }
            assert (await found(runtime, "r.c")).parent_run_id == "r"
            assert await runtime.cancel(run_id="r.c") == {"r.c": CancelOutcome.requested}
            run = runtime.run("r")
            assert run is not None
            assert run.status is RunStatus.paused, "a cancel of the child alone leaves the parent to its person"

    play(main)


def test_a_child_that_brought_a_runtime_stays_there(url: str) -> None:
    async def main() -> None:
        async with runtimes(url, 1) as (runtime,):
            young = on(own := Runtime(), DELETE, name="Young", tools=Till().tools)
            old = on(runtime, ASK, name="Old", tools=[young.as_tool()])
            _, result = await paused(old, run_id="r", session_id="s")
            assert [run.run_id for run in own.runs] == ["r.c"]
            assert [run.run_id for run in runtime.runs] == ["r"]
            assert (await old.continue_run("r", yes(result.interrupts))).status is RunStatus.completed

    play(main)


def test_parallel_calls_of_one_child_are_answered_after_a_restart(url: str) -> None:
    async def main() -> None:
        till = Till()
        calls = [Call("young", {"prompt": "one"}, id="a"), Call("young", {"prompt": "two"}, id="b")]
        async with runtimes(url, 1) as (before,):
            old, _ = family(before, till.tools, (DELETE, PAY), calls)
            _, result = await paused(old, run_id="r", session_id="s")
            assert sorted(each.name for each in result.interrupts) == ["delete", "pay?"]
            sessions = {run.session_id for run in before.runs}
            assert len(sessions) == 3, "each call has a session of its own"
        async with runtimes(url, 1) as (after,):
            old, young = family(after, till.tools, ("Done.", "Done."), "So.")
            young.model = ScriptedModel(then="Done.")
            result = await old.continue_run("r", yes(result.interrupts))
            assert (result.status, result.content) == (RunStatus.completed, "So.")
            assert [each.content for each in result.messages[2].tool_results] == ["Done.", "Done."]
            assert sorted(map(str, till.did)) == ["True", "all"]
            for run_id in ("r", "r.a", "r.b"):
                await check_stored(after, run_id, RunStatus.completed)

    play(main)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_child_can_be_answered_and_cancelled_by_its_own_agent(url: str, restarted: bool) -> None:
    """The agent brought no runtime. It knows on which runtimes it is used."""

    async def main() -> None:
        till = Till()
        async with runtimes(url, 2) as (before, after):
            old, young = family(before, till.tools, DELETE, ASK)
            _, result = await paused(old, run_id="r", session_id="s")
            if restarted:
                old, young = family(after, till.tools, "Gone.", "So.")
            record = await found(before, "r.c")
            below = await young.continue_run("r.c", yes(record.interrupts))
            assert (below.status, till.did) == (RunStatus.completed, ["all"])
            assert (await found(before, "r.c")).parent_run_id == "r"
            if not restarted:
                assert young.cancel_run("r.c") is CancelOutcome.already_finished
            assert young.cancel_run("no such run") is CancelOutcome.unknown
            result = await old.continue_run("r", yes(result.interrupts))
            assert result.status is RunStatus.completed
            assert result.messages[2].tool_results == [ToolResult("c", "young", below.content, "ok")]
            assert till.did == ["all"]

    play(main)


def test_a_child_can_be_cancelled_by_its_own_agent(url: str) -> None:
    async def main() -> None:
        async with runtimes(url, 1) as (runtime,):
            old, young = family(runtime, Till().tools, DELETE, ASK)
            await paused(old, run_id="r", session_id="s")
            child = runtime.run("r.c")
            assert child is not None
            assert young.cancel_run("r") is CancelOutcome.unknown, "which is not its own"
            assert young.cancel_run("r.c", "not needed") is CancelOutcome.requested
            await probe(child).ended()
            await check_stored(runtime, "r.c", RunStatus.cancelled, CancelCause.user)
            again = await young.continue_run("r.c")
            assert again.status is RunStatus.paused, "it goes on where it was cut, and asks once more"
            assert (await found(runtime, again.run_id)).continues == "r.c"

    play(main)


def test_a_call_whose_child_is_gone_ends_the_run_as_an_error(url: str) -> None:
    async def main() -> None:
        till = Till()
        async with runtimes(url, 1) as (before,):
            old, _ = family(before, till.tools, (DELETE, DELETE), [ASK, Call("young", {"prompt": "too"}, id="d")])
            _, result = await paused(old, run_id="r", session_id="s")
            await _forget(before, "r.c")
        async with runtimes(url, 1) as (after,):
            old, _ = family(after, till.tools, "Gone.", "Never said.")
            result = await old.continue_run("r", yes(result.interrupts))
            assert result.status is RunStatus.error
            assert isinstance(result.error, SubAgentLostError)
            assert "'r.c' is not known any more" in str(result.error)
            assert "Never said." not in result.content
            record = await check_stored(after, "r", RunStatus.error)
            assert "What it had done until then is unknown" in (record.error or "")
            await check_stored(after, "r.d", RunStatus.completed)  # the other call came to its end first

    play(main)


async def _forget(runtime: Runtime, run_id: str) -> None:
    """It is cancelled, and then the database is cleared of all that has ended."""
    assert await runtime.cancel(run_id=run_id)
    await ended(runtime, run_id)
    while (
        await store_of(runtime).find(run_id) is not None
    ):  # a prune leaves out a session that is locked at that moment
        await store_of(runtime).prune(-LONG)


def test_a_child_of_a_memory_that_is_gone_ends_the_run_as_an_error(url: str) -> None:
    """It brought a runtime of its own, which did not survive the restart."""

    async def main() -> None:
        async with runtimes(url, 1) as (before,):
            young = on(Runtime(), DELETE, name="Young", tools=Till().tools)
            _, result = await paused(on(before, ASK, name="Old", tools=[young.as_tool()]), run_id="r", session_id="s")
        async with runtimes(url, 1) as (after,):
            young = on(Runtime(), "Gone.", name="Young", tools=Till().tools)
            old = on(after, "Never said.", name="Old", tools=[young.as_tool()])
            result = await old.continue_run("r", yes(result.interrupts))
            assert result.status is RunStatus.error
            assert isinstance(result.error, SubAgentLostError)
            await check_stored(after, "r", RunStatus.error)

    play(main)


@pytest.mark.parametrize("by_hand", [False, True], ids=["through those above", "the one in the middle first"])
def test_what_is_lost_two_generations_below_ends_all_above_it_as_errors(url: str, by_hand: bool) -> None:
    """The answer was given at the top, and reached nobody. No model may go on, and perhaps have it done again."""

    def family(runtime: Runtime, *turns: Turn) -> list[Agent]:
        young = on(Runtime(), turns[2], name="Young", tools=Till().tools)  # a memory that no restart survives
        middle = Agent("Middle", ScriptedModel(turns[1]), tools=[young.as_tool()])
        return [on(runtime, turns[0], name="Old", tools=[middle.as_tool()]), middle]

    async def main() -> None:
        async with runtimes(url, 1) as (before,):
            old, middle = family(before, Call("middle", {"prompt": "look"}, id="m"), ASK, DELETE)
            _, result = await paused(old, run_id="r", session_id="s")
        async with runtimes(url, 1) as (after,):
            old, middle = family(after, *["Never said."] * 3)
            if by_hand:
                asked = (await found(after, "r.m")).interrupts
                assert (await middle.continue_run("r.m", yes(asked))).status is RunStatus.error
            result = await old.continue_run("r", yes(result.interrupts))
            assert (result.status, result.content) == (RunStatus.error, "")
            assert isinstance(result.error, SubAgentLostError)
            assert "'r.m.c' is not known any more" in str(result.error)
            for run_id in ("r", "r.m"):
                await check_stored(after, run_id, RunStatus.error)

    play(main)


class Keyed(ScriptedModel):
    """A model whose key may be missing."""

    key = True

    def check_setup(self) -> None:
        if not self.key:
            raise SetupError("there is no key, says the test")


@pytest.mark.parametrize("restarted", [True, False])
def test_an_answer_to_a_sub_agent_that_is_not_set_up_is_not_used_up(url: str, restarted: bool) -> None:
    """After a deploy without its key, say. Whoever answers is told, and all of them wait on."""

    async def main() -> None:
        till, model, unused = Till(), Keyed(DELETE, "Gone."), Keyed()
        others = [Agent("Young", model, tools=till.tools).as_tool(), Agent("Unused", unused).as_tool()]
        middle = Agent("Middle", ScriptedModel(ASK, "I see."), tools=others)
        async with runtimes(url) as (before, after):
            runtime = after if restarted else before
            old = on(before, Call("middle", {"prompt": "look"}, id="m"), "So.", name="Old", tools=[middle.as_tool()])
            _, result = await paused(old, run_id="r", session_id="s")
            if restarted:
                await before.close()
                old.move_to(after)
            model.key = unused.key = False
            with pytest.raises(SetupError, match="there is no key"):
                await old.continue_run("r", yes(result.interrupts))
            for run_id in ("r", "r.m", "r.m.c"):
                assert (await found(runtime, run_id)).status is RunStatus.paused
            model.key = True  # the other one was not called: it may be without
            result = await old.continue_run("r", yes(result.interrupts))
            assert (result.status, result.content, till.did) == (RunStatus.completed, "So.", ["all"])

    play(main)


def test_a_child_that_is_at_work_elsewhere_is_waited_for(url: str) -> None:
    """Someone has answered it at another process, and it has not ended when its parent's answer comes."""

    async def main() -> None:
        working, go, did = Flag(), Flag(), list[str]()

        @tool(approval=True)
        async def pack() -> str:
            working.set()
            await go.arrived()
            did.append("packed")
            return "packed"

        async with runtimes(url, 3) as (first, second, third):
            old, _ = family(first, [pack], Call("pack"), ASK)
            _, result = await paused(old, run_id="r", session_id="s")
            _, young = family(second, [pack], "I have packed.")
            record = await found(second, "r.c")
            child = await young.resume_run("r.c", yes(record.interrupts))
            await working.arrived()
            old, _ = family(third, [pack], "Never said.", "So.")
            parent = await old.resume_run("r", yes(result.interrupts))
            worker = third.worker
            assert worker is not None
            await until(lambda: "r.c" in worker.link.news.run_ids)  # it waits for the child
            go.set()
            await probe(child).ended()
            result = await parent.result()
            assert (result.status, result.content, did) == (RunStatus.completed, "So.", ["packed"])
            assert result.messages[2].tool_results[0].content == "I have packed."

    play(main)


class Forgetful(SQLStore):
    """A store that can't be asked the first time that someone wants to go on with the child."""

    tries = 0

    async def take_up(
        self, run_id: str, owner: str, seconds: float, request_key: RequestKey | None = None
    ) -> Taken | None:
        if run_id == "r.c":
            self.tries += 1
            if self.tries == 1:
                raise StoreError("the database is away, says the test")
        return await super().take_up(run_id, owner, seconds, request_key)


def test_an_answer_waits_for_a_store_that_is_away(url: str) -> None:
    async def main() -> None:
        till = Till()
        async with runtimes(url, 1) as (before,):
            old, _ = family(before, till.tools, DELETE, ASK)
            _, result = await paused(old, run_id="r", session_id="s")
        store = Forgetful(url)
        after = Runtime(store, lease_seconds=LONG)
        old, _ = family(after, till.tools, "Gone.", "So.")
        result = await old.continue_run("r", yes(result.interrupts))
        assert (result.status, till.did) == (RunStatus.completed, ["all"])
        assert result.messages[2].tool_results == [ToolResult("c", "young", "Gone.", "ok")]
        assert store.tries > 1
        await after.close()

    play(main)


def test_an_answer_to_a_child_that_is_blocked_ends_the_run_as_an_error(url: str) -> None:
    """And the child with it: nobody would ever come for its question again."""

    async def main() -> None:
        till = Till()
        async with runtimes(url, 1) as (runtime,):
            old, _ = family(runtime, till.tools, DELETE, ASK)
            await paused(old, run_id="r", session_id="s")
        async with runtimes(url, 1) as (runtime,):
            old, _ = family(runtime, till.tools, "Gone.", "Never said.")
            await runtime.block("agent", "young")
            result = await old.continue_run("r", yes((await found(runtime, "r")).interrupts))
            assert result.status is RunStatus.error
            assert "blocked" in str(result.error).lower()
            await ended(runtime, "r.c")
            await check_stored(runtime, "r.c", RunStatus.cancelled, CancelCause.parent)
            assert till.did == []

    play(main)


def test_a_question_with_an_id_that_was_answered_before_is_asked(url: str) -> None:
    """Some models number the calls of each turn anew. An approval is for one call, and for no later one."""

    async def main() -> None:
        till = Till()
        async with runtimes(url, 1) as (runtime,):
            first, second = (Call("delete", {"name": name}, id="call_0") for name in ("one", "two"))
            old, _ = family(runtime, till.tools, (first, second), ASK)
            _, result = await paused(old, run_id="r", session_id="s")
            result = await old.continue_run("r", yes(result.interrupts))
            assert (result.status, till.did) == (RunStatus.paused, ["one"])
            (question,) = result.interrupts
            assert question.payload == {"name": "two"}
            bookmark = (await found(runtime, "r")).bookmark
            assert bookmark is not None
            assert [call.passed_on for call in bookmark.calls] == [{}], "what was delivered answers nothing else"
            result = await old.continue_run("r", {question.id: False})
            assert (result.status, till.did) == (RunStatus.completed, ["one"])

    play(main)


class Doorkeeper:
    """A hook that holds up every call, until the test lets it through."""

    def __init__(self) -> None:
        self.reached, self.go = Flag(), Flag()

    async def before_tool(self, event: object) -> None:
        self.reached.set()
        await self.go.arrived()


def test_what_waits_below_a_run_that_goes_on_elsewhere_ends_with_it(url: str) -> None:
    """Its children are paused, and nobody's: here nobody knows them, and the next look for such runs is far away."""

    async def main() -> None:
        till = Till()
        ask = Call("middle", {"prompt": "look"}, id="m")
        async with runtimes(url, 1) as (before,):
            young = Agent("Young", ScriptedModel(DELETE), tools=till.tools)
            middle = Agent("Middle", ScriptedModel(ASK), tools=[young.as_tool()])
            _, result = await paused(on(before, ask, name="Old", tools=[middle.as_tool()]), run_id="r", session_id="s")
        async with runtimes(url, 1) as (after,):
            door = Doorkeeper()
            young = Agent("Young", ScriptedModel("Never said."), tools=till.tools)
            middle = Agent("Middle", ScriptedModel("Never said."), tools=[young.as_tool()])
            old = on(after, "Never said.", name="Old", tools=[middle.as_tool()], hooks=[door])
            run = await old.resume_run("r", yes(result.interrupts))
            await door.reached.arrived()
            await run.cancel_and_wait()
            assert run.status is RunStatus.cancelled
            for run_id in ("r.m", "r.m.c"):
                await ended(after, run_id)
                await check_stored(after, run_id, RunStatus.cancelled, CancelCause.parent)
            assert till.did == []

    play(main)


class Slow(SQLStore):
    """A store that is asked to take the end of the run at the top, and does so when it may."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.asked, self.may_end = Flag(), Flag()

    async def finish(
        self, lease: Lease, record: RunRecord, messages: Sequence[Message], events: Sequence[Event]
    ) -> RunRecord | CancelRequest | None:
        if lease.run_id == "r" and record.status.final:
            self.asked.set()
            await self.may_end.arrived()
        return await super().finish(lease, record, messages, events)


def test_what_waits_below_a_run_is_asked_before_the_end_of_the_run_is_stored(url: str) -> None:
    """A process that dies in between leaves a run that somebody will end. After its end nobody looks at it again, and
    its child would be asked for approval for ever.
    """

    async def main() -> None:
        till, store = Till(), Slow(url)
        async with runtimes(url, 1) as (before,):
            old, _ = family(before, till.tools, DELETE, ASK)
            _, result = await paused(old, run_id="r", session_id="s")
        after = Runtime(store, lease_seconds=LONG)
        try:
            young = Agent("Young", ScriptedModel("Never said."), tools=till.tools)
            old = on(after, "So.", name="Old", tools=[young.as_tool()], hooks=[Closed()])
            going_on = asyncio.create_task(old.continue_run("r", yes(result.interrupts)))
            await store.asked.arrived()
            assert not (await found(after, "r")).status.final
            child = await found(after, "r.c")
            assert child.status in (RunStatus.cancelling, RunStatus.cancelled)
            store.may_end.set()
            assert (await going_on).status is RunStatus.completed
            await ended(after, "r.c")
            await check_stored(after, "r.c", RunStatus.cancelled, CancelCause.parent)
            await check_stored(after, "r", RunStatus.completed)
            assert till.did == []
        finally:
            store.may_end.set()
            await after.close()

    play(main)


def test_what_waits_below_a_run_that_another_worker_has_is_left_to_that_one(url: str) -> None:
    async def main() -> None:
        till = Till()
        async with runtimes(url, 1) as (before,):
            old, _ = family(before, till.tools, DELETE, ASK)
            _, result = await paused(old, run_id="r", session_id="s")
        async with runtimes(url, 1) as (after,):
            door = Doorkeeper()
            young = Agent("Young", ScriptedModel("Gone."), tools=till.tools)
            old = on(after, "So.", name="Old", tools=[young.as_tool()], hooks=[door])
            run = await old.resume_run("r", yes(result.interrupts))
            await door.reached.arrived()
            lease = leased(run).lease
            assert lease is not None
            assert leased(run)._waiting_children == ["r.c"]
            earlier = Lease("r", lease.epoch - 1)  # what a worker has from which the run was taken
            assert not await leased(run)._cancel_children(earlier)
            assert (await found(after, "r.c")).status is RunStatus.paused
            door.go.set()
            assert (await run.result()).status is RunStatus.completed
            assert till.did == ["all"]

    play(main)


class Closed:
    """A guard that lets nothing through any more."""

    def before_tool(self, event: BeforeTool) -> None:
        event.cancel("the shop is closed")


def test_what_waits_below_a_call_that_is_refused_later_ends_with_the_run(url: str) -> None:
    """The guard has let the call through, and not its way back in: its child would be asked for approval for ever."""

    async def main() -> None:
        till = Till()
        async with runtimes(url, 1) as (before,):
            old, _ = family(before, till.tools, DELETE, ASK)
            _, result = await paused(old, run_id="r", session_id="s")
        async with runtimes(url, 1) as (after,):
            young = Agent("Young", ScriptedModel("Never said."), tools=till.tools)
            old = on(after, "So.", name="Old", tools=[young.as_tool()], hooks=[Closed()])
            result = await old.continue_run("r", yes(result.interrupts))
            assert (result.status, result.content) == (RunStatus.completed, "So.")
            await ended(after, "r.c")
            await check_stored(after, "r.c", RunStatus.cancelled, CancelCause.parent)
            assert till.did == []
            told = [event.tool for event in await stored_events(after, "r") if event.event is RunEvent.tool_call_error]
            assert [each.outcome for each in told if each is not None] == [ToolOutcome.failed], "it had begun"

    play(main)


def test_a_sub_agent_that_a_deploy_has_renamed_ends_the_run_as_an_error(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What it had done is unknown, and its answer reaches nobody: the run must not go on as if it had been refused."""

    async def main() -> None:
        till = Till()
        async with runtimes(url, 1) as (before,):
            old, _ = family(before, till.tools, DELETE, ASK)
            _, result = await paused(old, run_id="r", session_id="s")
        async with runtimes(url, 1) as (after,):
            shop = Agent("Shop", ScriptedModel("Never said."), tools=till.tools)
            old = on(after, "Never said.", name="Old", tools=[shop.as_tool()])
            result = await old.continue_run("r", yes(result.interrupts))
            assert result.status is RunStatus.error
            assert isinstance(result.error, SubAgentLostError)
            assert "there is no tool 'young'" in str(result.error)
            await ended(after, "r.c")
            await check_stored(after, "r.c", RunStatus.cancelled, CancelCause.parent)
            told = [event.tool for event in await stored_events(after, "r") if event.event is RunEvent.tool_call_error]
            assert [each.outcome for each in told if each is not None] == [ToolOutcome.failed]

    play(main)
    logged = [each for each in caplog.records if each.exc_info and isinstance(each.exc_info[1], SubAgentLostError)]
    assert len(logged) == 1, "one traceback for one error"

# SPDX-License-Identifier: Apache-2.0
"""Sessions: one conversation, one run at a time, first come, first served; from any number of threads and loops."""

from __future__ import annotations

import asyncio
import contextvars
import threading

import pytest

from andon import Agent, CancelCause, CancelOutcome, Run, RunStatus, Runtime, ToolContext, tool
from andon.errors import SessionBusyError
from andon.messages import Message, Text, assistant, user
from andon.models.base import ModelRequest
from andon.models.scripted import Call, ScriptedModel
from andon.testing import probe
from andon.testing.validators import validate
from tests.support import Flag, Hold, Reach, Silence, Worker, asked, forever, make, play, until

MARKER = assistant(Text("Cancelled by user"))


def said(text: str) -> Message:
    return assistant(Text(text))


def texts(messages: list[Message]) -> list[str]:
    return [message.text for message in messages]


# -- which conversation -----------------------------------------------------------------------------------------------


def test_without_a_session_id_two_calls_are_one_conversation() -> None:
    agent = make("One.", "Two.")
    first, second = agent.run("first"), agent.run("second")
    assert first.session_id == second.session_id
    assert second.messages == agent.messages == [user("first"), said("One."), user("second"), said("Two.")]
    assert asked(agent)[1].messages == agent.messages[:3]


def test_every_agent_object_has_a_default_session_of_its_own() -> None:
    runtime = Runtime()
    one, other = make(runtime=runtime), make(runtime=runtime)
    one.run("a secret")
    assert other.messages == []
    other.run("hello")
    assert asked(other)[0].messages == [user("hello")]


def test_sessions_do_not_meet() -> None:
    agent = make()
    agent.run("one", session_id="s1")
    assert agent.run("two", session_id="s2").messages[0] == user("two")
    assert texts(agent.run("three", session_id="s1").messages) == ["one", "OK.", "three", "OK."]
    assert agent.messages == []


def test_two_users_sessions_of_one_id_never_meet() -> None:
    async def main() -> None:
        silence = Silence()
        agent = make([silence])
        async with agent.start("ann's secret", session_id="s1", user_id="ann") as run:
            await silence.reached.arrived()
            bob = await agent.invoke_async("hello", session_id="s1", user_id="bob")  # not busy, either
            nobody = await agent.invoke_async("hello", session_id="s1")
            run.cancel()
            await run.result()
        assert texts(bob.messages) == texts(nobody.messages) == ["hello", "OK."]
        ann = await agent.invoke_async("me again", session_id="s1", user_id="ann")
        assert texts(ann.messages)[0] == "ann's secret"

    play(main)


def test_two_agents_sessions_of_one_id_never_meet() -> None:
    runtime = Runtime()
    one, other = make(name="One", runtime=runtime), make(name="Other", runtime=runtime)
    one.run("a secret", session_id="s1")
    assert texts(other.run("hello", session_id="s1").messages) == ["hello", "OK."]


def test_a_conversation_outlives_its_holders() -> None:
    """Sessions are let go when nobody holds them; the conversation is the store's."""
    agent = make()
    for number in range(3):
        agent.run(str(number), session_id="s")
    assert texts(asked(agent)[-1].messages) == ["0", "OK.", "1", "OK.", "2"]


def test_messages_is_a_copy() -> None:
    agent = make()
    agent.run("go")
    agent.messages.clear()
    assert len(agent.messages) == 2


def test_messages_grow_while_a_run_goes_on() -> None:
    async def main() -> None:
        reached, go_on = Flag(), Flag()

        @tool
        async def wait() -> str:
            reached.set()
            await go_on.arrived()
            return "x"

        agent = make(Call("wait"), tools=[wait])
        async with agent.start("go") as run:
            await reached.arrived()
            assert [message.role for message in agent.messages] == ["user", "assistant"]
            go_on.set()
            await run.result()
        assert [message.role for message in agent.messages] == ["user", "assistant", "tool", "assistant"]

    play(main)


# -- on_busy ----------------------------------------------------------------------------------------------------------


def test_reject_is_the_default_and_says_what_holds_it() -> None:
    async def main() -> None:
        reached, go_on = Flag(), Flag()
        agent = make([Reach(reached), Hold(go_on), "One."])
        async with agent.start("first", run_id="holder") as run:
            await reached.arrived()
            for options in ({}, {"on_busy": "reject"}):
                with pytest.raises(SessionBusyError, match="holder"):
                    await agent.invoke_async("second", **options)  # type: ignore[call-overload]
            go_on.set()
            await run.result()
        assert texts(agent.messages) == ["first", "One."]
        assert (await agent.invoke_async("second")).status is RunStatus.completed

    play(main)


def test_queue_is_first_come_first_served() -> None:
    async def main() -> None:
        reached, go_on = Flag(), Flag()
        agent = make([Reach(reached), Hold(go_on), "0."], "1.", "2.", "3.")
        async with agent.start("p0") as holder:
            await reached.arrived()
            tasks = []
            for number in (1, 2, 3):
                tasks.append(asyncio.create_task(agent.invoke_async(f"p{number}", on_busy="queue")))
                await asyncio.sleep(0)
            assert len(asked(agent)) == 1
            go_on.set()
            await holder.result()
            results = await asyncio.gather(*tasks)
        assert [result.content for result in results] == ["1.", "2.", "3."]
        assert texts(agent.messages) == ["p0", "0.", "p1", "1.", "p2", "2.", "p3", "3."]
        assert texts(asked(agent)[2].messages) == ["p0", "0.", "p1", "1.", "p2"]

    play(main)


def test_cancel_supersedes_the_older_run() -> None:
    async def main() -> None:
        silence = Silence()
        agent = make(["Half a ", silence])
        async with agent.start("first") as older:
            await silence.reached.arrived()
            newer = await agent.invoke_async("second", on_busy="cancel")
            result = await older.result()
        assert newer.status is RunStatus.completed
        assert result.status is RunStatus.cancelled
        assert result.receipt is not None
        assert result.receipt.cause is CancelCause.superseded
        assert result.message.content == [Text("Half a "), Text("Cancelled: superseded by a newer request")]
        assert asked(agent)[-1].messages == [*result.messages, user("second")]
        assert validate(agent.messages) == []

    play(main)


def test_cancel_supersedes_those_in_the_queue_too() -> None:
    async def main() -> None:
        silence = Silence()
        agent = make([silence])
        async with agent.start("holder") as holder:
            await silence.reached.arrived()
            async with agent.start("queued", on_busy="queue") as queued:
                await until(lambda: queued.phase == "queued")
                newest = await agent.invoke_async("newest", on_busy="cancel")
                for run in (holder, queued):
                    receipt = (await run.result()).receipt
                    assert receipt is not None
                    assert receipt.cause is CancelCause.superseded
        marker = "Cancelled: superseded by a newer request"
        assert texts(newest.messages) == ["holder", marker, "queued", marker, "newest", "OK."]
        assert validate(agent.messages) == []

    play(main)


def test_a_run_that_is_being_cancelled_does_not_count_as_busy() -> None:
    async def main() -> None:
        started, clean = Flag(), Flag()

        @tool
        async def slow() -> str:
            started.set()
            try:
                await forever()
            finally:
                await clean.arrived()

        agent = make(Call("slow"), tools=[slow])
        async with agent.start("first") as run:
            await started.arrived()
            run.cancel()
            following = asyncio.create_task(agent.invoke_async("second"))  # with on_busy="reject"
            await asyncio.sleep(0)
            clean.set()
            result = await following
        assert result.status is RunStatus.completed
        assert texts(agent.messages)[-3:] == ["Cancelled by user", "second", "OK."]

    play(main)


def test_what_was_cancelled_in_the_queue_keeps_its_place() -> None:
    async def main() -> None:
        reached, go_on = Flag(), Flag()
        agent = make([Reach(reached), Hold(go_on), "0."])
        async with agent.start("p0") as holder:
            await reached.arrived()
            queued: list[Run] = []
            for number in range(1, 6):
                run = await agent.start(f"p{number}", on_busy="queue").__aenter__()
                await until(lambda run=run: run.phase == "queued")  # type: ignore[misc]
                queued.append(run)
            for run in (queued[0], queued[1], queued[3]):
                assert run.cancel() is CancelOutcome.requested
                assert (await run.result()).status is RunStatus.cancelled
            assert texts(agent.messages) == ["p0"]  # they are written down when the holder ends
            go_on.set()
            await holder.result()
            for run in queued:
                await probe(run).settled()
        stopped = "Cancelled by user"
        assert texts(agent.messages) == [
            *("p0", "0.", "p1", stopped, "p2", stopped),
            *("p3", "OK.", "p4", stopped, "p5", "OK."),
        ]
        assert validate(agent.messages) == []
        assert texts(asked(agent)[1].messages) == ["p0", "0.", "p1", stopped, "p2", stopped, "p3"]

    play(main)


# -- threads and loops ------------------------------------------------------------------------------------------------


def answer_with_count(request: ModelRequest) -> str:
    return f"{len(request.messages)}"


def test_one_session_from_several_threads_and_loops() -> None:
    agent = Agent("Shared", ScriptedModel(then=answer_with_count))

    async def converse(name: str) -> None:
        for number in range(5):
            await agent.invoke_async(f"{name} {number}", on_busy="queue")

    def block(name: str) -> None:
        for number in range(5):
            agent.run(f"{name} {number}", on_busy="queue")

    workers = [Worker(lambda name=name: asyncio.run(converse(name))) for name in "abc"]  # type: ignore[misc]
    workers += [Worker(lambda name=name: block(name)) for name in "de"]  # type: ignore[misc]
    for worker in workers:
        worker.done()
    messages = agent.messages
    assert len(messages) == 50
    assert validate(messages) == []
    assert texts(messages[1::2]) == [str(number) for number in range(1, 50, 2)]  # each saw all that was before it
    for name in "abcde":
        mine = [text for text in texts(messages[::2]) if text.startswith(name)]
        assert mine == [f"{name} {number}" for number in range(5)]


def test_one_agent_in_several_loops_at_once() -> None:
    together = threading.Barrier(4)

    @tool
    def meet(ctx: ToolContext) -> str:
        together.wait(20)  # passes only if all four are there at the same time
        return ctx.user_id or ""

    agent = make(*[Call("meet")] * 4, tools=[meet])
    seen: dict[str, str] = {}

    async def main(name: str) -> None:
        result = await agent.invoke_async("go", user_id=name, session_id="s")
        seen[name] = result.messages[2].tool_results[0].content

    workers = [Worker(lambda name=name: asyncio.run(main(name))) for name in "abcd"]  # type: ignore[misc]
    for worker in workers:
        worker.done()
    assert seen == {name: name for name in "abcd"}


def test_a_cancel_in_one_loop_leaves_the_others_alone() -> None:
    silences = [Silence(), Silence()]
    agent = make([silences[0]], [silences[1]])
    ended: dict[str, RunStatus] = {}

    def work(name: str) -> None:
        ended[name] = agent.run("go", session_id=name, run_id=name).status

    first = Worker(lambda: work("a"))
    silences[0].reached.wait()
    second = Worker(lambda: asyncio.run(agent.invoke_async("go", session_id="b", run_id="b")))
    silences[1].reached.wait()
    assert agent.cancel_run("a") is CancelOutcome.requested
    first.done()
    assert ended == {"a": RunStatus.cancelled}
    assert second.is_alive()
    assert agent.cancel() is CancelOutcome.requested
    second.done()


# -- what a run takes along -------------------------------------------------------------------------------------------


def test_a_run_copies_its_callers_contextvars_at_the_start() -> None:
    who: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")

    async def main() -> None:
        seen: list[str] = []
        reached, go_on = Flag(), Flag()

        class Hook:
            async def before_model(self, event: object) -> None:
                seen.append(f"hook {who.get()}")

        @tool
        async def look() -> str:
            seen.append(f"tool {who.get()}")
            who.set("the tool")
            return "x"

        agent = make([Reach(reached), Hold(go_on), Call("look")], tools=[look], hooks=[Hook()])
        who.set("ann")
        async with agent.start("go") as run:
            who.set("bob")
            await reached.arrived()
            go_on.set()
            await run.result()
        assert seen == ["hook ann", "tool ann", "hook ann"]
        assert who.get() == "bob"

    contextvars.copy_context().run(play, main)


def test_metadata_stays_with_the_run() -> None:
    async def main() -> None:
        agent = make()
        result = await agent.invoke_async("go", metadata={"ticket": 7})
        assert result.metadata == {"ticket": 7}
        assert agent.runtime.store is not None
        record = await agent.runtime.store.find(result.run_id)
        assert record is not None
        assert record.metadata == {"ticket": 7}

    play(main)

# SPDX-License-Identifier: Apache-2.0
"""Readers own nothing: they come late, go early, are slow, sit on other loops. Leaving one's own stream cancels."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref

import pytest

from andon import Agent, CancelCause, CancelOutcome, Event, RunEvent, RunStatus, tool
from andon.agent.hooks import RunEnded
from andon.errors import EmptyPromptError, HandleError, SessionBusyError
from andon.messages import Text
from andon.models.scripted import Burst, Call, ScriptedModel
from tests.support import (
    Flag,
    Hold,
    Silence,
    Worker,
    asked,
    check_events,
    eventually,
    forever,
    make,
    play,
    read_all,
    record_of,
    until,
)

LEFT = [Text("Half a "), Text("Cancelled by the caller")]


# -- leaving stream_async ---------------------------------------------------------------------------------------------


def test_reading_to_the_end() -> None:
    async def main() -> None:
        agent = make("Hello there.")
        events = [event async for event in agent.stream_async("go")]
        check_events(events)
        assert events[-1].event is RunEvent.run_completed
        assert agent.messages[-1].text == "Hello there."

    play(main)


def test_break_without_keeping_the_iterator() -> None:
    async def main() -> None:
        silence = Silence()
        agent = make(["Half a ", silence])
        async for event in agent.stream_async("go", run_id="r"):
            if event.event is RunEvent.run_content:
                break
        answer = await agent.invoke_async("and now?")  # right after the break: served, not busy
        assert answer.status is RunStatus.completed
        assert agent.messages[1].content == LEFT
        assert (await record_of(agent, "r")).receipt.cause is CancelCause.caller  # type: ignore[union-attr]

    play(main)


def test_a_stream_right_after_a_break() -> None:
    async def main() -> None:
        agent = make(["Half a ", Silence()], ["Half a ", Silence()])
        for _ in range(2):
            async for event in agent.stream_async("go"):
                if event.event is RunEvent.run_content:
                    break
        events = [event async for event in agent.stream_async("and now?")]
        assert events[-1].event is RunEvent.run_completed
        assert [message.content for message in agent.messages[1:4:2]] == [LEFT, LEFT]

    play(main)


def test_aclose_waits_until_the_run_is_settled() -> None:
    async def main() -> None:
        started, clean, closing = Flag(), Flag(), Flag()

        @tool
        async def slow() -> str:
            started.set()
            try:
                await forever()
            finally:
                closing.set()
                await clean.arrived()

        agent = make(Call("slow", id="c"), tools=[slow])
        stream = agent.stream_async("go", run_id="r")
        async for event in stream:
            if event.event is RunEvent.tool_call_started:
                break
        await started.arrived()
        leaving = asyncio.create_task(stream.aclose())
        await closing.arrived()
        assert not leaving.done()
        clean.set()
        await leaving
        assert agent.cancel_run("r") is CancelOutcome.already_finished
        assert [event async for event in stream] == []
        await stream.aclose()
        assert agent.messages[-1].content == [Text("Cancelled by the caller")]

    play(main)


def test_aclose_after_the_end_changes_nothing() -> None:
    async def main() -> None:
        agent = make("Hello.")
        stream = agent.stream_async("go", run_id="r")
        events = [event async for event in stream]
        await stream.aclose()
        assert events[-1].event is RunEvent.run_completed
        assert (await record_of(agent, "r")).status is RunStatus.completed

    play(main)


def test_dropping_the_last_reference() -> None:
    async def main() -> None:
        silence = Silence()
        agent = make(["Half a ", silence])
        stream = agent.stream_async("go", run_id="r")
        await anext(stream)
        await silence.reached.arrived()
        gone = weakref.ref(agent.runtime.find("r"))
        del stream  # only a signal: nobody can wait here
        assert agent.cancel_run("r") is CancelOutcome.already_requested
        await until(lambda: agent.cancel_run("r") is CancelOutcome.already_finished)
        assert (await record_of(agent, "r")).receipt.cause is CancelCause.caller  # type: ignore[union-attr]
        await until(lambda: len(asyncio.all_tasks()) == 1)
        await until(lambda: gc.collect() >= 0 and gone() is None)  # and nothing holds it

    play(main)


def test_dropping_the_last_reference_in_another_thread() -> None:
    async def main() -> None:
        silence = Silence()
        agent = make(["Half a ", silence])
        kept = [agent.stream_async("go", run_id="r")]
        await anext(kept[0])
        await silence.reached.arrived()
        await asyncio.to_thread(kept.clear)
        await until(lambda: agent.cancel_run("r") is CancelOutcome.already_finished)
        await until(lambda: len(asyncio.all_tasks()) == 1)

    play(main)


def test_dropping_the_last_reference_with_the_loop_gone() -> None:
    """A stream that is collected after its loop was closed: nothing is raised, and the run is not lost sight of."""
    silence = Silence()
    agent = make(["Half a ", silence])
    kept = []

    async def main() -> None:
        kept.append(agent.stream_async("go", run_id="r"))
        await anext(kept[0])
        await silence.reached.arrived()

    asyncio.run(main())
    kept.clear()
    gc.collect()
    eventually(lambda: agent.cancel_run("r") is CancelOutcome.already_finished)
    assert agent.run("and now?").status is RunStatus.completed


def test_wait_for_around_anext_cancels_the_run() -> None:
    async def main() -> None:
        silence = Silence()
        agent = make(["Half a ", silence])
        stream = agent.stream_async("go", run_id="r")
        while (await anext(stream)).content != "a ":
            pass
        await silence.reached.arrived()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(stream), 0.02)
        assert silence.cuts == 1
        assert agent.cancel_run("r") is CancelOutcome.already_finished  # settled when it was raised
        assert agent.messages[-1].content == LEFT
        assert [event async for event in stream] == []
        assert (await agent.invoke_async("and now?")).status is RunStatus.completed

    play(main)


@pytest.mark.parametrize("how", ["aclose", "del"])
def test_a_stream_that_never_started(how: str) -> None:
    async def main() -> None:
        agent = make("Hello.")
        stream = agent.stream_async("go", run_id="r")
        assert agent.cancel_run("r") is CancelOutcome.unknown  # it would begin at its first step
        if how == "aclose":
            await stream.aclose()
            assert [event async for event in stream] == []
        del stream
        gc.collect()
        assert (agent.messages, asked(agent)) == ([], [])
        assert agent.cancel_run("r") is CancelOutcome.unknown
        assert (await agent.invoke_async("go", run_id="r")).status is RunStatus.completed

    play(main)


def test_a_stream_that_cannot_begin_raises_at_its_first_step() -> None:
    async def main() -> None:
        silence = Silence()
        agent = make([silence])
        async with agent.start("go") as run:
            await silence.reached.arrived()
            stream = agent.stream_async("again")
            with pytest.raises(SessionBusyError):
                await anext(stream)
            assert [event async for event in stream] == []
            run.cancel()
            await run.result()
        with pytest.raises(EmptyPromptError):
            [event async for event in agent.stream_async("  ")]

    play(main)


def test_an_exception_in_the_loops_body() -> None:
    async def main() -> None:
        agent = make(["Half a ", Silence()])

        async def read() -> None:
            async for event in agent.stream_async("go"):
                if event.event is RunEvent.run_content:
                    raise LookupError("the reader's own")

        with pytest.raises(LookupError, match="own"):
            await read()
        gc.collect()
        assert (await agent.invoke_async("and now?")).status is RunStatus.completed
        assert agent.messages[1].content == LEFT

    play(main)


# -- reading a handle -------------------------------------------------------------------------------------------------


def test_leaving_the_loop_of_a_handle_never_cancels() -> None:
    async def main() -> None:
        go_on = Flag()
        agent = make(["Half a ", Hold(go_on), "sentence."])
        async with agent.start("go") as run:
            async for event in run:
                if event.event is RunEvent.run_content:
                    break
            reader = aiter(run)
            await anext(reader)
            del reader
            gc.collect()
            with pytest.raises(TimeoutError):  # to poll, use `start`
                await asyncio.wait_for(anext(run.events(after=3)), 0.01)
            assert run.status is RunStatus.running
            go_on.set()
            result = await run.result()
        assert (result.status, result.content) == (RunStatus.completed, "Half a sentence.")

    play(main)


def test_leaving_the_block_cancels_and_waits() -> None:
    async def main() -> None:
        silence = Silence()
        agent = make(["Half a ", silence])
        async with agent.start("go") as run:
            await silence.reached.arrived()
        assert silence.cuts == 1
        assert run.status is RunStatus.cancelled
        result = await run.result()
        assert result.receipt is not None
        assert result.receipt.cause is CancelCause.caller
        assert agent.messages[-1].content == LEFT

    play(main)


def test_leaving_the_block_by_an_exception() -> None:
    async def main() -> None:
        agent = make(["Half a ", Silence()])
        with pytest.raises(LookupError, match="own"):
            async with agent.start("go") as run:
                async for event in run:
                    if event.event is RunEvent.run_content:
                        raise LookupError("the host's own")
        assert run.status is RunStatus.cancelled
        assert (await agent.invoke_async("and now?")).status is RunStatus.completed

    play(main)


def test_leaving_the_block_waits_for_the_run_ended_hook() -> None:
    async def main() -> None:
        told: list[str] = []

        class Slow:
            async def run_ended(self, event: RunEnded) -> None:
                for _ in range(10):
                    await asyncio.sleep(0)
                told.append(event.result.status.name)

        agent = make("Hello.", hooks=[Slow()])
        async with agent.start("go") as run:
            await run.result()
        assert told == ["completed"]

    play(main)


def test_a_handle_begins_at_the_block() -> None:
    async def main() -> None:
        agent = make("Hello.")
        run = agent.start("go", run_id="r")
        assert run.status is RunStatus.pending
        assert agent.cancel_run("r") is CancelOutcome.unknown
        with pytest.raises(HandleError):
            await run.result()
        async with run:
            assert run.run_id == "r"
            assert (await run.result()).status is RunStatus.completed
        assert (await run.result()).status is RunStatus.completed  # as often as you like

    play(main)


def test_several_readers_from_several_numbers() -> None:
    async def main() -> None:
        go_on = Flag()
        agent = make(["one two ", Hold(go_on), "three four"])
        async with agent.start("go") as run:

            async def read(after: int) -> list[Event]:
                return [event async for event in run.events(after)]

            early = [asyncio.create_task(read(after)) for after in range(3)]
            async for event in run:
                if event.content == "two ":
                    break
            late = [asyncio.create_task(read(after)) for after in (0, 3, 4)]  # the last of them: not written yet
            await asyncio.sleep(0)
            go_on.set()
            everything = await read_all(run)
            check_events(everything)
            for after, task in zip((0, 1, 2, 0, 3, 4), early + late, strict=True):
                assert await task == everything[after:]
            assert await read(len(everything)) == []
        assert await read_all(run) == everything  # and again, when it is over

    play(main)


def test_slow_and_gone_readers_never_slow_a_run() -> None:
    async def main() -> None:
        agent = make([Burst("x", 2000)])
        async with agent.start("go") as run:
            slow, gone = aiter(run), aiter(run)
            await anext(slow)
            await anext(gone)
            waiting = asyncio.create_task(anext(run.events(after=10_000)))
            await asyncio.sleep(0)
            waiting.cancel()
            result = await run.result()  # though `slow` has read one event
            assert result.content == "x" * 2000
            rest = [event async for event in slow]
            assert len(rest) == 2001
            assert rest[-1].event is RunEvent.run_completed

    play(main)


def test_reading_from_another_threads_loop() -> None:
    async def main() -> None:
        silence, seen = Silence(), Flag()
        agent = make(["Half a ", silence])
        elsewhere: list[Event] = []
        threads: set[int] = set()

        async with agent.start("go") as run:

            async def read() -> None:
                async for event in run:
                    elsewhere.append(event)
                    threads.add(threading.get_ident())
                    if event.event is RunEvent.run_content:
                        seen.set()
                elsewhere.append((await run.result()).messages)  # type: ignore[arg-type]

            reader = Worker(lambda: asyncio.run(read()))
            await seen.arrived()
            await silence.reached.arrived()
            run.cancel()
            result = await run.result()
            here = await read_all(run)
        await asyncio.to_thread(reader.done)
        assert elsewhere == [*here, result.messages]
        assert threading.get_ident() not in threads

    play(main)


def test_a_reader_whose_loop_was_closed_does_no_harm() -> None:
    async def main() -> None:
        go_on, reading = Flag(), Flag()
        agent = make(["Half a ", Hold(go_on), "sentence."])
        async with agent.start("go") as run:

            def read_and_die() -> None:
                loop = asyncio.new_event_loop()

                async def read() -> None:
                    async for event in run:
                        if event.event is RunEvent.run_content:
                            reading.set()

                task = loop.create_task(read())
                loop.run_until_complete(reading.arrived())
                loop.run_until_complete(asyncio.sleep(0))
                task.cancel()
                loop.stop()
                loop.run_forever()
                loop.close()

            await asyncio.to_thread(read_and_die)
            go_on.set()
            assert (await run.result()).content == "Half a sentence."

    play(main)


@pytest.mark.parametrize("after", [-1, -2])
def test_a_number_that_means_nothing(after: int) -> None:
    async def main() -> None:
        async with Agent("A", ScriptedModel("Hello.")).start("go") as run:
            await run.result()
            try:
                reader = run.events(after=after)
            except ValueError:
                return
            assert [event.seq async for event in reader] == [1, 2, 3]

    play(main)

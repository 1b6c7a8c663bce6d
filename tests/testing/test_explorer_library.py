# SPDX-License-Identifier: Apache-2.0
"""The library, broken on purpose, one promise at a time: an exploration that can't fail proves nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from andon import Agent, CancelOutcome, Event, Message, Runtime, ToolContext, tool
from andon.agent import settle
from andon.agent.turn import Turn as ModelTurn
from andon.core.cord import Cord
from andon.core.journal import Journal
from andon.core.receipt import CancelRequest, Receipt
from andon.core.run import ending
from andon.core.run.ending import EndingRun
from andon.core.run.run import LocalRun
from andon.core.run.stream import EventStream
from andon.core.run.waits import wait_settled
from andon.core.session import OnBusy, Place, Session
from andon.core.signal import CancelSignal
from andon.core.steps import Step
from andon.errors import SessionBusyError
from andon.messages import Text
from andon.models.base import ModelRequest, Sink
from andon.testing import Cancel, Report, explore, reading
from tests.testing.explorable import calling, found, sound, sound_stream

# -- the library, broken ----------------------------------------------------------------------------------------------


async def with_tool() -> None:
    @tool
    async def look() -> str:
        await asyncio.sleep(1)
        return "seen"

    async for _ in reading(calling("look", look).stream_async("Go")):
        pass


def test_the_marker(monkeypatch: pytest.MonkeyPatch) -> None:
    original = settle.settle

    def unmarked(*args: Any) -> list[Message]:
        settled = original(*args)
        last = settled[-1]
        return [*settled[:-1], Message(last.role, [*last.content[:-1], Text("Oops")])]

    monkeypatch.setattr(settle, "settle", unmarked)
    found(explore(with_tool, inject="cancel"), "the conversation must end with 'Cancelled by user'")


def test_results_of_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    original = settle.settle
    monkeypatch.setattr(settle, "settle", lambda m, blocks, results, fate: original(m, blocks, [], fate))
    report = explore(with_tool, inject="cancel")
    found(report, r"the conversation is not valid: .* calls 'call_1' without a result in the very next message")


def test_one_terminal_event(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Journal.close

    def twice(self: Journal, event: Event) -> None:
        self.publish(event)
        original(self, event)

    monkeypatch.setattr(Journal, "close", twice)
    found(explore(sound), r"there must be one terminal event, .* \['run_completed', 'run_completed'\]")


def test_sequence_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Journal.close

    def skipping(self: Journal, event: Event) -> None:
        self.events.append(msgspec.structs.replace(event, seq=99))
        self.closed = True  # what the original appends is ignored
        original(self, event)

    monkeypatch.setattr(Journal, "close", skipping)
    found(explore(sound), r"the sequence numbers are \[1, 2, 3, 99\]")


def test_a_cancel_that_was_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CancelSignal, "cancel", lambda *args: CancelOutcome.requested)
    found(explore(sound, inject="cancel"), "the cancel returned requested, but the run ended as completed")


def test_a_cancel_that_was_late(monkeypatch: pytest.MonkeyPatch) -> None:
    original = CancelSignal.cancel

    def lying(self: CancelSignal, *args: Any) -> CancelOutcome:
        original(self, *args)
        return CancelOutcome.already_finished

    monkeypatch.setattr(CancelSignal, "cancel", lying)
    found(explore(sound, inject="cancel"), "returned already_finished, but the run was cancelled")


def test_two_cancels(monkeypatch: pytest.MonkeyPatch) -> None:
    original = CancelSignal.cancel

    def generous(self: CancelSignal, *args: Any) -> CancelOutcome:
        return CancelOutcome.requested if original(self, *args) else CancelOutcome.already_finished

    monkeypatch.setattr(CancelSignal, "cancel", generous)
    report = explore(sound, inject="cancel", cancels=Cancel(again="now"))
    found(report, "two cancels of one run returned requested and requested")


def test_a_run_that_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_ended(self: Runtime, run: LocalRun) -> None:
        self._runs.pop(run.run_id, None)

    monkeypatch.setattr(Runtime, "run_ended", run_ended)
    found(explore(sound, inject="cancel"), "the cancel of a run that had begun returned unknown")


def test_a_run_that_stays_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Runtime, "run_ended", lambda self, run: None)
    found(explore(sound), "its runtime counts it as in flight")


def test_a_run_that_stays_with_its_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cord, "remove", lambda self, run: None)
    found(explore(sound), "its agent counts it as in flight")


def test_a_prompt_that_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Session.enter

    def enter(self: Session, place: Place, on_busy: OnBusy) -> None:
        if self.messages:
            raise SessionBusyError("never again", run_id="none")
        original(self, place, on_busy)

    monkeypatch.setattr(Session, "enter", enter)
    found(explore(sound), "the next prompt was refused: SessionBusyError: never again")


def test_a_stream_that_can_not_be_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    original = EventStream.aclose

    async def broken(self: EventStream) -> None:
        if not self.run.status.final:
            raise ValueError("stuck")
        await original(self)

    monkeypatch.setattr(EventStream, "aclose", broken)
    report = explore(sound_stream, inject="leave", next_prompt=None)
    found(report, "explorer: aclose raised ValueError: stuck|the reader left, and the run ended as completed")


def test_a_line_that_is_not_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def stay(self: Session, place: Place) -> None:
        return None

    monkeypatch.setattr(Session, "leave", stay)
    found(explore(sound), "its session still has a line of 1")


async def paused() -> Agent:
    @tool
    async def ask(ctx: ToolContext) -> str:
        return str(ctx.interrupt("may I?"))

    agent = calling("ask", ask)
    await agent.invoke_async("Hi")
    return agent


async def cancelled_behind_a_pause() -> None:
    agent = await paused()
    async with asyncio.TaskGroup() as group:
        for run_id in ("second", "third"):
            group.create_task(agent.invoke_async("Me too", run_id=run_id, on_busy="queue"))
        await asyncio.sleep(1)
        agent.cancel_run("second")
        agent.cancel_run("third")


def explore_pause() -> Report:
    return explore(cancelled_behind_a_pause, inject="cancel", next_prompt=None, max_problems=1000)


def test_a_line_behind_a_paused_run() -> None:
    explore_pause().raise_for_problems()


def test_a_place_without_a_bequest_behind_a_paused_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "defer_write", lambda self, place, write: not place.granted)
    found(explore_pause(), "its session still has a line of [12]")


def test_a_place_that_is_given_away_with_its_bequest(monkeypatch: pytest.MonkeyPatch) -> None:
    def defer_write(self: Session, place: Place, write: object) -> bool:
        if not place.granted:
            self._places.remove(place)
        return not place.granted

    monkeypatch.setattr(Session, "defer_write", defer_write)
    found(explore_pause(), "run [23]: the store has no record of the run")


def test_a_bequest_that_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    async def pass_on(run: EndingRun) -> None:
        assert run.place is not None
        run.session.leave(run.place)
        run.place = None

    monkeypatch.setattr(ending, "pass_on", pass_on)
    found(explore_pause(), "its session still has a line of [12]")


def test_a_paused_run_that_does_not_hold_its_session(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Session.enter

    def enter(self: Session, place: Place, on_busy: OnBusy) -> None:
        original(self, place, on_busy)
        self._places.remove(place)

    monkeypatch.setattr(Session, "enter", enter)
    found(explore(paused, inject=()), "it is paused, but does not hold its session")


def test_a_cancel_that_takes_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Step, "cut", lambda self, *_: None)
    report = explore(with_tool, inject="cancel", within=0)
    found(report, "the run ended 1 virtual seconds later than it had to|there still came")
    report = explore(with_tool, inject="cancel", within=0, cancels=Cancel("after_tools", grace=0.25))
    found(report, "the run ended 0.75 virtual seconds later than it had to|there still came")
    report = explore(with_tool, inject="cancel", within=0, cancels=Cancel("after_turn", again="now", later=1))
    found(report, "the run ended 1 virtual seconds later than it had to|there still came")


def test_news_after_a_cancel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ModelTurn, "shut", lambda self: None)

    class Talkative:
        id = "talkative"

        async def stream(self, request: ModelRequest, sink: Sink) -> None:
            try:
                await asyncio.sleep(1)
            finally:
                sink.text("One more thing.")

    async def scenario() -> None:
        await Agent("A", Talkative()).invoke_async("Hi")

    found(explore(scenario, inject="cancel"), "after a cancel with mode now there still came run_content")


def test_a_reader_that_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EventStream, "__del__", lambda self: None)
    report = explore(with_tool)
    found(report, "the reader left, and the run ended as completed, not as cancelled by its caller")
    assert all("leaves by break" in str(problem.injection) for problem in report.problems)


def test_the_receipt(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Receipt.of
    monkeypatch.setattr(Receipt, "of", lambda *args: msgspec.structs.replace(original(*args), tools=[], by="nobody"))
    found(explore(with_tool, inject="cancel"), "is not of the cancel that won|the receipt names the calls")


def test_the_hosts_cancellation(monkeypatch: pytest.MonkeyPatch) -> None:
    async def soothing(run: LocalRun) -> None:
        try:
            await wait_settled(run)
        except asyncio.CancelledError:
            pass

    monkeypatch.setattr("andon.agent.agent.wait_settled", soothing)
    found(explore(sound, inject="host"), "the host's cancellation was swallowed")


def test_a_defect_in_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> Any:
        if isinstance(args[-1], CancelRequest):
            raise ValueError("a defect")
        return original(*args)

    original = settle.settle
    monkeypatch.setattr(settle, "settle", broken)
    report = explore(sound_stream, inject="cancel")
    assert any("the log says" in problem.text and "a defect" in problem.text for problem in report.problems)

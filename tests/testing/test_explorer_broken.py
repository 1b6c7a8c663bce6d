# SPDX-License-Identifier: Apache-2.0
"""Interrupted cancels: each line is tried, and a library that loses such a cancel is detected."""

from __future__ import annotations

import asyncio
import re
import sys
from typing import Any

import pytest

from andon import Agent, CancelOutcome
from andon.core.cord import Arm, Cord
from andon.core.receipt import CancelRequest
from andon.core.signal import CancelSignal, Completed
from andon.core.states import StopReason
from andon.models.base import ModelRequest
from andon.models.scripted import ScriptedModel, Stall
from andon.testing import Cancel, Report, explore, virtual
from andon.testing.broken import BrokenCancel
from tests.testing.explorable import found, hello, sound

STREAMING = 6
"""A step of `sound` at which the run is at its work."""


async def silent() -> None:
    def answer(request: ModelRequest) -> str | Stall:
        return "Fine." if request.messages[-1].text == "And now?" else Stall()

    await Agent("A", ScriptedModel(then=answer)).invoke_async("Hi")


async def two() -> None:
    agent = hello()
    first = asyncio.create_task(agent.invoke_async("Hi"))
    await asyncio.sleep(0.05)
    await agent.invoke_async("And I?", on_busy="queue")
    await first


def broken(scenario: Any = sound, **options: Any) -> Report:
    return explore(scenario, inject="broken_cancel", **{"steps": [STREAMING], **options})


# -- what it does -----------------------------------------------------------------------------------------------------


@pytest.mark.no_cover  # hundreds of performances, which the tracer would slow down by more than half
def test_every_line_is_tried_at_each_step() -> None:
    calls: list[tuple[int, int]] = []
    report = broken(steps=[3, STREAMING, 14], within=0, progress=lambda *call: calls.append(call))
    report.raise_for_problems()
    assert report.repeatable
    assert report.missed == 0
    assert report.injections == len(calls) > 1000
    assert [number for number, _ in calls] == list(range(1, len(calls) + 1))
    totals = [total for _, total in calls]
    assert totals == sorted(totals)
    assert totals[-1] == len(calls)


def test_what_is_tried_and_in_which_words(monkeypatch: pytest.MonkeyPatch) -> None:
    injected: list[BrokenCancel] = []

    def note(self: BrokenCancel, stage: Any) -> bool:
        injected.append(self)
        return act(self, stage)

    act = BrokenCancel.act
    monkeypatch.setattr(BrokenCancel, "act", note)
    broken(silent, stalls=True, within=0, steps=[5]).raise_for_problems()
    words = [str(injection) for injection in injected]
    assert words[0] == "cancel (now) of run 1, while its lines are counted, before step 5 (the model)"
    assert len(words) == len(set(words))
    tried = {(each.way, each.next) for each in injected}
    waits = {("run", "result"), ("run", "read"), ("run", "timeout")}
    assert tried == waits | {(way, then) for way in ("run", "agent", "runtime") for then in ("attend", "again")}
    for where in (r"at its line \d+ \(signal.py:\d+ in cancel\)", r"at its line \d+ \(cord.py:\d+ in pull\)",
                  r"at its line \d+ \(runtime.py:\d+ in cancel\)", "with 3 frames left"):  # fmt: skip
        pattern = rf"cancel \(now\) of .* before step 5 \(the model\), interrupted {where}, then it is cancelled again$"
        assert any(re.match(pattern, each) for each in words), where


def test_it_is_done_only_if_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BrokenCancel, "act", lambda *_: pytest.fail("it was done"))
    explore(sound, steps=[STREAMING]).raise_for_problems()


@pytest.mark.no_cover  # hundreds of performances, which the tracer would slow down by more than half
def test_the_way_to_cancel_can_be_chosen() -> None:
    seen: set[str] = set()
    broken(
        cancels=Cancel("after_turn", grace=0.05, again="now", later=2),
        check=lambda runs: seen.update(str(run.receipt.mode) for run in runs if run.receipt),
    ).raise_for_problems()
    assert seen == {"after_turn", "now"}


def test_a_line_that_is_not_come_to_is_missed() -> None:
    """From the third time on, the run has ended by then, and such a cancel has few lines."""
    times = iter(range(3))

    async def shorter() -> None:
        agent = hello()
        if next(times, None) is not None:
            await agent.invoke_async("Hi")
        else:
            agent.cancel()
            await agent.invoke_async("Hi")
        for _ in range(10):
            await asyncio.sleep(0)

    report = broken(shorter, steps=[8], next_prompt=None)
    assert report.missed > 0


def test_the_tracer_is_put_back() -> None:
    def tracer(*_: object) -> None:
        return None

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        broken().raise_for_problems()
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(before)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"inject": "broken"}, "there is no injection broken; there are cancel, host, leave, teardown, broken_cancel"),
        ({"inject": "broken_cancel", "cancels": "later"}, "mode is 'later'"),
    ],
)
def test_options_that_mean_nothing(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        explore(sound, **options)


# -- the library, broken ----------------------------------------------------------------------------------------------


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread is to be waited for here, and there will be hundreds of standstills."""
    monkeypatch.setattr(virtual, "QUIET_SECONDS", 0.01)
    monkeypatch.setattr(virtual, "THREAD_SECONDS", 0.01)


@pytest.mark.no_cover  # hundreds of performances, which the tracer would slow down by more than half
@pytest.mark.usefixtures("impatient")
def test_a_cancel_that_is_delivered_once_or_never(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks whether the run has heard of it: neither who cancels again nor who waits, reads, or counts time."""
    monkeypatch.setattr(CancelSignal, "deliver_again", lambda self, batch=None: None)
    report = broken(silent, stalls=True, steps=[5], max_problems=10_000)
    found(report, "the scenario came to a standstill: .* andon run in __await__")
    tried = [problem.injection for problem in report.problems if isinstance(problem.injection, BrokenCancel)]
    assert {each.next for each in tried} == {"attend", "result", "read", "again", "timeout"}
    assert {each.way for each in tried} == {"run", "agent", "runtime"}


@pytest.mark.no_cover  # hundreds of performances, which the tracer would slow down by more than half
def test_a_cancel_that_is_delivered_late(monkeypatch: pytest.MonkeyPatch) -> None:
    original = CancelSignal.deliver_again

    def late(self: CancelSignal) -> None:
        asyncio.get_running_loop().call_later(1, original, self)

    monkeypatch.setattr(CancelSignal, "deliver_again", late)
    report = broken(silent, stalls=True, steps=[5], within=0)
    found(report, "the run ended 1 virtual seconds later than it had to")


@pytest.mark.no_cover  # hundreds of performances, which the tracer would slow down by more than half
@pytest.mark.usefixtures("impatient")
def test_a_recursion_error_that_is_taken_for_a_closed_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cancel returns `requested`, and has no effect."""

    def careless(self: CancelSignal, request: CancelRequest, batch: Any) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(self._deliver, request)  # type: ignore[arg-type]
        except RuntimeError:
            pass

    monkeypatch.setattr(CancelSignal, "_notify", careless)
    monkeypatch.setattr(CancelSignal, "deliver_again", lambda self, batch=None: None)
    report = broken(silent, stalls=True, steps=[5], max_problems=10_000)
    found(report, "the scenario came to a standstill")
    assert any("frames left" in str(problem.injection) for problem in report.problems)


@pytest.mark.no_cover  # hundreds of performances, which the tracer would slow down by more than half
def test_a_fate_that_can_be_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fickle(self: CancelSignal, batch: Any = None) -> None:
        if self.request is not None:
            self.overrule(Completed(StopReason.end_turn))

    monkeypatch.setattr(CancelSignal, "deliver_again", fickle)
    problems = broken(max_problems=10_000).problems
    assert any("run 1 was to be cancelled, but ended as completed" in problem.text for problem in problems)


@pytest.mark.no_cover  # hundreds of performances, which the tracer would slow down by more than half
def test_two_that_are_told_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    original = CancelSignal.cancel

    def generous(self: CancelSignal, *args: Any) -> CancelOutcome:
        return CancelOutcome.requested if original(self, *args) else CancelOutcome.already_finished

    monkeypatch.setattr(CancelSignal, "cancel", generous)
    found(broken(), "the run was cancelled already, but the next cancel returned requested")


def test_a_cord_that_stays_armed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the run in flight was meant."""
    original = Cord.pull

    def pull(self: Cord, request: CancelRequest, arm_seconds: float) -> CancelOutcome:
        arm = Arm(request, sys.float_info.max)
        self._arms[id(arm)] = arm
        outcome = original(self, request, arm_seconds)
        del self._arms[id(arm)]
        return outcome

    monkeypatch.setattr(Cord, "pull", pull)
    report = broken(two, steps=[5])
    found(report, "run 2 began after the cancel, and was cancelled by it")
    assert all("the agent of run 1" in str(problem.injection) for problem in report.problems)


@pytest.mark.no_cover  # hundreds of performances, which the tracer would slow down by more than half
def test_a_cancel_that_comes_back_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run was not cancelled when the call was interrupted, and is cancelled by it later."""
    original = CancelSignal.cancel

    def haunting(self: CancelSignal, request: CancelRequest, *args: Any) -> CancelOutcome:
        asyncio.get_running_loop().call_soon(original, self, request)
        return original(self, request, *args)

    monkeypatch.setattr(CancelSignal, "cancel", haunting)
    found(broken(), "run 1 was not cancelled when the call was interrupted, but was cancelled by it later")

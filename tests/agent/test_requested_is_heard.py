# SPDX-License-Identifier: Apache-2.0
"""A cancel that was entered, and then interrupted before it woke the run, is brought there by whoever comes next."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Callable
from typing import Any

import pytest

from andon import Agent, CancelOutcome, Phase, Run, RunStatus
from andon.core.receipt import CancelRequest
from andon.core.run.handle import local_run
from andon.core.signal import CancelSignal
from andon.models.scripted import Call, ScriptedModel, Stall
from andon.testing import probe
from tests.support import Flag, forever, paused, play
from tests.support.clock import StoppedClock, time_is_up
from tests.support.till import DELETE, Till

Comer = Callable[[Agent, Run], Any]


class Interrupted(BaseException):
    """As a signal handler may raise it, anywhere."""


async def begin(agent: Agent, **options: Any) -> Run:
    run = agent.start("go", **options)
    await run.begin()
    while run.phase is not Phase.streaming:  # noqa: ASYNC110 - no event tells of it
        await asyncio.sleep(0)
    return run


def break_off(patch: pytest.MonkeyPatch, cancel: Callable[[], object]) -> None:
    """Interrupt a cancel between its entry and the wake-up."""

    def interrupted(*_: object) -> None:
        raise Interrupted

    with patch.context() as here:
        here.setattr(CancelSignal, "_notify", interrupted)
        with pytest.raises(Interrupted):
            cancel()


async def cancel_again(agent: Agent, run: Run) -> None:
    assert run.cancel() is CancelOutcome.already_requested


async def cancel_the_agent(agent: Agent, run: Run) -> None:
    assert agent.cancel() is CancelOutcome.already_requested


async def wait_for_it(agent: Agent, run: Run) -> None:
    await probe(run).settled()


async def ask_for_the_result(agent: Agent, run: Run) -> None:
    await run.result()


async def read_it(agent: Agent, run: Run) -> None:
    async for _ in run.events():
        pass


async def wait_until_gone(agent: Agent, run: Run) -> None:
    await probe(run).gone()


async def talk_on(agent: Agent, run: Run) -> None:
    assert (await agent.invoke_async("and now?")).status is RunStatus.completed


@pytest.mark.parametrize(
    "comer",
    [cancel_again, cancel_the_agent, wait_for_it, ask_for_the_result, read_it, wait_until_gone, talk_on],
    ids=lambda comer: comer.__name__,
)
@pytest.mark.parametrize("how", ["run", "agent"])
def test_the_next_look_delivers_it(comer: Comer, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        agent = Agent("A", ScriptedModel(["Half ", Stall()], then="OK."))
        run = await begin(agent)
        waiting = asyncio.create_task(
            local_run(run).steps.waiters.wait(lambda: run.status.final)
        )  # came before, and can't know
        break_off(monkeypatch, run.cancel if how == "run" else agent.cancel)
        assert probe(run).is_cancelling
        await comer(agent, run)
        await waiting
        assert run.status is RunStatus.cancelled
        assert probe(run).result.content == "Half "

    play(main)


def test_the_deadline_delivers_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        agent = Agent("A", ScriptedModel(["Half ", Stall()]))
        run = await begin(agent, timeout=1)
        waiting = asyncio.create_task(local_run(run).steps.waiters.wait(lambda: run.status.final))
        broken_off = Flag()
        clock = asyncio.create_task(time_is_up(broken_off))
        break_off(monkeypatch, run.cancel)
        broken_off.set()
        await waiting
        await clock
        assert run.receipt is not None
        assert run.receipt.cause == "user"  # the first one counts

    play(main, loop=StoppedClock)


def test_a_stronger_cancel_and_a_grace_that_were_not_delivered_are_heeded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        started = Flag()

        async def slow() -> str:
            started.set()
            await forever()

        agent = Agent("A", ScriptedModel(Call("slow")), tools=[slow])
        run = agent.start("go")
        await run.begin()
        await started.arrived()
        assert run.cancel(mode="after_turn") is CancelOutcome.requested
        await asyncio.sleep(0)  # which is heard
        break_off(monkeypatch, lambda: run.cancel(mode="after_tools", grace=0.01))
        await probe(run).settled()
        assert run.status is RunStatus.cancelled

    play(main)


def test_with_few_frames_left_it_raises_or_is_heard() -> None:
    """What it must never do is to say `requested`, and not be heard."""

    def call_with(left: int, cancel: Callable[[], CancelOutcome]) -> CancelOutcome:
        frame, depth = sys._getframe(), 0
        while frame is not None:
            depth, frame = depth + 1, frame.f_back  # type: ignore[assignment]
        return cancel() if sys.getrecursionlimit() - depth <= left else call_with(left, cancel)

    async def main() -> None:
        heard = 0
        for left in range(1, 40):
            agent = Agent("A", ScriptedModel(then=["Half ", Stall()]))
            run = await begin(agent)
            try:
                outcome = call_with(left, run.cancel)
            except RecursionError:
                outcome = run.cancel()
            else:
                heard += 1
            assert outcome
            await local_run(run).steps.waiters.wait(lambda run=run: run.status.final)  # type: ignore[misc]
        assert heard

    play(main)


# -- paused runs ------------------------------------------------------------------------------------------------------


async def asking() -> tuple[Agent, Run, dict[str, Any], Till]:
    till = Till()
    agent = Agent("A", ScriptedModel([DELETE], then="Done."), tools=till.tools)
    run, result = await paused(agent)
    return agent, run, {result.interrupts[0].id: True}, till


@pytest.mark.parametrize("comer", [cancel_again, wait_for_it, ask_for_the_result, read_it], ids=lambda c: c.__name__)
def test_a_paused_run_whose_cancel_was_interrupted_is_ended_by_the_next_look(
    comer: Comer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        agent, run, _, till = await asking()

        def interrupted(*_: object) -> None:
            raise Interrupted

        with monkeypatch.context() as patch:
            patch.setattr("andon.core.run.caretaker.hand_over", interrupted)
            with pytest.raises(Interrupted):
                run.cancel()
        await comer(agent, run)
        await probe(run).ended()
        assert run.status is RunStatus.cancelled
        assert till.did == []

    play(main)


def interrupt(*_: object, **__: object) -> None:
    raise Interrupted


@pytest.mark.parametrize(
    ("where", "stays"),
    [
        ("andon.core.run.pause.Token.take", True),
        ("andon.core.run.pause._go_on", True),
        ("andon.agent.loop.Loop.answer", False),
        ("andon.core.session.Session.run_moved", False),
        ("andon.core.run.run.LocalRun.go", False),
    ],
)
def test_an_answer_that_is_interrupted_leaves_a_run_that_waits_on_or_has_ended(
    where: str, stays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        agent, run, answers, till = await asking()
        with monkeypatch.context() as patch:
            patch.setattr(where, interrupt)
            with pytest.raises(Interrupted):
                await agent.continue_run(run.run_id, answers)
        if stays:
            assert run.status is RunStatus.paused
            assert (await agent.continue_run(run.run_id, answers)).status is RunStatus.completed
            assert till.did == ["all"]
        else:
            await probe(run).ended()
            assert run.status is RunStatus.cancelled
            assert till.did == []
        assert (await agent.invoke_async("Hello?")).status is RunStatus.completed

    play(main)


def test_answers_that_raise_when_they_are_looked_at_change_nothing() -> None:
    class Lazy(dict[str, Any]):
        def __iter__(self) -> Any:
            raise KeyboardInterrupt

        def keys(self) -> Any:
            raise KeyboardInterrupt

    async def main() -> None:
        agent, run, answers, _ = await asking()
        with pytest.raises(KeyboardInterrupt):
            await agent.continue_run(run.run_id, Lazy(answers))
        assert run.status is RunStatus.paused
        assert run.cancel() is CancelOutcome.requested
        await probe(run).ended()

    play(main)


@pytest.mark.parametrize(
    ("where", "begun"),
    [
        ("andon.core.session.Session.enter", False),
        ("andon.core.run.children.ChildRuns.join", False),
        ("andon.core.cord.Cord.add", True),
        ("andon.agent.loop.Loop.begin", True),
        ("andon.core.run.run.LocalRun.go", True),
    ],
)
def test_a_beginning_that_is_interrupted_leaves_nothing_or_an_ended_run(
    where: str, begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        agent = Agent("A", ScriptedModel(then="OK."))
        with monkeypatch.context() as patch:
            patch.setattr(where, interrupt)
            run = agent.start("go")
            with pytest.raises(Interrupted):
                await run.begin()
        if begun:
            await probe(run).ended()
            assert run.status is RunStatus.cancelled
        assert agent.runtime.live == 0
        assert (await agent.invoke_async("and now?")).status is RunStatus.completed

    play(main)


def test_a_cord_that_was_interrupted_leaves_the_next_prompt_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        agent = Agent("A", ScriptedModel(then="OK."))
        with monkeypatch.context() as patch:
            patch.setattr("andon.core.cord.Cord._is_valid", interrupt)
            with pytest.raises(Interrupted):
                agent.cancel()
        assert (await agent.invoke_async("go")).status is RunStatus.completed

    play(main)


def test_of_many_graces_only_those_count_that_end_before_the_others() -> None:
    """Else a storm of cancels, each with a grace, would keep the run's loop busy with all of them each time."""
    signal = CancelSignal()
    first = CancelRequest.make(mode="after_turn", grace=5)
    assert signal.cancel(first) is CancelOutcome.requested
    for _ in range(100):
        assert signal.cancel(CancelRequest.make(mode="after_turn", grace=5)) is CancelOutcome.already_requested
    sooner = CancelRequest.make(mode="after_turn", grace=1)
    signal.cancel(sooner)
    assert [each is first or each is sooner for each in signal.graces] == [True, True]
    stronger = CancelRequest.make(mode="after_tools", grace=9)
    signal.cancel(stronger)
    assert [each.grace for each in signal.graces] == [5, 9, 1]
    signal.cancel(CancelRequest.make(mode="now"))
    assert signal.mode == "now"
    asked = signal.asked
    for _ in range(100):
        signal.cancel(CancelRequest.make(mode="now", grace=1))  # a grace means nothing there
    assert signal.asked == asked


def test_a_task_that_was_made_but_is_not_known_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception comes after the loop has the run's task and before the run has it: the portal ends the run alone."""

    async def main() -> None:
        agent = Agent("A", ScriptedModel(then="OK."))
        loop = asyncio.get_running_loop()
        create_task, made = loop.create_task, []

        def interrupted(coroutine: Any, **options: Any) -> Any:
            made.append(create_task(coroutine, **options))
            raise Interrupted

        run = agent.start("go")
        with monkeypatch.context() as patch:
            patch.setattr(loop, "create_task", interrupted)
            with pytest.raises(Interrupted):
                await run.begin()
        await probe(run).ended()
        await asyncio.wait(made)
        assert run.status is RunStatus.cancelled
        assert [event.event.terminal for event in probe(run).events].count(True) == 1
        assert (await agent.invoke_async("and now?")).status is RunStatus.completed

    play(main)


@pytest.mark.parametrize("where", ["andon.core.runtime.Runtime.register", "andon.core.session.Session.enter"])
def test_a_beginning_that_is_interrupted_right_after_a_call_leaves_nothing(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        agent = Agent("A", ScriptedModel(then="OK."))
        original = derive(where)

        def interrupted(*args: Any) -> None:
            original(*args)
            raise Interrupted

        with monkeypatch.context() as patch:
            patch.setattr(where, interrupted)
            with pytest.raises(Interrupted):
                await agent.start("go").begin()
        assert agent.runtime.live == 0
        assert (await agent.invoke_async("and now?")).status is RunStatus.completed

    play(main)


def derive(where: str) -> Any:
    """What a dotted name means."""
    module, kind, name = where.rsplit(".", 2)
    return getattr(getattr(importlib.import_module(module), kind), name)

# SPDX-License-Identifier: Apache-2.0
"""The time from `run.cancel()` in another thread until the reader has the terminal event, for each state of a run.

The baseline is the minimal cancel: from `call_soon_threadsafe(task.cancel)` to the task's own `except`. The two
alternate in small rounds, so that a slow moment of the machine affects both. Each receipt is checked for its state.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial

from andon import Agent, Run, tool
from andon.agent.hooks import BeforeModel
from andon.agent.retry import Retry
from andon.core.states import Phase
from andon.errors import ModelError
from andon.models.base import ModelRequest, Sink
from andon.models.scripted import Call, Fail, Item, Pause, Say, ScriptedModel, Stall
from bench.cancelling import Canceller, Cue, time_bare, time_run
from bench.report import Figure, Goal, Progress, Row, percentile

ROUND = 10
GOALS = (Goal("p50_ratio", 4), Goal("p99_ratio", 10))
PACE = 0.002
PAUSES = 3
_numbers = itertools.count()


@dataclass
class Samples:
    """Microseconds, of the bare cancel and of ours."""

    bare: list[float] = field(default_factory=list)
    ours: list[float] = field(default_factory=list)

    def values(self) -> dict[str, float]:
        values: dict[str, float] = {}
        for name, q in (("p50", 0.5), ("p99", 0.99)):
            bare, ours = percentile(self.bare, q), percentile(self.ours, q)
            values |= {f"{name}_us": ours, f"{name}_bare_us": bare, f"{name}_ratio": ours / bare}
        return values


@dataclass(frozen=True)
class Tell(Item):
    """Gives the cue, and goes on to the next item at once."""

    cue: Cue

    async def play(self, sink: Sink, model: ScriptedModel) -> None:
        self.cue.give()


class State:
    """One of the states in which a run may wait."""

    def __init__(self, name: str, phase: Phase, agent: Agent, cue: Cue, parties: int = 1) -> None:
        self.name, self.agent = name, agent
        self._phase, self._cue, self._parties = phase, cue, parties

    async def sample(self, canceller: Canceller) -> float:
        async with AsyncExitStack() as stack:
            waiting = self._cue.expect(self._parties)
            run = await self._start(stack)
            micros, event = await time_run(canceller, run, waiting)
            assert event.receipt is not None
            assert event.receipt.phase is self._phase, f"{self.name}: cut in {event.receipt.phase}"
            self._release()
            await run.cancel_and_wait()
        return micros

    async def sample_bare(self, canceller: Canceller) -> float:
        return await time_bare(canceller)

    async def _start(self, stack: AsyncExitStack) -> Run:
        return await stack.enter_async_context(self.agent.start("Hello", session_id=f"s{next(_numbers)}"))

    def _release(self) -> None:
        """Let go of what a cancel leaves behind."""


class Paced(State):
    """Between two pieces of text; the bare task sleeps and wakes at the same pace."""

    async def sample_bare(self, canceller: Canceller) -> float:
        return await time_bare(canceller, PACE, PAUSES)


class SyncTool(State):
    """A thread that blocks until the sample is over, so that the next one finds no thread left."""

    def __init__(self, name: str, cue: Cue) -> None:
        self._gate = threading.Event()
        agent = Agent("Sync tool", ScriptedModel(then=Call("block")), tools=[tool(self._block, name="block")])
        super().__init__(name, Phase.tools, agent, cue)

    def _block(self) -> str:
        self._cue.give_from_thread()
        self._gate.wait()
        return "done"

    async def _start(self, stack: AsyncExitStack) -> Run:
        self._gate.clear()
        return await super()._start(stack)

    def _release(self) -> None:
        self._gate.set()


class Queued(State):
    """Behind another run of the same session. Nothing of ours runs there, so the run's phase is looked at."""

    async def _start(self, stack: AsyncExitStack) -> Run:
        session_id = f"s{next(_numbers)}"
        await stack.enter_async_context(self.agent.start("Hello", session_id=session_id))
        run = await stack.enter_async_context(self.agent.start("Hello", session_id=session_id, on_busy="queue"))
        while run.phase is not self._phase:  # noqa: ASYNC110 - no event tells of it
            await asyncio.sleep(0)
        self._cue.give()
        return run


class SlowHook:
    def __init__(self, cue: Cue) -> None:
        self._cue = cue

    async def before_model(self, _event: BeforeModel) -> None:
        self._cue.give()
        await asyncio.get_running_loop().create_future()


class TellingRetry(Retry, frozen=True, kw_only=True):
    cue: Cue

    def delay(self, error: Exception, attempt: int) -> float | None:
        self.cue.give()
        return super().delay(error, attempt)


def on_and_on(cue: Cue, _request: ModelRequest) -> Iterator[Item]:
    for number in itertools.count():
        yield Say("and so on ", pieces=1)
        if number == PAUSES:
            yield Tell(cue)
        yield Pause(PACE)


def make_states() -> list[State]:
    cue = Cue()

    async def wait() -> str:
        cue.give()
        await asyncio.get_running_loop().create_future()
        return "never"

    def plays(name: str, *turn: str | Item) -> Agent:
        return Agent(name, ScriptedModel(then=turn), tools=[tool(wait)])

    overloaded = Fail(ModelError("overloaded", retryable=True, retry_after=60))
    hooked = Agent("Hook", ScriptedModel(), hooks=[SlowHook(cue)])
    retrying = Agent("Retry", ScriptedModel(then=overloaded), retry=TellingRetry(cue=cue))
    return [
        State("model silent", Phase.waiting, plays("Silent", Tell(cue), Stall()), cue),
        State("stalled mid-stream", Phase.streaming, plays("Stalled", "Once upon", Tell(cue), Stall()), cue),
        Paced("paced streaming", Phase.streaming, Agent("Paced", ScriptedModel(then=partial(on_and_on, cue))), cue),
        State("async tool", Phase.tools, plays("Tool", Call("wait")), cue),
        SyncTool("blocking sync tool", cue),
        State("three parallel tools", Phase.tools, plays("Tools", *[Call("wait")] * 3), cue, parties=3),
        State("hook", Phase.hook, hooked, cue),
        State("retry back-off", Phase.backoff, retrying, cue),
        Queued("queued behind another", Phase.queued, plays("Queue", Stall()), cue),
    ]


async def take(states: Sequence[State], samples: int, said: Callable[[int, int], None]) -> list[Samples]:
    """For each state the bare samples and ours."""
    taken = [Samples() for _ in states]
    rounds = -(-samples // ROUND)
    with Canceller() as canceller:
        for number in range(rounds):
            said(number + 1, rounds)
            for state, them in zip(states, taken, strict=True):
                them.bare += [await state.sample_bare(canceller) for _ in range(ROUND)]
                them.ours += [await state.sample(canceller) for _ in range(ROUND)]
    return taken


def measure(quick: bool, progress: Progress) -> Figure:
    samples = 50 if quick else 2000
    states = make_states()
    asyncio.run(take(states, ROUND, lambda done, of: None))  # to warm up
    taken = asyncio.run(take(states, samples, lambda done, of: progress(done, of, "rounds over all states")))
    figure = Figure("latency", f"cancel in another thread to the reader's terminal event, {samples} samples each")
    figure.rows += [Row(state.name, them.values(), GOALS) for state, them in zip(states, taken, strict=True)]
    return figure

# SPDX-License-Identifier: Apache-2.0
"""The conformance suite for models: does a model of your own keep the promises that a run relies on?

It runs in real time, against the real provider or a fake of it, and makes a few dozen short requests. What must stay
true: a model that keeps the protocol of `andon.models.base` has no problems here, whichever library it is built on.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import os
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from andon.agent.agent import Agent
from andon.core.run.handle import Run
from andon.core.states import FinishReason, RunStatus
from andon.errors import AndonError, describe
from andon.messages import Usage
from andon.models.base import Model, ModelRequest, Sink
from andon.models.base import check_model as check_is_model

STRAY_SECONDS = 1.0
"""How long the rest of a cancelled request may take to end."""
BLOCKED_SECONDS = 0.01
BLOCKED_TIMES = 3
"""A model waits without an `await` if it pauses for so long between two pushes, so many times, and in all that time the
event loop ran nothing else. A busy machine alone does not make it pause that often while it pushes what one read
brought."""


def check_model(
    make_model: Callable[[], Model], *, prompt: str = "Say hello.", points: int = 10, seconds: float = 30.0
) -> list[str]:
    """The problems of a model, as sentences. An empty list means that it can be used.

    In a test: `assert check_model(lambda: MyModel(base_url=fake.base_url)) == []`

    The prompt needs an answer of several pieces. The model is asked it, is cancelled at `points` places in the answer
    and asked again each time, is asked twice at once, and on a second event loop. Each request may take `seconds`. This
    function has event loops of its own, so it can't be called inside a running one.
    """
    if not callable(make_model):
        return ["give a function that makes the model: check_model(lambda: MyModel(…))"]
    try:
        model = make_model()
        check_is_model(model)
        problems = _check_names(model)
    except AndonError as error:
        return [describe(error)]
    suite = _Suite(model, prompt, points, seconds)
    for check in (suite.first_loop, suite.second_loop):
        if not problems:
            _run(check)
            problems = suite.problems
    return problems


def _check_names(model: Model) -> list[str]:
    problems = []
    if not isinstance(getattr(model, "id", None), str) or not model.id:
        problems.append("its id is no text: the result and telemetry name the model by it")
    if inspect.iscoroutinefunction(getattr(model, "check_setup", None)):
        problems.append("its check_setup is async: it is called before a run begins, and must not wait")
    elif callable(check := getattr(model, "check_setup", None)):
        check()
    return problems


def _run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """`asyncio.run`, but it does not wait for ever for a task that ignores its cancel."""
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(main())
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left, timeout=STRAY_SECONDS))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


class _Suite:
    """The checks of one model, on two event loops."""

    def __init__(self, model: Model, prompt: str, points: int, seconds: float) -> None:
        self._model, self._prompt, self._points, self._seconds = model, prompt, points, seconds
        self.problems: list[str] = []

    async def first_loop(self) -> None:
        watched = _Watched(self._model)
        if not await self._answers(Agent("Conformance", watched), "the first request"):
            return
        pushes = watched.pushes
        if watched.blocked >= BLOCKED_TIMES:
            self._add("it waits for its provider without an await: the event loop stands still, so no cancel can come")
            return
        if pushes < 3:
            self._add(f"its answer had {pushes} pushes: give a prompt with a longer answer, to cancel in the middle of")
            return
        await self._two_at_once()
        sockets, tasks = _open_sockets(), asyncio.all_tasks()
        for point in sorted({pushes * number // self._points for number in range(self._points)}):
            if self.problems:
                return
            await self._cancel_at(point)
        await self._check_left(sockets, tasks)
        await self._close()

    async def second_loop(self) -> None:
        """A client that belongs to the first loop would break here."""
        await self._answers(Agent("Conformance", self._model), "a request on a second event loop")
        await self._close()

    async def _answers(self, agent: Agent, what: str) -> bool:
        try:
            async with asyncio.timeout(self._seconds):
                result = await agent.invoke_async(self._prompt)
        except TimeoutError:
            self._add(f"{what} did not end within {self._seconds:g} s")
            return False
        if result.status is not RunStatus.completed:
            self._add(f"{what} failed: {describe(result.error) if result.error else result.status.name}")
        elif not result.content:
            self._add(f"{what} had no text")
        else:
            return True
        return False

    async def _two_at_once(self) -> None:
        agents = [Agent("Conformance", self._model) for _ in range(2)]
        await asyncio.gather(*(self._answers(agent, "one of two requests at once") for agent in agents))

    async def _cancel_at(self, point: int) -> None:
        where = "before its first await" if point == 0 else f"after push {point}"
        watched = _Watched(self._model)
        agent = Agent("Conformance", watched)
        async with agent.start(self._prompt) as run:
            watched.cancel_at(point, run)
            try:
                async with asyncio.timeout(self._seconds):
                    result = await run.result()
            except TimeoutError:
                self._add(f"cancelled {where}, it did not end within {self._seconds:g} s")
                return
        if result.receipt is None:
            self._add(f"its answer had fewer than {point} pushes the second time: use a prompt whose answers are alike")
            return
        if result.receipt.leftovers:
            self._add(f"cancelled {where}, it did not stop: let CancelledError through, and wait for nothing after it")
        elif watched.swallowed:
            self._add(f"cancelled {where}, it went on and returned: it must let CancelledError through")
        elif watched.raised is not None:
            self._add(f"cancelled {where}, it raised {watched.raised} instead: it must let CancelledError through")
        elif result.receipt.latency >= agent.runtime.bounds.cut_seconds:
            self._add(f"cancelled {where}, it took {result.receipt.latency:.1f} s to stop: close, and don't wait")
        watched.cancel_at(-1, None)
        if await self._answers(agent, f"the next prompt, after a cancel {where},") and watched.late:
            self._add(f"cancelled {where}, it pushed to the sink after `stream` had ended: a task of it is left")

    async def _check_left(self, sockets: int, tasks: set[asyncio.Task[Any]]) -> None:
        deadline = asyncio.get_running_loop().time() + STRAY_SECONDS
        while True:
            left = [task for task in asyncio.all_tasks() - tasks if not task.done()]
            more = _open_sockets() - sockets
            if not left and more < self._points:
                return
            if asyncio.get_running_loop().time() >= deadline:
                break
            await asyncio.sleep(0.01)
        if left:
            self._add(f"after {self._points} cancels, {len(left)} tasks are left: {left[0].get_name()}, for one")
        if more >= self._points:
            self._add(f"after {self._points} cancels, {more} more connections are open: close them in a finally")

    async def _close(self) -> None:
        close = getattr(self._model, "aclose", None)
        if callable(close):
            await close()

    def _add(self, problem: str) -> None:
        self.problems.append(problem)


class _Watched:
    """A model between the agent and the model: it counts what is pushed, and cancels at a place."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.id = model.id
        self.pushes = self.late = 0
        self.swallowed = False
        self.raised: str | None = None
        """The error that a cancel became."""
        self.blocked = 0
        """How often it waited and kept the event loop from running."""
        self._blocked_now, self._pushed_at = 0, math.inf  # since the event loop ran
        self._point = -1
        self._run: Run[Any] | None = None

    def cancel_at(self, point: int, run: Run[Any] | None) -> None:
        self._point, self._run = point, run

    async def stream(self, request: ModelRequest, sink: Sink) -> None:
        self.pushes = 0
        gate = _Gate(self, sink)
        self._look()
        try:
            await self._model.stream(request, gate)
            await asyncio.sleep(0)  # a cancel that the model had no chance to see arrives here
            self.swallowed = _is_cancelled()
        except Exception as error:
            self.raised = describe(error) if _is_cancelled() else None
            raise
        finally:
            gate.is_over = True

    def push(self, is_over: bool) -> None:
        if is_over:
            self.late += 1
            return
        self.pushes += 1
        self._measure()
        self._look()

    def _measure(self) -> None:
        now = time.perf_counter()
        if self._pushed_at is math.inf:
            asyncio.get_running_loop().call_soon(self._loop_ran)
        elif now - self._pushed_at >= BLOCKED_SECONDS:
            self._blocked_now += 1
            self.blocked = max(self.blocked, self._blocked_now)
        self._pushed_at = now

    def _loop_ran(self) -> None:
        self._blocked_now, self._pushed_at = 0, math.inf

    def _look(self) -> None:
        if self.pushes == self._point and self._run is not None:
            self._run.cancel()


class _Gate:
    """The sink that the model sees."""

    def __init__(self, watched: _Watched, sink: Sink) -> None:
        self._watched, self._sink = watched, sink
        self.is_over = False

    def text(self, text: str) -> None:
        self._sink.text(text)
        self._watched.push(self.is_over)

    def reasoning(self, text: str, signature: str | None = None) -> None:
        self._sink.reasoning(text, signature)
        self._watched.push(self.is_over)

    def tool_call(
        self, call_id: str, name: str = "", arguments: str | dict[str, Any] = "", *, done: bool = False
    ) -> None:
        self._sink.tool_call(call_id, name, arguments, done=done)
        self._watched.push(self.is_over)

    def usage(self, usage: Usage | None = None, **numbers: int | None) -> None:
        self._sink.usage(usage, **numbers)

    def finish(self, reason: FinishReason, detail: str | None = None) -> None:
        self._sink.finish(reason, detail)

    def warn(self, text: str) -> None:
        self._sink.warn(text)


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _open_sockets() -> int:
    """How many sockets this process has open; 0 where the system does not tell."""
    try:
        return sum("socket:" in os.readlink(file) for file in Path("/proc/self/fd").iterdir() if file.is_symlink())
    except OSError:
        return 0

# SPDX-License-Identifier: Apache-2.0
"""Hooks: objects that are told what a run does, and may refuse a tool call.

A hook has some of the methods `before_model`, `after_model`, `before_tool`, `after_tool`, `message_added`, `run_ended`,
sync or async. Each takes one argument, a `HookEvent`. Sync methods are called on the run's loop and must not block it.
Async methods are steps of the run: they have a time limit, and a cancel cuts them. A hook that fails or hangs is logged
and reported in `result.warnings`, and the run goes on. Only a `before_tool` that fails refuses its call, because it may
be a guard.
"""

from __future__ import annotations

import functools
import inspect
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from msgspec import Struct

from andon.core.receipt import RunResult
from andon.core.run.run import LocalRun
from andon.core.states import CancelMode, Phase, Rank, ToolOutcome
from andon.core.steps import Cut, CutAloneError, as_exception
from andon.errors import HookDefinitionError, confide
from andon.messages import Message, ToolCall, ToolResult, Usage
from andon.models.base import ModelRequest

log = logging.getLogger(__name__)


class HookEvent(Struct, kw_only=True):
    """What every hook is told about the run."""

    run_id: str
    session_id: str
    agent_id: str
    user_id: str | None
    metadata: dict[str, Any] = {}
    """The dict that the caller gave the run. It is stored with the run."""
    deps: Any = None
    """What the caller gave the run's tools, hooks and instructions. It is stored nowhere."""


class BeforeModel(HookEvent):
    """A model call is about to be sent."""

    request: ModelRequest


class AfterModel(HookEvent):
    """A model call has ended."""

    message: Message
    usage: Usage


class BeforeTool(HookEvent):
    """A tool is about to run. `cancel("why")` refuses this one call; the model is told why."""

    call: ToolCall
    refusal: str | None = None

    def cancel(self, message: str) -> None:
        self.refusal = message or "refused"


class AfterTool(HookEvent):
    """A tool call has ended, with its result or with an error.

    `error` is what the tool raised, or the reason why the call did not run. Don't keep it longer than you need it: it
    holds the frames of the tool.
    """

    call: ToolCall
    result: ToolResult
    outcome: ToolOutcome
    error: Exception | None = None


class MessageAdded(HookEvent):
    """A message was added to the conversation."""

    message: Message


class RunEnded(HookEvent):
    """The run has ended: it is settled and stored, and its readers have the last event."""

    result: RunResult


E = TypeVar("E", bound=HookEvent)

POINTS: dict[type[HookEvent], str] = {
    BeforeModel: "before_model",
    AfterModel: "after_model",
    BeforeTool: "before_tool",
    AfterTool: "after_tool",
    MessageAdded: "message_added",
    RunEnded: "run_ended",
}


class Hooks:
    """The hooks of one agent, by the events that they want."""

    def __init__(self, hooks: Sequence[object]) -> None:
        self._methods: dict[type[HookEvent], list[tuple[str, Callable[[Any], Any]]]] = {}
        for hook in hooks:
            found = {kind: getattr(hook, point) for kind, point in POINTS.items() if hasattr(hook, point)}
            if not found or isinstance(hook, type):
                points = ", ".join(POINTS.values())
                raise HookDefinitionError(f"{hook!r} is no hook: give an object with one or more of {points}")
            for kind, method in found.items():
                if not callable(method):
                    raise HookDefinitionError(f"{POINTS[kind]} of {hook!r} can't be called: make it a method")
                self._methods.setdefault(kind, []).append((f"hook {type(hook).__name__}.{POINTS[kind]}", method))

    def wants(self, kind: type[HookEvent]) -> bool:
        return kind in self._methods

    async def tell(
        self, run: LocalRun, deps: Any, kind: type[E], cut_by: Rank | None = CancelMode.now, **facts: Any
    ) -> E | None:
        """Call all hooks that want events of this kind, one after the other. None if there are none."""
        methods = self._methods.get(kind)
        if methods is None:
            return None
        event, phase = _make_event(run, deps, kind, facts), run.phase
        if phase not in (Phase.tools, Phase.ending):
            run.phase = Phase.hook
        for name, method in methods:
            problem = await _call_hook(run, name, method, event, cut_by)
            if problem is not None and isinstance(event, BeforeTool) and event.refusal is None:
                event.refusal = f"{problem}, so the call was refused"
        run.phase = phase
        return event


def _make_event(run: LocalRun, deps: Any, kind: type[E], facts: dict[str, Any]) -> E:
    return kind(
        run_id=run.run_id,
        session_id=run.session_id,
        agent_id=run.agent_id,
        user_id=run.user_id,
        metadata=run.metadata,
        deps=deps,
        **facts,
    )


def _call_here(run: LocalRun, name: str, function: Callable[[Any], Any], given: Any) -> Any:
    """Call a sync function on the loop. Nothing can limit its time; if it takes too long, that is reported."""
    began = time.monotonic()
    try:
        return function(given)
    except GeneratorExit as error:  # the function raised it itself: no coroutine is being closed here
        raise as_exception(error) from None
    finally:
        if (took := time.monotonic() - began) > run.bounds.hook_seconds:
            slow = f"{name} blocked the event loop for {took:.2g} s; make it async, or move the work to a thread"
            run.steps.warn(slow, log)


async def call_user_function(
    run: LocalRun, name: str, function: Callable[[Any], Any], given: Any, cut_by: Rank | None
) -> Any:
    """Call a function of the user: a sync one on the loop, an async one as a step of the run with a time limit."""
    seconds = run.bounds.hook_seconds
    if inspect.iscoroutinefunction(function):
        return await run.steps.start(functools.partial(function, given), name=name, cut_by=cut_by, timeout=seconds)
    if not inspect.isawaitable(pending := _call_here(run, name, function, given)):
        return pending
    try:  # a sync function that returns an awaitable: a lambda, a decorated function
        return await run.steps.start(lambda: pending, name=name, cut_by=cut_by, timeout=seconds)
    finally:
        if inspect.iscoroutine(pending) and inspect.getcoroutinestate(pending) == inspect.CORO_CREATED:
            pending.close()  # the run was cancelled before it began


async def _call_hook(
    run: LocalRun, name: str, method: Callable[[Any], Any], event: HookEvent, cut_by: Rank | None
) -> str | None:
    """Call one hook. Returns what went wrong with it, which is reported here."""
    try:
        await call_user_function(run, name, method, event, cut_by)
    except CutAloneError:
        problem = f"{name} took longer than {run.bounds.hook_seconds:g} s"
        run.steps.warn(problem, log)
        return problem
    except (Cut, KeyboardInterrupt, GeneratorExit):  # GeneratorExit comes if this coroutine is closed
        raise
    except BaseException as error:  # noqa: BLE001 - a CancelledError too: it is the hook's own, since a step keeps the host's
        run.steps.warn(f"{name} failed", log, error)
        return f"{name} failed: {confide(error)}"
    return None

# SPDX-License-Identifier: Apache-2.0
"""Hooks: objects that are told what a run does, and may refuse a tool call.

A hook has some of the methods `before_model`, `after_model`, `before_tool`, `after_tool`, `message_added`, `run_ended`,
sync or async, each with one parameter: what happened. Sync ones are called on the run's loop and must not block it;
async ones are steps of the run: bounded, and cut by a cancel. One that fails or hangs is logged and reported in
`result.warnings`, and the run goes on; only a failed `before_tool` refuses its call, because a guard that broke
must not let anything through.
"""

from __future__ import annotations

import functools
import inspect
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from andon.core.receipt import RunResult
from andon.core.run.run import Run
from andon.core.states import CancelMode, ToolOutcome
from andon.core.steps import Cut, CutAloneError, as_exception
from andon.errors import HookDefinitionError, confide
from andon.messages import Message, ToolCall, ToolResult, Usage
from andon.models.base import ModelRequest

log = logging.getLogger(__name__)


class HookEvent(Struct, kw_only=True):
    """What every hook is told."""

    run_id: str
    session_id: str
    agent_id: str
    user_id: str | None
    metadata: dict[str, Any] = {}
    """What the caller gave the run, and is kept with it."""
    deps: Any = None
    """What the caller gave the run's tools, hooks and instructions, and is kept nowhere."""


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

    `error` is what the tool raised, or what kept the call from running. Don't keep it longer than you need it: it holds
    the frames of the tool.
    """

    call: ToolCall
    result: ToolResult
    outcome: ToolOutcome
    error: Exception | None = None


class MessageAdded(HookEvent):
    """The conversation has one message more."""

    message: Message


class RunEnded(HookEvent):
    """The run is over: settled, stored, and told to its readers."""

    result: RunResult


POINTS: dict[type[HookEvent], str] = {
    BeforeModel: "before_model",
    AfterModel: "after_model",
    BeforeTool: "before_tool",
    AfterTool: "after_tool",
    MessageAdded: "message_added",
    RunEnded: "run_ended",
}


class Hooks:
    """The hooks of one agent, sorted by what they want to hear."""

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

    async def tell(self, run: Run, event: HookEvent, cut_by: CancelMode | None) -> None:
        """Tell all who want to know, one after the other."""
        for name, method in self._methods[type(event)]:
            problem = await _call(run, name, method, event, cut_by)
            if problem is not None and isinstance(event, BeforeTool) and event.refusal is None:
                event.refusal = f"{problem}, so the call was refused"


def _call_here(run: Run, name: str, function: Callable[[Any], Any], given: Any) -> Any:
    """Call a sync function, here on the loop. Nothing can bound it, but it is told how long it held all up."""
    began = time.monotonic()
    try:
        return function(given)
    except GeneratorExit as error:  # the hook's own: nothing waits here that could be closed
        raise as_exception(error) from None
    finally:
        if (took := time.monotonic() - began) > run.bounds.hook_seconds:
            slow = f"{name} blocked the event loop for {took:.2g} s; make it async, or move the work to a thread"
            run.warn(slow, log)


async def call(run: Run, name: str, function: Callable[[Any], Any], given: Any, cut_by: CancelMode | None) -> Any:
    """Call a function that isn't ours: a sync one here on the loop, an async one as a step of the run, bounded."""
    seconds = run.bounds.hook_seconds
    if inspect.iscoroutinefunction(function):
        return await run.step(functools.partial(function, given), name=name, cut_by=cut_by, timeout=seconds)
    if not inspect.isawaitable(pending := _call_here(run, name, function, given)):
        return pending
    try:  # async behind a sync face: a lambda, a decorator
        return await run.step(lambda: pending, name=name, cut_by=cut_by, timeout=seconds)
    finally:
        if inspect.iscoroutine(pending) and inspect.getcoroutinestate(pending) == inspect.CORO_CREATED:
            pending.close()  # the run was cancelled before it began


async def _call(
    run: Run, name: str, method: Callable[[Any], Any], event: HookEvent, cut_by: CancelMode | None
) -> str | None:
    """Call one hook, and report what went wrong with it."""
    try:
        await call(run, name, method, event, cut_by)
    except CutAloneError:
        problem = f"{name} took longer than {run.bounds.hook_seconds:g} s"
        run.warn(problem, log)
        return problem
    except (Cut, KeyboardInterrupt, GeneratorExit):  # the last one comes if this coroutine is closed while it waits
        raise
    except BaseException as error:  # noqa: BLE001 - a CancelledError too: a step never lets the host's out
        run.warn(f"{name} failed", log, error)
        return f"{name} failed: {confide(error)}"
    return None

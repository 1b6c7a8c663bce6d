# SPDX-License-Identifier: Apache-2.0
"""Undoing one call: its undo functions are called one after the other, in bounded time, and nothing but that time
cuts them. What must stay true: one that fails does not stop the others, and each failure is told.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, cast

import msgspec

from andon.core.log_text import cut_line
from andon.core.shielded import ShieldedTask
from andon.core.steps import as_exception, is_being_closed
from andon.errors import describe
from andon.messages import ToolCall
from andon.tools.base import Tool, ToolContext, traits_of
from andon.tools.internals import CallInternals
from andon.tools.undo import Holder, UndoneCall, call_undo

if TYPE_CHECKING:
    from andon.core.run.tool_call import ToolCallScope

log = logging.getLogger(__name__)


def definition_step(tool: Tool | None, call: ToolCall, facts: dict[str, Any]) -> Callable[[], Any] | None:
    """The call of the function that the tool was defined with, or None. It may raise when it is called."""
    undo = None if tool is None else traits_of(tool).undo
    if tool is None or undo is None:
        return None
    scope = cast("ToolCallScope", UndoneCall(call.id, call.name))
    ctx: ToolContext = ToolContext(CallInternals(scope), **facts)
    # Bound anew: the tool may have changed the arguments that it was given.
    arguments = msgspec.json.decode(msgspec.json.encode(call.arguments))
    return undo.bind(tool.bind(arguments), ctx)


class Undoing:
    """One call that is being undone, or was."""

    __slots__ = ("_call", "_holder", "_seconds", "_take", "failure", "is_announced", "is_over", "task")

    def __init__(
        self, call: ToolCall, seconds: float, holder: Holder, take: Callable[[], Iterable[Callable[[], Any]]]
    ) -> None:
        """`take` returns the steps in the order in which they are called. It is called when the call has ended."""
        self._call, self._seconds, self._holder = call, seconds, holder
        self._take: Callable[[], Iterable[Callable[[], Any]]] | None = take
        """None once it is over: it refers to the call's record, which refers to this object."""
        self.task: ShieldedTask | None = None
        self.is_announced = self.is_over = False
        """It is on record that the call is undone. The undoing is over."""
        self.failure: str | None = None
        """Why it was not undone."""

    @property
    def is_done(self) -> bool:
        """The call was undone."""
        return self.is_over and self.failure is None

    @property
    def name(self) -> str:
        return f"undo of {self._call.name} ({self._call.id})"

    def start(self) -> ShieldedTask:
        """Begin, on the running loop."""
        loop = asyncio.get_running_loop()
        self.task = ShieldedTask(self._perform(), seconds=self._seconds, loop=loop, name=self.name)
        return self.task

    def fail(self, why: str) -> None:
        if not self.is_over:
            self.is_over, self.failure = True, why
        if self.task is None:
            self._take = None

    async def _perform(self) -> None:
        failures: list[str] = []
        error: Exception | None = None
        try:
            try:
                assert self._take is not None
                steps = list(self._take())
            except Exception as raised:  # noqa: BLE001 - reported: a user's validator may raise anything
                steps, error = [], raised
                failures.append(cut_line(describe(raised)))
            for step in steps:
                try:
                    await call_undo(step, self.name, self._holder)
                except BaseException as raised:
                    if self._is_interrupt(raised):
                        if isinstance(raised, KeyboardInterrupt):  # else nothing would tell that it is over
                            self.fail("a KeyboardInterrupt stopped it")
                            self._holder.picked_up(self)
                        raise
                    error = as_exception(raised)
                    failures.append(cut_line(describe(error)))
        except asyncio.CancelledError:
            failures.append(f"it took longer than {self._seconds:g} s")
        if failures:
            self.fail("; ".join(failures))
            log.warning("%s failed: %s", self.name, self.failure, exc_info=error)
            error = None  # its traceback has this frame
        else:
            self.is_over = True
        self._take = None
        self._holder.picked_up(self)

    def _is_interrupt(self, raised: BaseException) -> bool:
        """Is it something that no undo function has raised by itself?"""
        if isinstance(raised, asyncio.CancelledError):
            return self.task is not None and self.task.out_of_time
        return isinstance(raised, KeyboardInterrupt) or (
            isinstance(raised, GeneratorExit) and is_being_closed(self.task)
        )

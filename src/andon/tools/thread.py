# SPDX-License-Identifier: Apache-2.0
"""A blocking function in a daemon thread of its own, awaited by a coroutine that a cancel may cut at any moment.

What must stay true: the coroutine never waits for a thread that a cut has left behind. Such a thread is counted until
it ends; then its result is logged and dropped. Nothing that the function raises can stop the event loop.

There is no thread pool. Its workers would outlive the call, and each abandoned thread would occupy a worker.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections import Counter
from collections.abc import Callable
from typing import TypeAlias

from andon.core.run.tool_call import ToolCallScope
from andon.errors import ThreadsExhaustedError, ToolCancelled, ToolError
from andon.tools.base import ToolOutput

log = logging.getLogger(__name__)

STOP_SECONDS = 0.05
"""How long a tool that looks for a cancel may take to stop before its thread counts as abandoned."""

EXIT_SECONDS = 0.05
"""How long a thread may take to exit after its result: microseconds, unless its thread-locals are slow to free."""

# A plain pair, not an exception in a future: a future takes no StopIteration, warns of an exception that is never
# retrieved, and would take a CancelledError that the function raised for a cancellation of ours.
Outcome: TypeAlias = tuple[str | ToolOutput, BaseException | None]


class ToolThread:
    """The thread of one call, as its call and its runtime know it."""

    __slots__ = ("name",)

    def __init__(self, scope: ToolCallScope) -> None:
        self.name = f"thread of {scope.name} ({scope.call_id})"

    def on_cut(self) -> None:
        """A thread can't be stopped from outside. The tool may look at `ctx.cancelled` and stop by itself."""


async def call_in_thread(work: Callable[[], str | ToolOutput], name: str, scope: ToolCallScope) -> str | ToolOutput:
    """Run `work` in a thread of its own, with the caller's context variables, and return or raise what it does.

    A cancellation of the awaiting task goes through at once and leaves the thread behind. Only a tool that looks for a
    cancel gets `STOP_SECONDS` to stop first. The runtime has the thread's name by then: `scope.fire()` comes before the
    cancellation.
    """
    _check_room(name, scope)
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Outcome] = loop.create_future()
    over: asyncio.Future[None] = loop.create_future()
    held = ToolThread(scope)
    thread = threading.Thread(
        target=_serve,
        args=(contextvars.copy_context(), work, loop, future, over, name, scope, held),
        name=f"andon-tool-{name}",
        daemon=True,
    )
    scope.hold(held)  # before the start: a thread may end before start() returns
    try:
        thread.start()
    except RuntimeError as refusal:
        scope.release(held)
        raise ToolError(
            f"no thread could be started for {name} ({refusal}): the process is at its limit, or about to exit."
            " Nothing of the tool has run; it may be called again when other threads have ended"
        ) from refusal
    try:
        text, error = await future
    except asyncio.CancelledError:
        if future.done() and not future.cancelled():  # the result and the cancellation came at the same moment
            _drop(future.result(), name, scope)
        elif scope.watches_cancel:
            await asyncio.wait({over}, timeout=STOP_SECONDS)
            if over.done():
                thread.join(EXIT_SECONDS)
        raise
    thread.join(EXIT_SECONDS)  # so that nothing is left after a call; bounded, because it blocks the loop
    if error is None:
        return text
    del future  # it holds the error, whose traceback is about to hold this frame
    try:
        if isinstance(error, StopIteration | KeyboardInterrupt):
            # StopIteration can't leave a coroutine. KeyboardInterrupt would stop the loop, but no Ctrl-C reaches a
            # thread: the function raised it itself.
            raise RuntimeError(f"tool {name} raised {type(error).__name__}") from error
        raise error
    finally:
        del error


def _check_room(name: str, scope: ToolCallScope) -> None:
    """Raise if too many threads of cancelled calls are still running.

    Each user has a share of the room. Threads beyond that share don't count against other users. Threads of runs
    without a user all count.
    """
    if not (abandoned := scope.run.runtime.abandoned):
        return
    held = abandoned.copy().items()
    counts = Counter(call.run.user_id for resource, call in held if isinstance(resource, ToolThread))
    user_id, bounds = scope.run.user_id, scope.run.runtime.bounds
    share = bounds.abandoned_user_threads
    if user_id is not None and counts[user_id] >= share:
        raise _no_room(name, counts[user_id], " of this user", "abandoned_user_threads")
    total = sum(count if whose is None else min(count, share) for whose, count in counts.items())
    if total >= bounds.abandoned_threads:
        raise _no_room(name, total, "", "abandoned_threads")


def _no_room(name: str, count: int, whose: str, option: str) -> ThreadsExhaustedError:
    return ThreadsExhaustedError(
        f"too many threads of cancelled tools{whose} are still running ({count}), so none was started for {name}."
        " Wait for them to end; have sync tools call ctx.check_cancelled() or use ctx.on_cancel(...), so that they"
        f" stop when they are cancelled; or allow more of them with Runtime({option}=...)"
    )


def _serve(
    context: contextvars.Context,
    work: Callable[[], str | ToolOutput],
    loop: asyncio.AbstractEventLoop,
    future: asyncio.Future[Outcome],
    over: asyncio.Future[None],
    name: str,
    scope: ToolCallScope,
    held: ToolThread,
) -> None:
    """All that the thread does."""
    try:
        outcome = context.run(_attempt, work)
        try:
            loop.call_soon_threadsafe(_deliver, future, over, outcome, name, scope)
        except RuntimeError:  # the loop is closed
            _drop(outcome, name, scope)
        del outcome, future, over  # an error's traceback holds this frame, which must not hold the error
    finally:
        scope.release(held)


def _attempt(work: Callable[[], str | ToolOutput]) -> Outcome:
    try:
        return work(), None
    except BaseException as error:  # noqa: BLE001 - the boundary: it is raised again where the thread is awaited
        return "", error


def _deliver(
    future: asyncio.Future[Outcome], over: asyncio.Future[None], outcome: Outcome, name: str, scope: ToolCallScope
) -> None:
    over.set_result(None)
    if future.done():  # cancelled: the call no longer waits
        _drop(outcome, name, scope)
    else:
        future.set_result(outcome)


def _drop(outcome: Outcome, name: str, scope: ToolCallScope) -> None:
    error = outcome[1]
    if isinstance(error, ToolCancelled):  # the tool stopped because of the cancel
        return
    how = "" if error is None else f": it raised {type(error).__name__}"
    # Never log the result itself. But log the exception, which is reported nowhere else.
    log.info("late result of tool %s (%s) dropped%s", name, scope.call_id, how, exc_info=error)

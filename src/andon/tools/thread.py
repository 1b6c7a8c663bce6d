# SPDX-License-Identifier: Apache-2.0
"""A blocking function in a daemon thread of its own, awaited by a coroutine that a cancel may cut at any moment.

What must stay true: the coroutine never waits for a thread that was given up; a thread that lives on is counted until
its very end, and what it brings then is logged and dropped; and nothing that the function raises can stop the loop.

There is no pool: its workers would outlive the call, and one abandoned thread would take a place from the next.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import Callable
from typing import TypeAlias

from andon.core.run.tool_call import CallScope
from andon.errors import ThreadsExhaustedError, ToolCancelled, ToolError

log = logging.getLogger(__name__)

HEED_SECONDS = 0.05
"""What a tool that looks for a cancel gets to heed it, before its thread counts as abandoned."""

EXIT_SECONDS = 0.05
"""What a thread may take to be gone once it has answered. Microseconds will do, unless its thread-locals die slowly."""

# Carried as a plain pair, because a future takes no StopIteration, complains of an exception that nobody fetched, and
# would take a CancelledError of the function's own for one of ours.
Outcome: TypeAlias = tuple[str, BaseException | None]


async def call_in_thread(work: Callable[[], str], name: str, scope: CallScope) -> str:
    """Run `work` in a thread of its own, with the caller's context variables, and return or raise what it does.

    A cancellation of the awaiting task goes through at once and leaves the thread behind; only a tool that looks for a
    cancel gets a moment to heed it. The runtime has named the thread by then: `scope.fire()` comes before the
    cancellation.
    """
    crowd, bound = scope.crowded()
    if crowd:
        whose = " of this user" if bound == "abandoned_user_threads" else ""
        raise ThreadsExhaustedError(
            f"too many threads of cancelled tools{whose} are still running ({crowd}), so none was started for {name}."
            " Wait for them to end; have sync tools ask ctx.check_cancelled() or use ctx.on_cancel(...), so that they"
            f" stop when they are told to; or allow more of them with Runtime({bound}=...)"
        )
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Outcome] = loop.create_future()
    over: asyncio.Future[None] = loop.create_future()
    thread = threading.Thread(
        target=_serve,
        args=(contextvars.copy_context(), work, loop, future, over, name, scope),
        name=f"andon-tool-{name}",
        daemon=True,
    )
    scope.thread_began()  # before the start: a thread may end before start() returns
    try:
        thread.start()
    except RuntimeError as refusal:
        scope.thread_ended()
        raise ToolError(
            f"no thread could be started for {name} ({refusal}): the process is at its limit, or about to exit."
            " Nothing of the tool has run; it may be called again when other threads have ended"
        ) from refusal
    try:
        text, error = await future
    except asyncio.CancelledError:
        if future.done() and not future.cancelled():  # the answer and the cancellation came at the same moment
            _drop(future.result(), name, scope)
        elif scope.heeding:
            await asyncio.wait({over}, timeout=HEED_SECONDS)
            if over.done():
                thread.join(EXIT_SECONDS)
        raise
    thread.join(EXIT_SECONDS)  # so that nothing is left after a call; bounded, because the loop stands still here
    if error is None:
        return text
    del future  # it holds the error, whose traceback is about to hold this frame
    try:
        if isinstance(error, StopIteration | KeyboardInterrupt):
            # The first can't leave a coroutine. The second would stop the loop, though no Ctrl-C ever reaches a thread.
            raise RuntimeError(f"tool {name} raised {type(error).__name__}") from error
        raise error
    finally:
        del error


def _serve(
    context: contextvars.Context,
    work: Callable[[], str],
    loop: asyncio.AbstractEventLoop,
    future: asyncio.Future[Outcome],
    over: asyncio.Future[None],
    name: str,
    scope: CallScope,
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
        scope.thread_ended()


def _attempt(work: Callable[[], str]) -> Outcome:
    try:
        return work(), None
    except BaseException as error:  # noqa: BLE001 - the boundary: whoever awaits the thread gets it
        return "", error


def _deliver(
    future: asyncio.Future[Outcome], over: asyncio.Future[None], outcome: Outcome, name: str, scope: CallScope
) -> None:
    over.set_result(None)
    if future.done():  # cancelled: nobody waits any more
        _drop(outcome, name, scope)
    else:
        future.set_result(outcome)


def _drop(outcome: Outcome, name: str, scope: CallScope) -> None:
    error = outcome[1]
    if isinstance(error, ToolCancelled):  # it did as it was told
        return
    how = "" if error is None else f": it raised {type(error).__name__}"
    # Never its content; but what it raised is told nowhere else.
    log.info("late result of tool %s (%s) dropped%s", name, scope.call_id, how, exc_info=error)

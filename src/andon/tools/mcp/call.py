# SPDX-License-Identifier: Apache-2.0
"""One call of a server's tool, in a task of its own.

A cut cancels that task. The task then tells the server, and ends when it has: with `notifications/cancelled`, or over
HTTP from version 2026-07-28 on by closing the stream of the call. The run waits for that `TELL_SECONDS`; until it is
done the call counts as running, and the receipt names it. A server that takes nothing for `UNHEARD_SECONDS` is
disconnected, and a program is ended: so the call can't go on unheard. It counts as running until that is done.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from andon.core.events import ProgressView
from andon.core.receipt import Interrupt
from andon.core.run.tool_call import ToolCallScope
from andon.errors import ToolInterrupted
from andon.messages import sendable
from andon.tools.internals import CallInternals
from andon.tools.mcp.content import accepted, describe_question
from andon.tools.mcp.session import Session

TELL_SECONDS = 0.05
UNHEARD_SECONDS = 2.0

ELICITATION = "elicitation"
"""The name of the interrupt that a server's question becomes."""

_WITHDRAWN = object()


class RemoteCall:
    """A call in flight. For the run it is a held resource."""

    __slots__ = (
        "_answers",
        "_gave_up",
        "_internals",
        "_questions",
        "_scope",
        "_session",
        "_task",
        "_unheard",
        "_wake",
        "name",
    )

    def __init__(self, session: Session, tool: str, internals: CallInternals | None) -> None:
        self._session, self._internals = session, internals
        self._scope: ToolCallScope | None = None if internals is None else internals.scope
        of = "" if self._scope is None else f" ({self._scope.call_id})"
        self.name = f"call of {tool} on the MCP server {session.name}{of}"
        self._answers = [] if internals is None else internals.answers
        self._questions: deque[tuple[Any, asyncio.Future[Any]]] = deque()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[Any] | None = None
        self._unheard: asyncio.TimerHandle | None = None
        self._gave_up = False
        """The server could not be told of the cut."""

    async def run(self, tool: str, arguments: dict[str, Any]) -> Any:
        """Make the call, and return the SDK's result. Raises `ToolInterrupted` if the server asks a person."""
        if self._scope is not None:
            self._scope.hold(self)
        self._task = asyncio.create_task(self._session.call(tool, arguments, self), name=self.name)
        self._task.add_done_callback(self._end)
        waker = asyncio.ensure_future(self._wake.wait())
        try:
            while not self._task.done():
                await asyncio.wait({self._task, waker}, return_when=asyncio.FIRST_COMPLETED)
                if waker.done():
                    self._wake.clear()
                    waker = asyncio.ensure_future(self._wake.wait())
                    self._answer_questions()
            return self._task.result()
        except BaseException:
            self._cancel()
            await asyncio.wait({self._task}, timeout=TELL_SECONDS)
            raise
        finally:
            waker.cancel()

    # -- its end ------------------------------------------------------------------------------------------------------

    def on_cut(self) -> None:
        self._cancel()

    def _cancel(self) -> None:
        assert self._task is not None
        if self._unheard is None and not self._task.done():
            self._unheard = asyncio.get_running_loop().call_later(UNHEARD_SECONDS, self._disconnect)
            self._task.cancel()

    def _disconnect(self) -> None:
        self._gave_up = True
        self._session.give_up(f"it did not take the cancellation of a call within {UNHEARD_SECONDS:g} s")

    def _end(self, task: asyncio.Task[Any]) -> None:
        if self._unheard is not None:
            self._unheard.cancel()
        for _, answer in self._questions:
            if not answer.done():
                answer.set_result(_WITHDRAWN)  # only now: the server knows that the call was cancelled
        if not task.cancelled():
            task.exception()  # it is raised where the call is awaited; after a cut it is of no interest
        if self._gave_up:
            self._session.when_closed(self._release)
        else:
            self._release()

    def _release(self) -> None:
        if self._scope is not None:
            self._scope.release(self)

    # -- what the server sends meanwhile ------------------------------------------------------------------------------

    async def take_progress(self, progress: float, total: float | None, message: str | None) -> None:
        if self._internals is not None:
            text = None if message is None else sendable(message)
            self._internals.show_progress(ProgressView(progress, total, text))

    async def ask(self, params: Any, types: Any) -> Any:
        """Called by the session, for the server: return a person's answer, or end with the call."""
        if self._scope is None:
            return types.ErrorData(code=types.INVALID_REQUEST, message="no person can be asked here")
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._questions.append((params, answer))
        self._wake.set()
        if (value := await answer) is _WITHDRAWN:
            return types.ElicitResult(action="cancel")
        return types.ElicitResult(action="accept", content=accepted(params, value))

    def _answer_questions(self) -> None:
        """Give the answers that there are, in the order of the questions. Raises `ToolInterrupted` with the others."""
        unanswered = []
        while self._questions and self._answers:
            params, answer = self._questions[0]
            value = self._answers.pop(0)
            accepted(params, value)  # an answer that does not fit fails the call, and the question is withdrawn
            self._questions.popleft()
            if not answer.done():
                answer.set_result(value)
        for params, _ in self._questions:
            unanswered.append(Interrupt("", ELICITATION, describe_question(self._session.name, params)))
        if unanswered:
            raise ToolInterrupted(unanswered)

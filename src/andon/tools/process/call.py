# SPDX-License-Identifier: Apache-2.0
"""One call in a process, as its coroutine and its run know it.

What must stay true: the call holds its process until the keeper says that nothing of it is left, or is gone itself. A
cut asks the keeper at once, and the coroutine then waits for that word. If a second cancellation comes first, the
process is named in the receipt.
"""

from __future__ import annotations

import asyncio
import codecs
import logging

import msgspec

from andon.core.run.tool_call import ToolCallScope
from andon.core.states import Stopped
from andon.errors import ToolProcessError
from andon.tools.process.channel import Channel
from andon.tools.process.pool import pool
from andon.tools.process.protocol import DONE, GONE, HELLO, LAST, MISSED, OUTPUT, READY, Answer, Failure, Gone, Spec

log = logging.getLogger(__name__)

SHOWN_BYTES = 256 * 1024
"""How much of what a call prints becomes events. Their run keeps them all."""


class ProcessCall:
    """The process of one call: a held resource."""

    def __init__(self, scope: ToolCallScope, what: str = "process") -> None:
        self.name = f"{what} of {scope.name} ({scope.call_id})"
        self._scope = scope
        self._loop = asyncio.get_running_loop()
        self._channel: Channel | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._shown = 0
        self.was_cut = False
        self.failure: Failure | None = None
        """Why the tool could not be loaded."""
        self.answer: Answer | None = None
        self.can_serve_again = False
        self.gone: Gone | None = None
        self.is_over = False
        """Nothing of it is left."""
        self._sent = False
        """A worker was given the call, or may have been."""
        self._tried = False
        """A worker was taken that had just ended, or could not begin. Another one is taken, once."""
        scope.hold(self)

    # -- the call's coroutine -----------------------------------------------------------------------------------------

    async def perform(self, spec: Spec, data: bytes = b"") -> None:
        """Start a worker, or take a waiting one, send it `data`, and wait until the call is over.

        Afterwards `answer` or `gone` says how it ended.
        """
        try:
            await self._attempt(spec, data)
            if not self.is_over and self._channel is None:  # a waiting worker was taken that had just ended
                await self._attempt(spec, data, fresh=True)
        except BaseException:
            if self._channel is None and not self.is_over:
                self._release()
            if self._channel is not None and not self._channel.greeted:  # nothing of the tool has begun, nor will it
                self._release()
            while not self.is_over and self._channel is not None:
                self._channel.stop()
                await self._change()  # a second cancellation ends this, and leaves the process to `_hear`
            raise

    async def _attempt(self, spec: Spec, data: bytes, fresh: bool = False) -> None:
        self._sent = False
        self._channel = await pool.take(spec, fresh)
        self._channel.listen(self._loop, self._hear, self._lose)
        if spec.module:
            pool.refill(spec)
        while self._channel is not None and not self._channel.greeted:
            await self._change()
        if self._channel is not None:
            first, self._channel.unsent, self._sent = self._channel.unsent, b"", True
            await self._channel.send(first + data)
        while not self.is_over and self._channel is not None:
            if self.can_serve_again and self._channel is not None:
                channel, self._channel = self._channel, None
                channel.leave()
                self._release()
                pool.give_back(spec, channel)
                return
            await self._change()

    async def _change(self) -> None:
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    # -- what the run says --------------------------------------------------------------------------------------------

    def on_cut(self) -> None:
        """End the process. If the call's own loop is gone, what becomes of it is heard on this one."""
        self.was_cut = True
        channel = self._channel
        if channel is None:
            return
        here = asyncio._get_running_loop()
        if here is not None and here is not self._loop:
            self._loop = here
            channel.listen(here, self._hear, self._lose)
        if channel.greeted:
            channel.stop()

    # -- what the keeper says -----------------------------------------------------------------------------------------

    def _hear(self, kind: bytes, body: bytes) -> None:
        if kind == OUTPUT:
            self._show(body)
            return
        if kind == HELLO and self._channel is not None:
            self._channel.greeted = True
        if kind == READY:
            self.failure = msgspec.json.decode(body, type=Failure | None)
        elif kind in (DONE, LAST):
            self.answer = msgspec.json.decode(body, type=Answer)
            self.can_serve_again = kind == DONE and not self.was_cut
        elif kind == GONE:
            gone = msgspec.json.decode(body, type=Gone)
            # Without `called`, it is not this call that has ended; unless it was answered, and the worker ended then.
            if gone.called or self.answer is not None or self.was_cut or self.failure is not None or self._tried:
                self.gone = gone
                self._end()
            elif self._channel is not None:
                self._tried = True
                self._channel.close()
                self._channel = None
        self._wake()

    def _lose(self) -> None:
        """The keeper is gone. If it said nothing, it was killed; then the root has killed what was left of its tree."""
        if not self.is_over:
            if self._channel is not None and not self._channel.greeted and not self._tried and not self.was_cut:
                self._tried, self._channel = True, None  # the root was killed before it had started the keeper
            else:
                self._end()
            self._wake()

    def _end(self) -> None:
        if self.was_cut and self.gone is not None:
            self._scope.stopped, self._sent = self.gone.stopped, self.gone.begun or self.answer is not None
        elif self.was_cut and self._sent:
            self._scope.stopped = Stopped.killed
        self._release()

    def _release(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        self.is_over = True
        self._scope.did_nothing = not self._sent
        self._scope.release(self)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done() and not self._loop.is_closed():
            self._waiter.set_result(None)

    def _show(self, body: bytes) -> None:
        """Show what was printed as an event, as long as that is not too much."""
        (missed,) = MISSED.unpack_from(body)
        text = self._decoder.decode(body[MISSED.size :])
        if missed:
            text = f"[{missed:,} bytes are left out here]\n{text}"
        if not text or self._shown >= SHOWN_BYTES:
            return
        self._shown += len(text)
        if self._shown >= SHOWN_BYTES:
            text += "\n[further output is not shown]\n"
        self._scope.show_output(text)


def lost(name: str) -> ToolProcessError:
    return ToolProcessError(
        f"the process of {name} was lost: its keeper was killed from outside, or could not be started. What the call"
        " did until then is unknown"
    )

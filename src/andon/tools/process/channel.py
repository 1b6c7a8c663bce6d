# SPDX-License-Identifier: Apache-2.0
"""The host's end of a keeper's socket. One call uses it at a time, on that call's event loop.

What must stay true: `stop` never waits and may be called from any thread. It shuts the socket down, as the death of the
host would.
"""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Callable

from andon.tools.process.protocol import Frames

READ_BYTES = 256 * 1024


class Channel:
    """A keeper, as the host knows it."""

    __slots__ = ("__weakref__", "_frames", "_loop", "_socket", "greeted", "unsent")

    def __init__(self, own: socket.socket) -> None:
        own.setblocking(False)
        self._socket, self._frames = own, Frames()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.greeted = False
        """The keeper has said that it is there. Before that, it can be given up without a word: it does nothing."""
        self.unsent = b""
        """What the keeper is to be told first."""

    def __del__(self) -> None:
        self._socket.close()  # its loop was closed while a call that was abandoned still had it

    @property
    def is_alive(self) -> bool:
        """False if the keeper is gone. Asked while no call uses it."""
        poll = select.poll()
        poll.register(self._socket, select.POLLRDHUP)
        return not poll.poll(0)

    def listen(
        self,
        loop: asyncio.AbstractEventLoop,
        on_frame: Callable[[bytes, bytes], object],
        on_end: Callable[[], object],
    ) -> None:
        """Call `on_frame` on this loop for each frame, and `on_end` once, when the keeper has ended."""

        def read() -> None:
            try:
                data = self._socket.recv(READ_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            for kind, body in self._frames.feed(data):
                on_frame(kind, body)  # it may close this
            if not data and self._loop is not None:
                self.close()
                on_end()

        self.leave()
        self._loop = loop
        loop.add_reader(self._socket.fileno(), read)

    def leave(self) -> None:
        """Listen no more. A closed loop has forgotten the socket by itself."""
        loop, self._loop = self._loop, None
        if loop is not None and not loop.is_closed() and self._socket.fileno() >= 0:
            loop.remove_reader(self._socket.fileno())

    def try_to_send(self, data: bytes) -> bytes:
        """Send as much as there is room for, and return the rest. The reader is told if the keeper is gone."""
        try:
            return data[self._socket.send(data) :]
        except BlockingIOError:
            return data
        except OSError:
            return b""

    async def send(self, data: bytes) -> None:
        """Send all of it."""
        while data := self.try_to_send(data):
            await writable(self._socket)

    def stop(self) -> None:
        """Have the keeper end its tree. It says when that is done."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:  # the keeper is gone, or this was closed
            pass

    def disown(self) -> None:
        """In a forked child: the keeper is the parent's, so don't tell it anything."""
        self._socket.close()

    def close(self) -> None:
        self.stop()
        self.leave()
        self._socket.close()


async def writable(own: socket.socket) -> None:
    """Wait until a socket takes more. Several tasks, on several loops, may wait for the same one."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def tell() -> None:
        if not future.done():
            future.set_result(None)

    with own.dup() as copy:  # a loop has one callback for a descriptor
        loop.add_writer(copy.fileno(), tell)
        try:
            await future
        finally:
            loop.remove_writer(copy.fileno())

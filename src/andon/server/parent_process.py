# SPDX-License-Identifier: Apache-2.0
"""The parent of a worker process: the worker has a socket to it, on which it says that it is ready.

When the parent closes its side of the socket, or dies, the worker shuts down. Otherwise the workers of a killed parent
would keep the port.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import socket
from collections.abc import Callable

VARIABLE = "ANDON_WORKER"
"""Set by the parent: the file descriptors of the listener and of the socket, and the number of the worker."""

END = b"\0"


class ParentProcess:
    """The parent of this process."""

    def __init__(self, listener: socket.socket, line: socket.socket, number: int) -> None:
        self.listener, self._line, self.number = listener, line, number
        for each in (listener, line):
            os.set_inheritable(each.fileno(), False)  # a subprocess of a tool must not keep them open

    @classmethod
    def from_environment(cls) -> ParentProcess | None:
        """The parent, if there is one. Subprocesses don't inherit the variable."""
        given = os.environ.pop(VARIABLE, "")
        if not given:
            return None
        listener, line, number = map(int, given.split(","))
        parent = cls(socket.socket(fileno=listener), socket.socket(fileno=line), number)
        atexit.register(parent.close)  # not before: a closed socket means that this process has ended
        return parent

    def ready(self, text: str) -> None:
        """Tell the parent that this worker serves. The parent prints the text."""
        try:
            self._line.sendall(text.encode() + END)
        except OSError:  # the parent is gone, which `watch` notices
            pass

    def watch(self, end: Callable[[], object]) -> None:
        """Call `end` once, on the running event loop, when the parent wants this process to end, or is gone."""
        loop = asyncio.get_running_loop()

        def hear() -> None:
            loop.remove_reader(self._line)
            end()

        loop.add_reader(self._line, hear)

    def unwatch(self) -> None:
        """This process is ending: stop watching the parent."""
        asyncio.get_running_loop().remove_reader(self._line)

    def close(self) -> None:
        self.listener.close()
        self._line.close()

# SPDX-License-Identifier: Apache-2.0
"""The process that has started this one as its worker, seen from here: a line to say "ready" on.

The line is also how the worker hears that it is to end: its parent has closed its side, or is gone, however that came.
Without that, workers of a parent that was killed would keep the port for ever.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import socket
from collections.abc import Callable

VARIABLE = "ANDON_WORKER"
"""Set by the parent: the descriptors of the listener and of the line, and which worker this is."""

END = b"\0"


class ParentProcess:
    """The parent of this process."""

    def __init__(self, listener: socket.socket, line: socket.socket, number: int) -> None:
        self.listener, self._line, self.number = listener, line, number
        for each in (listener, line):
            os.set_inheritable(each.fileno(), False)  # a program that a tool starts must not keep them open

    @classmethod
    def from_environment(cls) -> ParentProcess | None:
        """The parent, if there is one. It is not passed on to what this process starts."""
        given = os.environ.pop(VARIABLE, "")
        if not given:
            return None
        listener, line, number = map(int, given.split(","))
        parent = cls(socket.socket(fileno=listener), socket.socket(fileno=line), number)
        atexit.register(parent.close)  # it is there for as long as this process is
        return parent

    def ready(self, text: str) -> None:
        """This worker serves. The text is what a server says of itself when it begins."""
        try:
            self._line.sendall(text.encode() + END)
        except OSError:  # it is gone, which `watch` tells
            pass

    def watch(self, end: Callable[[], object]) -> None:
        """Have this called, once, on the running loop when the parent wants this process to end, or is gone."""
        loop = asyncio.get_running_loop()

        def hear() -> None:
            loop.remove_reader(self._line)
            end()

        loop.add_reader(self._line, hear)

    def unwatch(self) -> None:
        """This process ends by itself: from here on it makes no difference what becomes of its parent."""
        asyncio.get_running_loop().remove_reader(self._line)

    def close(self) -> None:
        self.listener.close()
        self._line.close()

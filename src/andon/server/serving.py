# SPDX-License-Identifier: Apache-2.0
"""uvicorn, told to go down in the right order.

The first SIGTERM or SIGINT stops taking runs, while the server goes on answering: runs finish, or are cancelled when
their time is up, and every reader sees the end. Only then does the server close. The second signal ends the process as
if nobody had caught it.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
import sys
from collections.abc import Iterator
from types import FrameType

import uvicorn
from fastapi import FastAPI

from andon.server.connections import Bounds, WebSocketProtocol, http_protocol
from andon.server.drain_report import report_drain
from andon.server.host import Host
from andon.server.open_files import connection_limit
from andon.server.parent_process import ParentProcess

CLOSE_SECONDS = 3
"""What readers get to take in the end, once every run has ended; one that has stalled is cut off then."""

END_SECONDS = 1
"""What is left on the loop after that, a tool that takes no notice of being cancelled, ends with the process."""

FULL_COLLECTION = 100
"""Garbage is looked for everywhere so much more rarely than among what is new; Python's own figure is 10.

With 500 open streams that takes a tenth of a second, in which no cancel is heard. And there is next to nothing to be
found: of a stream that has ended it is the socket's transport, 1.6 KB; all else is freed without a collection.
"""

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def serve(
    app: FastAPI,
    listener: socket.socket,
    root_path: str = "",
    max_connections: int | None = None,
    parent: ParentProcess | None = None,
) -> None:
    """Serve until a signal; returns when every run has ended. A worker also ends when its parent says so."""
    config = uvicorn.Config(
        app,
        http=http_protocol(Bounds(connections=connection_limit(max_connections))),
        ws=WebSocketProtocol,
        ws_max_size=app.state.andon.settings.max_body,
        ws_per_message_deflate=False,  # a small message could become a huge one
        root_path=root_path,
        log_level="warning",
        log_config=None,  # one of its own would close the handlers of a program that has set up a log
        access_log=False,
        timeout_graceful_shutdown=CLOSE_SECONDS + 2,
        server_header=False,
    )
    relax_garbage_collector()
    runner = asyncio.Runner(loop_factory=config.get_loop_factory())
    runner.run(Server(config, app.state.andon, parent).serve([listener]))
    if left := runner.run(_end_tasks()):
        # A loop can't be closed before its last task has ended, and these don't.
        print(f"andon: still running at the end: {', '.join(left)}", file=sys.stderr, flush=True)
        os._exit(0)
    runner.close()


def relax_garbage_collector() -> None:
    """Have the garbage collector stop everything less often. What a program has set itself stays, if it is calmer."""
    gc.freeze()  # what is there by now stays: no collection has to look at it while someone waits
    young, old, oldest = gc.get_threshold()
    gc.set_threshold(young, old, max(oldest, FULL_COLLECTION))


class Server(uvicorn.Server):
    """uvicorn closes connections before it asks the app, and raises the signal again at the end: here it doesn't."""

    def __init__(self, config: uvicorn.Config, host: Host, parent: ParentProcess | None = None) -> None:
        super().__init__(config)
        self._host, self._parent = host, parent
        self._closing: asyncio.Task[None] | None = None  # a loop holds its tasks weakly

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if not self.started or not sockets:
            return
        text = announcement(self._host, sockets[0], self.config.root_path)
        if self._parent is None:
            print(text, flush=True)
        else:
            self._parent.ready(text)
            self._parent.watch(self._close)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()

        def first(number: int, frame: FrameType | None) -> None:
            for each in SIGNALS:
                signal.signal(each, signal.SIG_DFL)
            loop.call_soon_threadsafe(self._close)

        before = {each: signal.signal(each, first) for each in SIGNALS}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    def _close(self) -> None:
        if self._closing is None:  # a parent says so over its line, and others by a signal
            self._closing = asyncio.get_running_loop().create_task(self._end_runs())

    async def _end_runs(self) -> None:
        # It is told first, before the host cancels what can't be kept.
        reporting = report_drain(self._host, self._say)
        try:
            await self._host.shut_down()
        finally:
            if reporting is not None:
                reporting.cancel()
            self.should_exit = True

    def _say(self, text: str) -> None:
        which = f"worker {self._parent.number}: " if self._parent is not None and self._parent.number else ""
        with contextlib.suppress(OSError):  # nobody reads it any more: that must not keep the runs from their end
            sys.stdout.write(f"{which}{text}\n")  # at once: unbuffered, `print` writes the end of the line apart
            sys.stdout.flush()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._parent is not None:
            self._parent.unwatch()
        asyncio.get_running_loop().call_later(CLOSE_SECONDS, self._cut_off)
        await super().shutdown(sockets)

    def _cut_off(self) -> None:
        for connection in list(self.server_state.connections):
            if connection.transport is not None:
                connection.transport.abort()


async def _end_tasks() -> list[str]:
    """Cancel what is left on the loop, and name what stays all the same."""
    if not (tasks := asyncio.all_tasks() - {asyncio.current_task()}):
        return []
    for task in tasks:
        task.cancel()
    _, stubborn = await asyncio.wait(tasks, timeout=END_SECONDS)
    return [task.get_name() for task in stubborn]


def announcement(host: Host, listener: socket.socket, root_path: str) -> str:
    """What a server says of itself when it begins: where it is, how to try it, and where its runs are kept."""
    address, port = listener.getsockname()[:2]
    url = f"http://{f'[{address}]' if ':' in address else address}:{port}"
    agents = list(host.agents)
    token = ' -H "Authorization: Bearer $ANDON_TOKEN"' if host.settings.guarded else ""
    kept = {
        getattr(runtime.store, "shown", "none: runs and sessions end with this process") for runtime in host.runtimes
    }
    return "\n".join(
        [
            f"serving {', '.join(agents)} at {url}{root_path}",
            f"try: curl -N {url}/agents/{agents[0]}/runs -F message=Hello{token}",
            f"docs: {url}{root_path}/docs{' (with the token)' if token else ''}",
            f"database: {', '.join(sorted(kept))}",
        ]
    )

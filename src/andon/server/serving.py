# SPDX-License-Identifier: Apache-2.0
"""uvicorn, with a shutdown that ends runs first.

After the first SIGTERM or SIGINT the server starts no new runs, but still responds. Runs finish, or are cancelled when
the drain is over, and every reader gets the last event. Then the server closes. The second signal ends the process at
once.
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

from andon.scale import systemd
from andon.scale.last_tasks import end_tasks
from andon.server.connections import Bounds, WebSocketProtocol, http_protocol
from andon.server.drain_report import report_drain
from andon.server.host import Host
from andon.server.open_files import connection_limit
from andon.server.parent_process import ParentProcess

CLOSE_SECONDS = 3
"""How long readers have to read the last events once every run has ended. Then their connections are aborted."""

FULL_COLLECTION = 100
"""The threshold of full garbage collections; Python's default is 10.

With 500 open streams a full collection takes a tenth of a second, and no cancel is handled meanwhile. It would find
almost nothing: the transport of each ended stream, 1.6 KB. Everything else is freed by reference counts.
"""

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def serve(
    app: FastAPI,
    listener: socket.socket,
    root_path: str = "",
    max_connections: int | None = None,
    parent: ParentProcess | None = None,
) -> None:
    """Serve until a signal; returns when every run has ended. A worker also ends when its parent closes its socket."""
    config = uvicorn.Config(
        app,
        http=http_protocol(Bounds(connections=connection_limit(max_connections))),
        ws=WebSocketProtocol,
        ws_max_size=app.state.andon.settings.max_body,
        ws_per_message_deflate=False,  # a small compressed message could be huge
        root_path=root_path,
        log_level="warning",
        log_config=None,  # uvicorn's would close the log handlers of the program
        access_log=False,
        timeout_graceful_shutdown=CLOSE_SECONDS + 2,
        server_header=False,
    )
    relax_garbage_collector()
    runner = asyncio.Runner(loop_factory=config.get_loop_factory())
    runner.run(Server(config, app.state.andon, parent).serve([listener]))
    if left := runner.run(end_tasks()):
        # These tasks don't end, and an event loop can't be closed before they do.
        print(f"andon: still running at the end: {', '.join(left)}", file=sys.stderr, flush=True)
        os._exit(0)
    runner.close()


def relax_garbage_collector() -> None:
    """Make full garbage collections rarer. A higher threshold that the program has set stays."""
    gc.freeze()  # the objects of now stay until the end: no collection needs to visit them
    young, old, oldest = gc.get_threshold()
    gc.set_threshold(young, old, max(oldest, FULL_COLLECTION))


class Server(uvicorn.Server):
    """Unlike uvicorn, it ends the runs before it closes connections, and does not raise the signal again at the end."""

    def __init__(self, config: uvicorn.Config, host: Host, parent: ParentProcess | None = None) -> None:
        super().__init__(config)
        self._host, self._parent = host, parent
        self._closing: asyncio.Task[None] | None = None  # an event loop holds tasks only weakly

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if not self.started or not sockets:
            return
        text = announcement(self._host, sockets[0], self.config.root_path)
        if self._parent is None:
            print(text, flush=True)
            systemd.notify("READY=1")
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
        if self._closing is None:  # the parent's socket and a signal may both call this
            self._closing = asyncio.get_running_loop().create_task(self._end_runs())

    async def _end_runs(self) -> None:
        if self._parent is None:
            systemd.notify("STOPPING=1")
        # Report first, before the host cancels runs.
        reporting = report_drain(self._host, self._say)
        try:
            await self._host.shut_down()
        finally:
            if reporting is not None:
                reporting.cancel()
            self.should_exit = True

    def _say(self, text: str) -> None:
        which = f"worker {self._parent.number}: " if self._parent is not None and self._parent.number else ""
        with contextlib.suppress(OSError):  # a closed stdout must not stop the shutdown
            sys.stdout.write(f"{which}{text}\n")  # one write: unbuffered, `print` writes the newline separately
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


def announcement(host: Host, listener: socket.socket, root_path: str) -> str:
    """What a server prints at its start: its URL, a command to try it, and its database."""
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

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

from andon.server.host import Host
from andon.server.logs import LogFormat

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


def serve(app: FastAPI, listener: socket.socket, root_path: str = "", log_format: LogFormat | None = None) -> None:
    """Serve until a signal; returns when every run has ended."""
    config = uvicorn.Config(
        app,
        root_path=root_path,
        log_level="warning",
        log_config=uvicorn.config.LOGGING_CONFIG if log_format is None else None,
        access_log=False,
        timeout_graceful_shutdown=CLOSE_SECONDS + 2,
        server_header=False,
    )
    calm_collector()
    runner = asyncio.Runner(loop_factory=config.get_loop_factory())
    runner.run(Server(config, app.state.andon).serve([listener]))
    if left := runner.run(_end_tasks()):
        # A loop can't be closed before its last task has ended, and these don't.
        print(f"andon: still running at the end: {', '.join(left)}", file=sys.stderr, flush=True)
        os._exit(0)
    runner.close()


def calm_collector() -> None:
    """Have the garbage collector stop everything less often. What a program has set itself stays, if it is calmer."""
    gc.freeze()  # what is there by now stays: no collection has to look at it while someone waits
    young, old, oldest = gc.get_threshold()
    gc.set_threshold(young, old, max(oldest, FULL_COLLECTION))


class Server(uvicorn.Server):
    """uvicorn closes connections before it asks the app, and raises the signal again at the end: here it doesn't."""

    def __init__(self, config: uvicorn.Config, host: Host) -> None:
        super().__init__(config)
        self._host = host
        self._closing: asyncio.Task[None] | None = None  # a loop holds its tasks weakly

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and sockets:
            _announce(self._host, sockets[0], self.config.root_path)

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
        self._closing = asyncio.get_running_loop().create_task(self._end_runs())

    async def _end_runs(self) -> None:
        try:
            await self._host.shut_down()
        finally:
            self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
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


def _announce(host: Host, listener: socket.socket, root_path: str) -> None:
    address, port = listener.getsockname()[:2]
    url = f"http://{f'[{address}]' if ':' in address else address}:{port}"
    agents = list(host.agents)
    print(f"serving {', '.join(agents)} at {url}{root_path}", flush=True)
    token = ' -H "Authorization: Bearer $ANDON_TOKEN"' if host.settings.guarded else ""
    print(f"try: curl -N {url}/agents/{agents[0]}/runs -F message=Hello{token}", flush=True)

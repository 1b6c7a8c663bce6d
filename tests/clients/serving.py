# SPDX-License-Identifier: Apache-2.0
"""A real server on loopback, in a thread of its own, for as long as a test needs it."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import uvicorn

from andon import Agent, Runtime
from andon.server import create_app
from tests.support import Worker


@contextlib.contextmanager
def serving(*agents: Agent, runtime: Runtime | None = None) -> Iterator[str]:
    """The URL of a server of these agents. What still runs at the end is cancelled."""
    app = create_app(agents, runtime, drain=0)
    with socket.create_server(("127.0.0.1", 0)) as listener:  # listens, so nobody has to wait for the server's start
        config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=3)
        server = uvicorn.Server(config)
        worker = Worker(lambda: server.run([listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            worker.done()

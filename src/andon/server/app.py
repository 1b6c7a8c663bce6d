# SPDX-License-Identifier: Apache-2.0
"""Puts the app together. All state is in the host (`app.state.andon`); the routes are in files of their own."""

from __future__ import annotations

from collections.abc import Iterable

from fastapi import FastAPI

from andon import __version__
from andon.agent.agent import Agent
from andon.core.runtime import Runtime
from andon.server import continuing, lists, problems, runs, sessions
from andon.server.host import Host, Settings


def create_app(
    agents: Agent | Iterable[Agent],
    runtime: Runtime | None = None,
    *,
    max_body: int = 4 * 2**20,
    max_runs: int = 1000,
    heartbeat: float = 15.0,
    drain: float = 10.0,
) -> FastAPI:
    """An app that serves these agents.

    >>> app = create_app([storyteller, researcher])

    With a `runtime` the agents are moved to it, and so to its store; otherwise each keeps its own.
    `max_body`: how many bytes a request may have. `max_runs`: how many runs may go on at once, of all agents.
    `heartbeat`: after so many seconds of silence a stream sends a comment.
    `drain`: how many seconds runs have to finish in when the server goes down; then they are cancelled.

    It can be mounted into another app, and works there as it is. For an orderly end, enter its lifespan in that app's:

    >>> @asynccontextmanager
    ... async def lifespan(app):
    ...     async with agents_app.router.lifespan_context(agents_app):
    ...         yield
    """
    settings = Settings(max_body=max_body, max_runs=max_runs, heartbeat=heartbeat, drain=drain)
    host = Host([agents] if isinstance(agents, Agent) else agents, runtime, settings)
    app = FastAPI(title="Andon", version=__version__, lifespan=host.lifespan)
    app.state.andon = host
    problems.install(app)
    app.include_router(lists.router)
    app.include_router(runs.router)
    app.include_router(continuing.router)
    app.include_router(sessions.router)
    return app

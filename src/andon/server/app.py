# SPDX-License-Identifier: Apache-2.0
"""Puts the app together. All state is in the host (`app.state.andon`); the routes are in files of their own."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from andon import __version__
from andon.agent.agent import Agent
from andon.core.runtime import Runtime
from andon.errors import ConfigurationError
from andon.server import continuing, control, lists, problems, runs, sessions
from andon.server.access import Keyring, Neighbourhood, Token
from andon.server.guard import OPEN, Guard
from andon.server.host import Host, Settings
from andon.server.logs import AccessLog

ROUTERS = [lists.router, runs.router, continuing.router, sessions.router, control.router]


def create_app(
    agents: Agent | Iterable[Agent],
    runtime: Runtime | None = None,
    *,
    tokens: str | Token | Iterable[str | Token] | None = None,
    hosts: Iterable[str] = (),
    cors_origins: Iterable[str] = (),
    max_body: int = 4 * 2**20,
    max_message: int = 1_000_000,
    max_runs: int = 1000,
    max_user_runs: int = 100,
    max_events: int = 100_000,
    heartbeat: float = 15.0,
    drain: float = 10.0,
) -> FastAPI:
    """An app that serves these agents.

    >>> app = create_app([storyteller, researcher], tokens=os.environ["ANDON_TOKEN"])

    With a `runtime` the agents are moved to it, and so to its store; otherwise each keeps its own.
    `tokens`: who may ask. A text is an admin's; `Token(secret, user_id=...)` is one user's. Without, anybody may who
    can reach the server and calls it by a name that is its own: loopback's, its address, or one of `hosts`.
    `cors_origins`: web pages of other origins that may ask; `*` for all, where there are tokens.
    `max_body`: how many bytes a request may have. `max_message`: how many characters a prompt.
    `max_runs`: how many runs may go on at once, of all agents. `max_user_runs`: of one user.
    `max_events`: a run that has written so many is cancelled, unless its runtime has a limit of its own; 0 for none.
    `heartbeat`: after so many seconds of silence a stream sends a comment.
    `drain`: how many seconds runs have to finish in when the server goes down; then they are cancelled.

    It can be mounted into another app, and works there as it is. For an orderly end, enter its lifespan in that app's:

    >>> @asynccontextmanager
    ... async def lifespan(app):
    ...     async with agents_app.router.lifespan_context(agents_app):
    ...         yield
    """
    keyring, neighbourhood = Keyring(tokens), Neighbourhood(hosts, cors_origins)
    settings = Settings(
        max_body=max_body,
        max_message=max_message,
        max_runs=max_runs,
        max_user_runs=max_user_runs,
        max_events=max_events,
        heartbeat=heartbeat,
        drain=drain,
        guarded=bool(keyring),
    )
    host = Host([agents] if isinstance(agents, Agent) else agents, runtime, settings)
    app = FastAPI(title="Andon", version=__version__, lifespan=host.lifespan)
    app.state.andon = host
    problems.install(app)
    for router in ROUTERS:
        app.include_router(router)
    _close(app, keyring, neighbourhood)
    return app


def _close(app: FastAPI, keyring: Keyring, neighbourhood: Neighbourhood) -> None:
    """Put the door in front. What is added last stands outside of all."""
    app.add_middleware(Guard, keyring=keyring, neighbourhood=neighbourhood)
    if origins := neighbourhood.origins:
        if "*" in origins and not keyring:
            raise ConfigurationError("cors_origins has '*', which would open the server to every web page: give tokens")
        # Outside the guard, so that a page can read why it was refused.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=["GET", "POST", "PATCH", "DELETE"],
            allow_headers=["Authorization", "Idempotency-Key", "Last-Event-ID"],
            expose_headers=["Retry-After"],
        )
    app.add_middleware(AccessLog)
    if keyring:
        app.openapi = functools.partial(_describe, app.openapi)  # type: ignore[method-assign]


def _describe(describe: Any) -> dict[str, Any]:
    """The app's OpenAPI document, with what a client has to send."""
    document: dict[str, Any] = describe()
    document["components"] = document.get("components", {}) | {
        "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}}
    }
    document["security"] = [{"bearer": []}]
    for path in OPEN:
        document["paths"][path]["get"]["security"] = []
    return document

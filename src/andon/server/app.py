# SPDX-License-Identifier: Apache-2.0
"""Builds the app from routes and middleware. All state is in the host (`app.state.andon`)."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any, Unpack

from fastapi import Depends, FastAPI
from starlette.middleware.cors import CORSMiddleware

from andon import __version__
from andon.agent.agent import Agent
from andon.core.runtime import Runtime
from andon.errors import ConfigurationError
from andon.server import (
    adk_routes,
    continuing,
    conversations,
    event_tickets,
    lists,
    openapi,
    operations,
    problems,
    runs,
)
from andon.server.access import AllowedOrigins, Keyring, Tokens
from andon.server.auth_middleware import AuthMiddleware
from andon.server.authentication import Authenticate, Authenticator
from andon.server.board import page
from andon.server.board import routes as board_routes
from andon.server.board.board import Board
from andon.server.event_tickets import EventTickets
from andon.server.host import Host
from andon.server.logs import AccessLog
from andon.server.query import check_query
from andon.server.run_location import RUN_ID
from andon.server.settings import Limits, Settings

ROUTERS = [
    lists.router,
    runs.router,
    continuing.router,
    conversations.router,
    event_tickets.router,
    adk_routes.router,
    operations.router,
    board_routes.router,
]


def create_app(
    agents: Agent | Iterable[Agent],
    runtime: Runtime | None = None,
    *,
    tokens: Tokens | None = None,
    authenticate: Authenticate | None = None,
    authenticate_seconds: float = 5.0,
    security_schemes: Mapping[str, Mapping[str, Any]] | None = None,
    hosts: Iterable[str] = (),
    cors_origins: Iterable[str] = (),
    heartbeat: float = 15.0,
    drain: float = 10.0,
    execute: bool = True,
    **limits: Unpack[Limits],
) -> FastAPI:
    """An app that serves these agents.

    >>> app = create_app([storyteller, researcher], tokens=os.environ["ANDON_TOKEN"])

    `runtime`: the agents are moved to it, and so to its store; without one, each agent keeps its own.
    `tokens`: who may use the server. A str is an admin's token; `Token(secret, user_id=...)` is one user's; a
    `TokenFile` has several, and is read again when it changes.
    `authenticate`: a function that finds the user of a request that has none of these tokens; async if it waits for
    anything. It returns a `User`, the user's id, or None, which is a 401. An async function that takes longer than
    `authenticate_seconds` is cancelled, and the request gets a 503.
    `security_schemes`: how `authenticate` identifies a user, in OpenAPI's terms, for the OpenAPI document. The default
    is a bearer token.
    Without `tokens` and `authenticate`, the server answers every request whose Host header is a loopback name, the
    server's address, or one of `hosts`.
    `cors_origins`: origins of web pages that may call the server; `*` for all, only with `tokens` and without
    `authenticate`.
    `heartbeat`: a stream that was silent for this number of seconds sends a comment.
    `drain`: at a shutdown, how many seconds runs have to finish; then they are cancelled.
    `execute=False`: the server accepts runs, and shows and cancels them; worker processes on the same Postgres execute
    them (docs/scale.md).
    `limits`: the limits of the server and of one user: `max_runs=…`, `max_user_runs=…` and others (`Limits`).

    The app can be mounted into another app. For an orderly shutdown, enter its lifespan in the lifespan of that app:

    >>> @asynccontextmanager
    ... async def lifespan(app):
    ...     async with agents_app.router.lifespan_context(agents_app):
    ...         yield
    """
    keyring, allowed_origins = Keyring(tokens), AllowedOrigins(hosts, cors_origins)
    if unknown := limits.keys() - Limits.__annotations__.keys():
        raise TypeError(
            f"create_app has no option {', '.join(sorted(unknown))}; its limits are {', '.join(Limits.__annotations__)}"
        )
    authenticator = None if authenticate is None else Authenticator(authenticate, authenticate_seconds)
    guarded = bool(keyring) or authenticator is not None
    settings = Settings(heartbeat=heartbeat, drain=drain, guarded=guarded, **limits)
    host = Host([agents] if isinstance(agents, Agent) else agents, runtime, settings, execute=execute)
    app = _assemble(host, (security_schemes or openapi.BEARER) if settings.guarded else None)
    _add_middleware(app, keyring, allowed_origins, authenticator)
    return app


def _assemble(host: Host, schemes: Mapping[str, Mapping[str, Any]] | None) -> FastAPI:
    """The app with its routes. The OpenAPI document describes a route by the name of its function."""
    app = FastAPI(
        title="Andon",
        version=__version__,
        lifespan=host.lifespan,
        generate_unique_id_function=lambda route: route.name,
    )
    app.state.andon, app.state.tickets, app.state.board = host, EventTickets(host), Board(host)
    problems.install(app)
    for router in ROUTERS:
        app.include_router(router, dependencies=[Depends(check_query)])
    app.router.routes += page.ROUTES  # any query: the page reads its own
    app.openapi = functools.partial(openapi.describe, app.openapi, schemes)  # type: ignore[method-assign]
    return app


def _add_middleware(
    app: FastAPI, keyring: Keyring, allowed_origins: AllowedOrigins, authenticator: Authenticator | None
) -> None:
    """The middleware that is added last sees a request first."""
    app.add_middleware(
        AuthMiddleware,
        keyring=keyring,
        allowed_origins=allowed_origins,
        authenticator=authenticator,
        tickets=app.state.tickets,
    )
    if origins := allowed_origins.origins:
        if "*" in origins and authenticator is not None:
            raise ConfigurationError(
                "cors_origins has '*', and authenticate may go by a cookie, which browsers send for every web page: "
                "name the pages that may ask"
            )
        if "*" in origins and not keyring:
            raise ConfigurationError("cors_origins has '*', which would open the server to every web page: give tokens")
        # Outside `AuthMiddleware`, so that a page can read why it was refused.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=["GET", "POST", "PUT", "PATCH", "DELETE"],
            allow_headers=["Authorization", "Idempotency-Key", "Last-Event-ID"],
            allow_credentials=authenticator is not None,  # CORS calls cookies credentials, not bearer tokens
            expose_headers=["Link", "Location", "Retry-After", RUN_ID],
        )
    app.add_middleware(AccessLog)

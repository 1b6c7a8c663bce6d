# SPDX-License-Identifier: Apache-2.0
"""Checks every request and every WebSocket before any route runs.

It checks, in this order: the Host header, the origin of the web page, and the principal, by a token, a ticket or the
program's `authenticate`. The principal is stored in the scope. Only the health checks and the files of the board need
no token.
"""

from __future__ import annotations

import contextlib
import json

from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from andon.server.access import ANONYMOUS, OPEN_SERVER_USER, AllowedOrigins, Keyring, Principal, bearer_token
from andon.server.authentication import Authenticator
from andon.server.board import page
from andon.server.event_tickets import EventTickets
from andon.server.problems import Problem

OPEN = frozenset({"/health", "/ready"})
"""These paths need no token, because load balancers have none."""

_OPEN = OPEN | page.PATHS

_HARMLESS = frozenset({"GET", "HEAD", "OPTIONS"})

POLICY_VIOLATION = 1008


class AuthMiddleware:
    """An ASGI middleware."""

    def __init__(
        self,
        app: ASGIApp,
        keyring: Keyring,
        allowed_origins: AllowedOrigins,
        authenticator: Authenticator | None,
        tickets: EventTickets,
    ) -> None:
        self._app, self._keyring, self._allowed_origins = app, keyring, allowed_origins
        self._authenticator, self._tickets = authenticator, tickets
        self._guarded = bool(keyring) or authenticator is not None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        connection = HTTPConnection(scope)
        try:
            self._check_page(connection)
            principal = await self._find(connection) if self._guarded else OPEN_SERVER_USER
        except Problem as problem:
            await send_refusal(problem, connection, receive, send)
            return
        # A new dict: an ASGI server may share one among all of its connections.
        scope["state"] = {**scope.get("state", {}), "andon": principal}
        await self._app(scope, receive, send)

    def _check_page(self, connection: HTTPConnection) -> None:
        scope, near = connection.scope, self._allowed_origins
        if not self._guarded and not near.allows_host(connection):
            name = ", ".join(connection.headers.getlist("host"))[:100]
            detail = f"the Host header is {name!r}, which is not a known name of this server"
            raise Problem(403, f"{detail}: allow it with --allow-host (hosts=[…])")
        changes = scope["type"] == "websocket" or scope["method"] not in _HARMLESS
        if (changes or not self._guarded) and not near.allows_origin(connection):
            detail = "web pages of this origin may not call the server"
            raise Problem(403, f"{detail}: allow them with --cors-origin (cors_origins=[…])")

    async def _find(self, connection: HTTPConnection) -> Principal:
        scope, secret = connection.scope, bearer_token(connection)
        if self._keyring and (principal := self._keyring.find(secret)) is not None:
            return principal
        path = route_path(scope)
        if scope["type"] == "http" and path in _OPEN:
            return ANONYMOUS
        if (by_ticket := await self._tickets.find(connection, path)) is not None:
            return by_ticket
        if self._authenticator is not None:
            if (found := await self._authenticator.find(connection)) is not None:
                return found
            detail = "the user of this request is not known: sign in first"
        else:
            detail = "a token is needed: send `Authorization: Bearer …`"
            if secret is not None:
                detail = "this token is not known here"
        raise Problem(401, detail, {"www-authenticate": "Bearer"})


def route_path(scope: Scope) -> str:
    """The path without the prefix under which the app is mounted."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path.removeprefix(root) if root and path.startswith(f"{root}/") else path


async def send_refusal(problem: Problem, connection: HTTPConnection, receive: Receive, send: Send) -> None:
    """Respond in place of the app. A WebSocket is refused in its handshake."""
    scope = connection.scope
    refusal = JSONResponse({"detail": problem.detail}, problem.status_code, problem.headers)
    if scope["type"] == "http":
        await refusal(scope, receive, send)
        return
    with contextlib.suppress(OSError):  # the client has disconnected
        await receive()
        if "websocket.http.response" in scope.get("extensions", {}):
            await refusal(scope, receive, send)
        else:  # the ASGI server can't send a body here, and makes a plain 403 of it
            await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": close_reason(problem.detail)})


def close_reason(detail: object) -> str:
    """The detail, cut to the size of a WebSocket's close frame."""
    text = detail if isinstance(detail, str) else json.dumps(detail)
    return text.encode()[:120].decode(errors="ignore")

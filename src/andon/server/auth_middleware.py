# SPDX-License-Identifier: Apache-2.0
"""The door: every request and every WebSocket passes it before any route does.

It asks, in this order, by which name the server was called, which web page calls, and who that is: by a token, by a
ticket, or as the program's own `authenticate` says. It leaves word of who asks in the scope. Only liveness is open to
all.
"""

from __future__ import annotations

import contextlib
import json

from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from andon.server.access import ANONYMOUS, OPEN_SERVER_USER, AllowedOrigins, Keyring, Principal, bearer_token
from andon.server.authentication import Authenticator
from andon.server.event_tickets import EventTickets
from andon.server.problems import Problem

OPEN = frozenset({"/health", "/ready"})
"""What needs no token, because load balancers have none."""

_HARMLESS = frozenset({"GET", "HEAD", "OPTIONS"})

POLICY_VIOLATION = 1008


class AuthMiddleware:
    """An ASGI app in front of ours."""

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
        # A dict of our own: a server may share one among all of its connections.
        scope["state"] = {**scope.get("state", {}), "andon": principal}
        await self._app(scope, receive, send)

    def _check_page(self, connection: HTTPConnection) -> None:
        scope, near = connection.scope, self._allowed_origins
        if not self._guarded and not near.allows_host(connection):
            name = ", ".join(connection.headers.getlist("host"))[:100]
            raise Problem(403, f"this server does not go by the name {name!r}: allow it with --allow-host (hosts=[…])")
        changes = scope["type"] == "websocket" or scope["method"] not in _HARMLESS
        if (changes or not self._guarded) and not near.allows_origin(connection):
            raise Problem(403, "pages of this origin may not ask: allow them with --cors-origin (cors_origins=[…])")

    async def _find(self, connection: HTTPConnection) -> Principal:
        scope, secret = connection.scope, bearer_token(connection)
        if self._keyring and (principal := self._keyring.find(secret)) is not None:
            return principal
        path = route_path(scope)
        if scope["type"] == "http" and path in OPEN:
            return ANONYMOUS
        if (by_ticket := await self._tickets.find(connection, path)) is not None:
            return by_ticket
        if self._authenticator is not None:
            if (found := await self._authenticator.find(connection)) is not None:
                return found
            detail = "this server does not know who asks: sign in first"
        else:
            detail = "a token is needed: send `Authorization: Bearer …`"
            if secret is not None:
                detail = "this token is not known here"
        raise Problem(401, detail, {"www-authenticate": "Bearer"})


def route_path(scope: Scope) -> str:
    """The path as our routes have it, wherever the app is mounted."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path.removeprefix(root) if root and path.startswith(f"{root}/") else path


async def send_refusal(problem: Problem, connection: HTTPConnection, receive: Receive, send: Send) -> None:
    """Answer in place of the app. A WebSocket is refused in its handshake: who may not ask is not listened to."""
    scope = connection.scope
    refusal = JSONResponse({"detail": problem.detail}, problem.status_code, problem.headers)
    if scope["type"] == "http":
        await refusal(scope, receive, send)
        return
    with contextlib.suppress(OSError):  # the client was quicker
        await receive()
        if "websocket.http.response" in scope.get("extensions", {}):
            await refusal(scope, receive, send)
        else:  # a server that can't say more makes a bare 403 of it
            await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": close_reason(problem.detail)})


def close_reason(detail: object) -> str:
    """As much as fits into a WebSocket's last frame."""
    text = detail if isinstance(detail, str) else json.dumps(detail)
    return text.encode()[:120].decode(errors="ignore")

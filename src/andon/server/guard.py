# SPDX-License-Identifier: Apache-2.0
"""The door: every request and every WebSocket passes it before any route does.

It asks, in this order, by which name the server was called, which web page calls, and whose token that is; and it
leaves word of who asks in the scope. Only liveness is open to all.
"""

from __future__ import annotations

import contextlib

from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from andon.server.access import ANYBODY, NOBODY, Keyring, Neighbourhood, Principal, presented, subprotocol
from andon.server.problems import Problem

OPEN = frozenset({"/health", "/ready"})
"""What needs no token, because load balancers have none."""

_HARMLESS = frozenset({"GET", "HEAD", "OPTIONS"})

POLICY_VIOLATION = 1008


class Guard:
    """An ASGI app in front of ours."""

    def __init__(self, app: ASGIApp, keyring: Keyring, neighbourhood: Neighbourhood) -> None:
        self._app, self._keyring, self._neighbourhood = app, keyring, neighbourhood

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        connection = HTTPConnection(scope)
        try:
            # A dict of our own: a server may share one among all of its connections.
            scope["state"] = {**scope.get("state", {}), "andon": self._admit(connection)}
        except Problem as problem:
            await _refuse(problem, connection, receive, send)
            return
        await self._app(scope, receive, send)

    def _admit(self, connection: HTTPConnection) -> Principal:
        scope, near = connection.scope, self._neighbourhood
        if not self._keyring and not near.knows_host(connection):
            name = ", ".join(connection.headers.getlist("host"))[:100]
            raise Problem(403, f"this server does not go by the name {name!r}: allow it with --allow-host (hosts=[…])")
        changes = scope["type"] == "websocket" or scope["method"] not in _HARMLESS
        if (changes or not self._keyring) and not near.knows_origin(connection):
            raise Problem(403, "pages of this origin may not ask: allow them with --cors-origin (cors_origins=[…])")
        if not self._keyring:
            return ANYBODY
        if (principal := self._keyring.find(presented(connection))) is not None:
            return principal
        if scope["type"] == "http" and route_path(scope) in OPEN:
            return NOBODY
        detail = "a token is needed: send `Authorization: Bearer …`"
        if presented(connection) is not None:
            detail = "this token is not known here"
        raise Problem(401, detail, {"www-authenticate": "Bearer"})


def route_path(scope: Scope) -> str:
    """The path as our routes have it, wherever the app is mounted."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path.removeprefix(root) if root and path.startswith(f"{root}/") else path


async def _refuse(problem: Problem, connection: HTTPConnection, receive: Receive, send: Send) -> None:
    if connection.scope["type"] == "http":
        await JSONResponse({"detail": problem.detail}, problem.status_code, problem.headers)(
            connection.scope, receive, send
        )
        return
    with contextlib.suppress(OSError):  # the client was quicker
        await receive()
        # Taken before it is refused: a browser tells a page nothing of a connection that never was.
        await send({"type": "websocket.accept", "subprotocol": subprotocol(connection), "headers": []})
        await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": close_reason(problem.detail)})


def close_reason(detail: str) -> str:
    """As much as fits into a WebSocket's last frame."""
    return detail.encode()[:120].decode(errors="ignore")

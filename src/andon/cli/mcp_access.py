# SPDX-License-Identifier: Apache-2.0
"""Tokens for `andon mcp --http`, the same as those of `andon serve`.

What must stay true: if there are tokens, a request without a known token does not reach the SDK. A session of the
protocol, and a conversation of an agent, belong to the user of the token that began them.
"""

from __future__ import annotations

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from andon.cli.mcp_serving import USER
from andon.server.access import Keyring, bearer_token


class TokenGuard:
    """An ASGI middleware: refuses requests without a token that it knows."""

    def __init__(self, keyring: Keyring, app: ASGIApp) -> None:
        self._keyring, self._app = keyring, app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        secret = bearer_token(HTTPConnection(scope))
        principal = self._keyring.find(secret)
        if principal is None:
            detail = "a token is needed: send `Authorization: Bearer …`"
            if secret is not None:
                detail = "this token is not known here"
            refusal = JSONResponse({"detail": detail}, 401, {"www-authenticate": "Bearer"})
            await refusal(scope, receive, send)
            return
        # The SDK keeps the user of the request that begins a session, and refuses requests of other users for it.
        known = AccessToken(token="", client_id=principal.by or "", subject=principal.user_id, scopes=[])
        await self._app({**scope, "user": AuthenticatedUser(known), USER: principal.user_id}, receive, send)

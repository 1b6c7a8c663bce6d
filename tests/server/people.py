# SPDX-License-Identifier: Apache-2.0
"""A server with tokens, whoever has one, and all the routes there are."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
from fastapi.routing import APIWebSocketRoute
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from andon import Agent
from andon.server import Token
from andon.server.app import ROUTERS
from tests.server.live import Live, serving
from tests.support import HANG

SECRETS = {"root": "root-secret-1", "ada": "ada-secret-2", "bob": "bob-secret-3"}
TOKENS: list[str | Token] = [
    SECRETS["root"],
    Token(SECRETS["ada"], user_id="ada"),
    Token(SECRETS["bob"], user_id="bob"),
]

ROUTES = [
    *((method, "/openapi.json") for method in ("GET", "HEAD")),
    ("GET", "/docs"),
    *(
        (method, str(route.path))  # type: ignore[attr-defined]
        for router in ROUTERS
        for route in router.routes
        if not isinstance(route, APIWebSocketRoute)
        for method in sorted(route.methods)  # type: ignore[attr-defined]
    ),
]
"""Method and path of every route that isn't a WebSocket."""

OPEN = {("GET", "/health"), ("GET", "/ready")}


def at(path: str, **ids: str) -> str:
    """A route's path with these ids, and for the others some that mean nothing."""
    return re.sub(r"{(\w+)}", lambda found: ids.get(found[1], "nothing"), path)


@contextmanager
def guarded(*agents: Agent, **settings: Any) -> Iterator[Live]:
    with serving(*agents, **{"tokens": TOKENS} | settings) as live:
        yield live


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {SECRETS[name]}"}


@contextmanager
def client_of(live: Live, name: str) -> Iterator[httpx.Client]:
    with live.another_client() as client:
        client.headers.update(bearer(name))
        yield client


def refusal_of(live: Live, *protocols: str, headers: dict[str, str] | None = None, **query: str) -> tuple[int, str]:
    """How the handshake of a live connection is answered: there is no connection then."""
    url = f"ws://127.0.0.1:{live.port}/run_live?{urlencode(query)}"
    offered: Any = list(protocols) or None
    with pytest.raises(InvalidStatus) as caught:
        connect(url, additional_headers=headers or {}, subprotocols=offered, proxy=None)
    response = caught.value.response
    assert response.body is not None
    return response.status_code, json.loads(response.body)["detail"]


def close_of(live: Live, *protocols: str, headers: dict[str, str] | None = None, **query: str) -> tuple[int, str]:
    """How a live connection is closed that the server doesn't want."""
    url = f"ws://127.0.0.1:{live.port}/run_live?{urlencode(query)}"
    offered: Any = list(protocols) or None
    with (
        connect(url, additional_headers=headers or {}, subprotocols=offered, proxy=None) as socket,
        pytest.raises(ConnectionClosed) as caught,
    ):
        socket.recv(timeout=HANG)
    assert caught.value.rcvd is not None
    return caught.value.rcvd.code, caught.value.rcvd.reason

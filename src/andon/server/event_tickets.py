# SPDX-License-Identifier: Apache-2.0
"""Tickets: how a browser reads the events of a run by `EventSource`, which sends no header. No token must be in a URL.

A client that may see a run gets a ticket for it by POST, and puts the ticket into the URL. For some minutes the ticket
opens `GET …/events` of that one run, for the user who got it. An `EventSource` reconnects with the same URL, so the
ticket works for that too. In the log of a proxy it soon expires, and it allows nothing but reading this run.

A ticket is signed, not stored. All servers of a database share the key, which the database keeps.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
import time

import msgspec
from fastapi import APIRouter, Request
from msgspec import Struct
from starlette.requests import HTTPConnection
from starlette.responses import Response

from andon.agent.agent import Agent
from andon.core.runtime import Runtime
from andon.core.shared.store import SecretStore
from andon.errors import StoreError
from andon.server.access import Principal
from andon.server.authorized_host import host_of
from andon.server.body import openapi_body, read_body
from andon.server.host import Host
from andon.server.problems import Problem
from andon.server.responses import json_response
from andon.server.run_location import run_headers, run_path

router = APIRouter()

PARAMETER = "ticket"
SECONDS = 300
MAX_SECONDS = 3600
_EVENTS = re.compile(r"/agents/([^/]+)/runs/([^/]+)/events")
_KEY = "tickets"
_NOT_GOOD = "this ticket has expired, or is not for the events of this run: get another by POST …/ticket"


class TicketClaims(Struct, frozen=True, array_like=True):
    """The content of a ticket. The agent and the run are in the URL; the signature covers both."""

    expires_at: int
    user_id: str | None
    admin: bool


class TicketRequest(Struct):
    """The body of a request for a ticket."""

    seconds: int = SECONDS


class EventTickets:
    """Makes and checks tickets."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._keys: dict[Runtime, bytes] = {}

    async def make(self, agent: Agent, run_id: str, principal: Principal, expires_at: int) -> str:
        claim = _in_text(msgspec.json.encode(TicketClaims(expires_at, principal.user_id, principal.admin)))
        return f"{claim}.{_seal(await self._key(agent.runtime), claim, agent.id, run_id)}"

    async def find(self, connection: HTTPConnection, path: str) -> Principal | None:
        """The principal of a ticket; None if the request has no ticket. Raises `Problem` for an invalid one."""
        about = _EVENTS.fullmatch(path) if connection.scope.get("method") == "GET" else None
        if about is None or (ticket := connection.query_params.get(PARAMETER)) is None:
            return None
        agent_id, run_id = about.groups()
        claim, _, seal = ticket.partition(".")
        claimed = _claim_of(claim)
        if claimed is None or claimed.expires_at < time.time():
            raise _refusal()
        # Sub-agents on different runtimes may have the same id.
        for runtime in {agent.runtime: None for agent in self._host.directory.find(agent_id)}:
            try:
                key = await self._key(runtime)
            except StoreError:
                raise Problem(503, "the ticket can't be checked just now: try again", {"retry-after": "1"}) from None
            if hmac.compare_digest(_seal(key, claim, agent_id, run_id).encode(), seal.encode(errors="replace")):
                return Principal(claimed.user_id, claimed.admin, claimed.user_id or "admin")
        raise _refusal()

    async def _key(self, runtime: Runtime) -> bytes:
        """The signing key: the one in the shared database, or a random one of this process."""
        if (key := self._keys.get(runtime)) is None:
            store = runtime.store
            secret = await store.secret(_KEY) if isinstance(store, SecretStore) else secrets.token_hex(32)
            key = self._keys.setdefault(runtime, secret.encode())
        return key


@router.post("/agents/{agent_id}/runs/{run_id}/ticket", openapi_extra=openapi_body(TicketRequest))
async def get_ticket(request: Request, agent_id: str, run_id: str) -> Response:
    """A ticket for the events of this run, for a browser's `EventSource`."""
    host = host_of(request)
    agent = await host.agent_of(agent_id, run_id)
    wanted = await read_body(request, TicketRequest, host.settings.max_body)
    if not 1 <= wanted.seconds <= MAX_SECONDS:
        raise Problem(422, f"seconds is {wanted.seconds}; it is a number from 1 to {MAX_SECONDS}")
    await host.find(agent, run_id)
    tickets: EventTickets = request.app.state.tickets
    expires_at = int(time.time()) + wanted.seconds
    ticket = await tickets.make(agent, run_id, host.principal, expires_at)
    url = f"{run_path(request, agent.id, run_id)}/events?{PARAMETER}={ticket}"
    headers = {"Cache-Control": "no-store", **run_headers(run_id)}
    return json_response({"ticket": ticket, "url": url, "expires_at": expires_at}, headers=headers)


def _refusal() -> Problem:
    return Problem(401, _NOT_GOOD, {"www-authenticate": "Bearer"})


def _seal(key: bytes, claim: str, agent_id: str, run_id: str) -> str:
    sealed = msgspec.json.encode(
        [claim, *(_in_text(each.encode(errors="surrogatepass")) for each in (agent_id, run_id))]
    )
    return _in_text(hmac.digest(key, sealed, hashlib.sha256))


def _claim_of(text: str) -> TicketClaims | None:
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), type=TicketClaims)
    except (ValueError, RecursionError):  # msgspec's errors too; JSON may be nested too deeply
        return None


def _in_text(data: bytes) -> str:
    """URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

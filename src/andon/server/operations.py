# SPDX-License-Identifier: Apache-2.0
"""Routes for operators: blocks, the log of cancels, metrics. With tokens, only an admin may use them."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from msgspec import Struct
from starlette.responses import Response

from andon.core.selection import CancelEntry, Selection
from andon.server import metrics
from andon.server.authorized_host import host_of
from andon.server.body import openapi_body, read_body, read_query
from andon.server.problems import Problem
from andon.server.responses import json_response
from andon.server.runs import block_target

router = APIRouter()

MAX_ENTRIES = 1000


class Unblock(Struct):
    """The user or the agent whose new runs are accepted again: one of the two."""

    user_id: str | None = None
    agent_id: str | None = None


class CancelLogQuery(Struct):
    run_id: str | None = None
    session_id: str | None = None
    user_id: str | None = None
    agent_id: str | None = None
    limit: int = 100


@router.post("/unblock", openapi_extra=openapi_body(Unblock))
async def unblock(request: Request) -> Response:
    host = host_of(request)
    host.principal.require_admin()
    wanted = await read_body(request, Unblock, host.settings.max_body)
    kind, id = block_target(wanted.user_id, wanted.agent_id)
    return json_response({"kind": kind, "id": id, "unblocked": await host.unblock(kind, id)})


@router.get("/blocks")
async def list_blocks(request: Request) -> Response:
    return json_response(await host_of(request).blocks())


@router.get("/cancels")
async def list_cancels(request: Request) -> Response:
    """The log of cancels: who cancelled which run, when and why; newest first."""
    host = host_of(request)
    host.principal.require_admin()
    wanted = read_query(request, CancelLogQuery)
    if not 1 <= wanted.limit <= MAX_ENTRIES:
        raise Problem(422, f"limit is {wanted.limit}; it is a number from 1 to {MAX_ENTRIES}")
    which = Selection(wanted.run_id, wanted.session_id, wanted.user_id, wanted.agent_id)
    return json_response([_line(entry) for entry in await host.cancel_log(which, wanted.limit)])


def _line(entry: CancelEntry) -> dict[str, Any]:
    request, key = entry.request, entry.session
    return {
        "run_id": entry.run_id,
        "agent_id": key and key.agent_id,
        "session_id": key and key.session_id,
        "user_id": key and key.user_id,
        "cause": request.cause,
        "reason": request.reason,
        "by": request.by,
        "mode": request.mode,
        "requested_at": request.requested_at,
    }


@router.get("/workers")
async def list_workers(request: Request) -> Response:
    """The worker processes, and what waits for them in each queue."""
    return json_response(await host_of(request).workers())


@router.post("/workers/{name}/drain")
async def drain_worker(request: Request, name: str) -> Response:
    """The worker takes no more runs, lets those that it has finish, as far as its `--drain` allows, and ends."""
    if not await host_of(request).drain_worker(name):
        raise Problem(404, f"no worker {name!r} has reported here lately")
    return json_response({"name": name, "draining": True})


@router.get("/metrics")
async def get_metrics(request: Request) -> Response:
    """Metrics for Prometheus."""
    return Response(await metrics.collect(host_of(request)), media_type=metrics.CONTENT_TYPE)

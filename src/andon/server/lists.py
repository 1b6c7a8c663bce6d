# SPDX-License-Identifier: Apache-2.0
"""Routes that list agents and runs, and the health of the server. Runs are those in memory, live or ended recently, and
those in a shared store, newest first.
"""

from __future__ import annotations

import logging
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from andon.agent.agent import Agent
from andon.core.records import RunRecord
from andon.core.run.run import LocalRun
from andon.core.selection import Selection
from andon.core.states import RunStatus
from andon.errors import SchemaError, StoreError
from andon.server.agentos_json import model_of
from andon.server.authorized_host import host_of
from andon.server.body import read_query
from andon.server.pages import Page, Position, page_response
from andon.server.problems import Problem
from andon.server.responses import json_response

log = logging.getLogger(__name__)
router = APIRouter()


class RunFilter(Page):
    """Filters for the runs of an agent."""

    session_id: str | None = None
    user_id: str | None = None
    status: str | None = None


class AnyRunFilter(RunFilter):
    """Filters for the runs of all agents."""

    agent_id: str | None = None


@router.get("/agents")
async def list_agents(request: Request) -> Response:
    return json_response([_summary(agent) for agent in host_of(request).agents.values()])


@router.get("/agents/{agent_id}")
async def get_agent(request: Request, agent_id: str) -> Response:
    agent = host_of(request).agent(agent_id)
    tools = [{"name": tool.name, "description": tool.description} for tool in agent.tools]
    return json_response({**_summary(agent), "tools": {"tools": tools}})


@router.get("/agents/{agent_id}/runs")
async def list_runs_of(request: Request, agent_id: str) -> Response:
    host_of(request).agents_named(agent_id)  # or it is a 404
    return await _list(request, read_query(request, RunFilter), agent_id)


@router.get("/runs")
async def list_runs(request: Request) -> Response:
    wanted = read_query(request, AnyRunFilter)
    return await _list(request, wanted, wanted.agent_id)


@router.get("/config")
async def config(request: Request) -> Response:
    host = host_of(request)
    agents = [_summary(agent) for agent in host.agents.values()]
    models = list({(each["model"]["id"], each["model"]["provider"]): each["model"] for each in agents}.values())
    nothing: dict[str, list[str]] = {"databases": [], "teams": [], "workflows": [], "interfaces": []}
    return json_response({"os_id": "andon", "name": "Andon", "available_models": models, "agents": agents, **nothing})


@router.get("/health")
async def health() -> Response:
    return json_response({"status": "ok"})


@router.get("/ready")
async def ready(request: Request) -> Response:
    if host_of(request).draining:
        raise Problem(503, "the server is shutting down")
    try:
        await host_of(request).ping()
    except (StoreError, SchemaError) as error:  # the error names the database, and this route needs no token
        log.warning("not ready: %s", error)
        raise Problem(503, "the database can't be asked just now; the server's log says why") from None
    return json_response({"status": "ready"})


def _summary(agent: Agent) -> dict[str, Any]:
    model, provider = model_of(agent)
    return {
        "id": agent.id,
        "name": agent.name,
        "description": agent.description,
        "db_id": None,
        "model": {"id": model, "provider": provider},
        "metadata": None,
    }


async def _list(request: Request, wanted: RunFilter, agent_id: str | None) -> Response:
    """Newest first."""
    before, statuses = wanted.check(), _statuses(wanted.status)
    host, limit = host_of(request), wanted.limit + 1
    which = Selection(None, wanted.session_id, wanted.user_id, agent_id, statuses)
    # A run may be in both for a moment; the one in memory is more recent. Two agents with different runtimes may have
    # runs of the same id.
    stored = {(each.session.agent_id, each.run_id): each for each in await host.stored_runs(which, limit, before)}
    runs = stored | {(run.agent_id, run.run_id): run for run in [*host.ended, *host.live]}
    newest_first = _from(before, sorted(runs.values(), key=lambda run: -run.created_at))
    fitting = [
        (run, line)
        for run, line in ((run, _line(run) if isinstance(run, LocalRun) else _record_line(run)) for run in newest_first)
        if which.session_id in (None, line["session_id"])
        and which.user_id in (None, line["user_id"])
        and agent_id in (None, line["agent_id"])
        and (not statuses or line["status"] in statuses)
    ]
    lines = [line for _, line in fitting]
    held_by = await host.holders([line["run_id"] for line in lines[: wanted.limit] if not line["status"].final])
    lines = [{**line, "held_by": held_by.get(line["run_id"])} for line in lines]
    positions = [(run.created_at, run.run_id) for run, _ in fitting]
    return page_response(request, lines, positions, wanted.limit)


def _from(before: Position | None, runs: list[LocalRun | RunRecord]) -> list[LocalRun | RunRecord]:
    """The runs that come after this position in the list."""
    if before is None:
        return runs
    created, run_id = before
    older = [run for run in runs if run.created_at <= created]
    ids = [run.run_id for run in older if run.created_at == created]
    return older[ids.index(run_id) + 1 :] if run_id in ids else older


def _statuses(given: str | None) -> list[RunStatus]:
    try:
        return [] if given is None else [RunStatus(each.strip().upper()) for each in given.split(",")]
    except ValueError:
        known = ", ".join(RunStatus)
        raise Problem(422, f"status is {given!r}; use one of {known}, or some with commas between them") from None


def _line(run: LocalRun) -> dict[str, Any]:
    return {
        "run_id": run.run_id,
        "agent_id": run.agent_id,
        "session_id": run.session_id,
        "user_id": run.user_id,
        "status": run.status,
        "phase": run.phase,
        "created_at": int(run.created_at),
    }


def _record_line(record: RunRecord) -> dict[str, Any]:
    """The same for a run of another process. Only that process knows the phase."""
    agent_id, user_id, session_id = record.session
    return {
        "run_id": record.run_id,
        "agent_id": agent_id,
        "session_id": session_id,
        "user_id": user_id,
        "status": record.status,
        "phase": None,
        "created_at": int(record.created_at),
    }

# SPDX-License-Identifier: Apache-2.0
"""The routes by run: start one, ask for it, read its events, cancel it.

The request that starts a run decides what its leaving means (`on_disconnect`). Everyone else only watches.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, Protocol

from fastapi import APIRouter, Request
from msgspec import Struct
from starlette.responses import Response

from andon.agent.agent import Agent, RunOptions
from andon.core.following import EventSource
from andon.core.receipt import CancelRequest, Receipt
from andon.core.run import Run
from andon.core.selection import BlockKind
from andon.core.states import CancelCause, CancelOutcome, RunStatus
from andon.core.store import RunRecord
from andon.errors import StoreError
from andon.server.body import (
    check_run_id,
    check_session_id,
    check_user_id,
    described,
    fill,
    read_body,
    read_fields,
    read_key,
    read_query,
)
from andon.server.distant import Distant, cancel, find_many
from andon.server.lists import answer
from andon.server.problems import Problem
from andon.server.sse import AnswerResponse, EventResponse, Leave
from andon.server.visit import Visit, host_of
from andon.server.wire import EventWriter, record_output, run_output

router = APIRouter()

MAX_WAIT = 3600.0


class Start(Struct):
    """What a client may say to start a run."""

    message: str
    stream: bool = True
    background: bool = False
    session_id: str | None = None
    user_id: str | None = None
    run_id: str | None = None
    on_disconnect: Literal["cancel", "continue"] | None = None
    on_busy: Literal["reject", "queue", "cancel"] = "reject"
    timeout: float | None = None
    events: Literal["all", "agentos"] | None = None

    def check(self) -> None:
        check_session_id(self.session_id)
        check_user_id(self.user_id)
        check_run_id(self.run_id)
        if self.timeout is not None and not 0 < self.timeout < math.inf:
            raise Problem(422, f"timeout is {self.timeout}; it is a number of seconds, more than 0")

    def digest(self) -> bytes:
        """The same for whoever asks for the same run, however they want to hear of it."""
        run = (self.message, self.session_id, self.user_id, self.run_id, self.on_busy, self.timeout)
        return hashlib.sha256(repr(run).encode()).digest()


class Cancel(Struct):
    """What a client may say to cancel."""

    reason: str | None = None
    by: str | None = None
    mode: str = "now"
    grace: float | None = None
    wait: float | None = None

    def request(self) -> CancelRequest:
        if self.wait is not None and not 0 <= self.wait <= MAX_WAIT:
            raise Problem(422, f"wait is {self.wait}; it is a number of seconds from 0 to {MAX_WAIT:g}")
        try:
            return CancelRequest.make(CancelCause.user, self.reason, self.by, self.mode, self.grace)
        except ValueError as error:
            raise Problem(422, str(error)) from None


class CancelMany(Cancel):
    session_id: str | None = None
    user_id: str | None = None
    agent_id: str | None = None
    all: bool = False
    block: bool = False
    """Refuse new runs of this user, or of this agent, until `/unblock`."""


class From(Struct):
    last_event_id: str | None = None


class Resume(Struct):
    last_event_index: int = -1
    events: Literal["all", "agentos"] | None = None


# -- starting ---------------------------------------------------------------------------------------------------------


@router.post("/agents/{agent_id}/runs", openapi_extra=described(Start))
async def start_run(request: Request, agent_id: str) -> Response:
    host = host_of(request)
    agent = host.agent(agent_id)
    wanted = await read_body(request, Start, host.settings.max_body)
    wanted.check()
    key, said = read_key(request), wanted.digest()
    if key and (known := await host.known_by(agent, wanted.user_id, key, said)) is not None:
        return again(host, agent, wanted, *known)
    # From where the key was not known to the run's beginning nothing waits: two requests can't both start a run.
    options: RunOptions = {
        "session_id": wanted.session_id,
        "user_id": wanted.user_id,
        "run_id": wanted.run_id,
        "timeout": wanted.timeout,
        "on_busy": wanted.on_busy,
    }
    run = host.start(agent, wanted.message, options)
    if key:
        host.remember(agent, wanted.user_id, key, said, run.run_id, 0)
    return respond(host, agent, wanted, await host.admitted(run))


class Wanted(Protocol):
    """How a client wants to hear of a run."""

    stream: bool
    background: bool
    on_disconnect: Literal["cancel", "continue"] | None
    events: Literal["all", "agentos"] | None


def respond(host: Visit, agent: Agent, wanted: Wanted, run: Run, after: int = 0, *, owned: bool = True) -> Response:
    """Answer the request that has set the run going; or, not `owned`, one that only watches."""
    tied = (wanted.on_disconnect or ("continue" if wanted.background else "cancel")) == "cancel"
    leave = run.cancel_for if owned and tied else None
    if wanted.stream:
        return _events(host, agent, run, after, everything=wanted.events == "all", leave=leave)
    if wanted.background:
        return answer({"run_id": run.run_id, "session_id": run.session_id, "status": run.status}, 202)

    async def result() -> Response:
        await run.result()
        return answer(run_output(agent, run))

    return AnswerResponse(result, leave)


def again(host: Visit, agent: Agent, wanted: Wanted, found: Run | RunRecord, after: int) -> Response:
    """The same request once more: the run that it has set going, to be watched."""
    if isinstance(found, Run):
        return respond(host, agent, wanted, found, after, owned=False)
    if wanted.stream:
        raise _events_gone(found)
    return answer(record_output(agent, found))


# -- asking and reading -----------------------------------------------------------------------------------------------


@router.get("/agents/{agent_id}/runs/{run_id}")
async def get_run(request: Request, agent_id: str, run_id: str) -> Response:
    host = host_of(request)
    agent = host.agent(agent_id)
    found = await host.find(agent, run_id)
    return answer(run_output(agent, found) if isinstance(found, Run) else record_output(agent, found))


@router.get("/agents/{agent_id}/runs/{run_id}/events")
async def read_events(request: Request, agent_id: str, run_id: str) -> Response:
    last = request.headers.get("last-event-id") or read_query(request, From).last_event_id or "0"
    if not last.isascii() or not last.isdigit() or len(last) > 18:
        raise Problem(400, f"Last-Event-ID is {last[:40]!r}; it is the id of the last event that was read, a number")
    host = host_of(request)
    agent = host.agent(agent_id)
    return await _reattach(host, agent, run_id, int(last), everything=True)


@router.post("/agents/{agent_id}/runs/{run_id}/resume", openapi_extra=described(Resume))
async def resume(request: Request, agent_id: str, run_id: str) -> Response:
    """Go on reading, as the AgentOS family asks for it: by the index of the last event, which counts from 0."""
    host = host_of(request)
    agent = host.agent(agent_id)
    wanted = await read_body(request, Resume, host.settings.max_body)
    if wanted.last_event_index < -1:
        raise Problem(422, f"last_event_index is {wanted.last_event_index}; it counts from 0")
    return await _reattach(host, agent, run_id, wanted.last_event_index + 1, everything=wanted.events == "all")


async def _reattach(host: Visit, agent: Agent, run_id: str, after: int, *, everything: bool) -> Response:
    found = await host.distant(agent, run_id)
    if isinstance(found, RunRecord):
        raise _events_gone(found)
    if isinstance(found, Distant):
        reader = await found.reader(after)
        if reader is None and after == 0:
            raise _events_gone(found.record)
        return Response(status_code=204) if reader is None else _stream(host, agent, reader, everything=everything)
    journal = found.journal
    if after > len(journal.events):
        raise Problem(400, f"run {run_id!r} has {len(journal.events)} events so far, none with the number {after}")
    if (journal.closed or journal.resting) and after == len(journal.events):
        return Response(status_code=204)  # tells a browser's EventSource to ask no more
    return _events(host, agent, found, after, everything=everything)


def _events_gone(record: RunRecord) -> Problem:
    detail = (
        f"run {record.run_id!r} is {record.status.name} and its events are no longer kept; ask for its state instead"
    )
    return Problem(410, detail, status=record.status)


def _events(
    host: Visit, agent: Agent, run: Run, after: int = 0, *, everything: bool, leave: Leave | None = None
) -> Response:
    return _stream(host, agent, run.events(after), everything=everything, leave=leave)


def _stream(
    host: Visit, agent: Agent, reader: EventSource, *, everything: bool, leave: Leave | None = None
) -> Response:
    return EventResponse(
        reader, EventWriter(agent, everything=everything), heartbeat=host.settings.heartbeat, leave=leave
    )


# -- cancelling -------------------------------------------------------------------------------------------------------


@router.post("/agents/{agent_id}/runs/{run_id}/cancel", openapi_extra=described(Cancel))
async def cancel_run(request: Request, agent_id: str, run_id: str) -> Response:
    host = host_of(request)
    agent = host.agent(agent_id)
    wanted = fill(request, await read_cancel(request, host), Cancel)
    asked = wanted.request()
    if wanted.wait is None and await host.asked_elsewhere(agent, run_id, asked):
        return _cancelled(run_id, CancelOutcome.requested, RunStatus.cancelling, None, wanted)
    here = host.run(agent, run_id)
    # One that is here is asked first, and may still wait to be taken in by a store: see what became of that afterwards.
    found = here if here is not None and not here.status.final else await host.distant(agent, run_id)
    if isinstance(found, RunRecord):
        return _cancelled(run_id, CancelOutcome.already_finished, found.status, found.receipt, wanted)
    outcome, stored = await cancel(agent, found, asked)
    if isinstance(found, Run) and (not outcome or found.was_refused):
        found = await host.ended_as(agent, found)
    if wanted.wait is None or found.status in (RunStatus.completed, RunStatus.error):
        return _cancelled(run_id, outcome, found.status, None, wanted, stored=stored)
    wait = wanted.wait

    async def gone() -> Response:
        receipt = await found.gone(wait)
        return _cancelled(run_id, outcome, found.status, receipt, wanted, stored=stored or found.status.final)

    return AnswerResponse(gone)


def _cancelled(
    run_id: str,
    outcome: CancelOutcome,
    status: RunStatus,
    receipt: Receipt | None,
    wanted: Cancel,
    *,
    stored: bool = True,
) -> Response:
    """Not `stored`: this server has stopped the run, and tells the store as soon as that can be asked."""
    view: dict[str, Any] = {"run_id": run_id, "outcome": outcome, "status": status}
    if status in (RunStatus.completed, RunStatus.error):
        ended = "completed" if status is RunStatus.completed else "failed"
        raise Problem(409, f"run {run_id!r} had {ended} before it could be cancelled", **view)
    if wanted.wait is not None:
        view["receipt"] = receipt
    return answer(view) if stored else answer({**view, "stored": False}, 202)


@router.post("/runs/cancel", openapi_extra=described(CancelMany))
async def cancel_many(request: Request) -> Response:
    host = host_of(request)
    given = await read_cancel(request, host)
    wanted = fill(request, given, CancelMany)
    if not (wanted.all or any(given.get(name) for name in ("session_id", "user_id", "agent_id"))):
        raise Problem(400, "say which runs: session_id, user_id, agent_id (all that are given must fit), or all=true")
    agents = [host.agent(wanted.agent_id)] if wanted.agent_id else list(host.agents.values())
    blocked, failure = {}, None
    try:
        blocked = await _block(host, wanted) if wanted.block else {}  # first, so that none begins in between
    except StoreError as error:  # what runs here is stopped all the same
        failure = error
    found = await cancel_all(host, agents, wanted, wanted.session_id, wanted.user_id)
    if failure is not None:
        raise failure
    return once_gone(found, wanted, lambda: {"cancelled": [each.view(wanted) for each in found], **blocked})


async def _block(host: Visit, wanted: CancelMany) -> dict[str, Any]:
    host.principal.must_be_admin()
    asked = wanted.request()
    kind, id = one_of(wanted.user_id, wanted.agent_id)
    if wanted.session_id:
        raise Problem(422, "block is for a user or an agent as a whole: leave out session_id")
    check_user_id(wanted.user_id)
    await host.block(kind, id, asked.by, asked.reason)
    return {"blocked": {"kind": kind, "id": id}}


def one_of(user_id: str | None, agent_id: str | None) -> tuple[BlockKind, str]:
    """What is to be blocked, or unblocked."""
    if (user_id is None) == (agent_id is None):
        raise Problem(422, "say who is meant: user_id or agent_id, and one of them alone")
    return ("user", user_id) if user_id is not None else ("agent", str(agent_id))


class Asked(Struct):
    """One of several runs that were asked to go no further."""

    agent_id: str
    run_id: str
    outcome: CancelOutcome
    run: Run | Distant | None
    receipt: Receipt | None = None

    def view(self, wanted: Cancel) -> dict[str, Any]:
        status = None if self.run is None else self.run.status
        view = {"agent_id": self.agent_id, "run_id": self.run_id, "outcome": self.outcome, "status": status}
        return view if wanted.wait is None else {**view, "receipt": self.receipt}


async def cancel_all(
    host: Visit, agents: Iterable[Agent], wanted: Cancel, session_id: str | None, user_id: str | None
) -> list[Asked]:
    """Cancel all runs of these agents that fit."""
    asked, found = wanted.request(), []
    failure: StoreError | None = None
    for agent in agents:
        runs: dict[str, Run | Distant] = {run.run_id: run for run in agent.runtime.runs}
        try:
            outcomes = await host.cancel(agent, asked, session_id=session_id, user_id=user_id)
            runs |= await find_many(agent, outcomes.keys() - runs.keys())
        except StoreError as error:  # the runs of the other agents that are here are stopped all the same
            failure = error
            continue
        found += [Asked(agent.id, run_id, outcome, runs.get(run_id)) for run_id, outcome in outcomes.items()]
    if failure is not None:
        raise failure
    return found


def once_gone(found: Sequence[Asked], wanted: Cancel, view: Callable[[], Any]) -> Response:
    """Answer at once; or, to one who waits, when all of the runs are gone or what is left of them can be named."""
    if (wait := wanted.wait) is None:
        return answer(view())

    async def attend(asked: Asked) -> None:
        if asked.run is not None:
            asked.receipt = await asked.run.gone(wait)

    async def gone() -> Response:
        await asyncio.gather(*map(attend, found))
        return answer(view())

    return AnswerResponse(gone)


async def read_cancel(request: Request, host: Visit) -> dict[str, Any]:
    """From the query, the body, or both; most clients send neither."""
    body = await read_fields(request, host.settings.max_body)
    given = {name: value for name, value in body.items() if value is not None}
    return {**{name: value for name, value in request.query_params.items() if value != ""}, **given}

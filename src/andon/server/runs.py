# SPDX-License-Identifier: Apache-2.0
"""The routes by run: start one, read its state and its events, cancel it.

The request that starts a run decides whether a disconnect cancels it (`on_disconnect`). Other readers only watch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Literal, Protocol

from fastapi import APIRouter, Request
from msgspec import Struct
from starlette.responses import Response

from andon.agent.agent import Agent, RunOptions
from andon.core.cancel_runs import Sweep, ask_here, done_here
from andon.core.receipt import CancelRequest, Receipt
from andon.core.records import RunRecord
from andon.core.run.run import LocalRun
from andon.core.run.waits import wait_result
from andon.core.selection import BlockKind
from andon.core.shared.remote import EventSource, RemoteRun
from andon.core.states import CancelCause, CancelOutcome, RunStatus
from andon.errors import StoreError
from andon.server.agentos_json import EventWriter, record_output, run_output, stored_output
from andon.server.authorized_host import AuthorizedHost, host_of
from andon.server.body import (
    check_run_id,
    check_session_id,
    check_user_id,
    convert_fields,
    openapi_body,
    read_body,
    read_key,
    read_messages,
    read_metadata,
    read_query_and_body,
)
from andon.server.idempotency import StartedRun, start_once
from andon.server.ignored_fields import AGENTOS_CANCEL, AGENTOS_RESUME, AGENTOS_START
from andon.server.output_schema import read_output_schema
from andon.server.problems import Problem
from andon.server.prompts import read_prompt
from andon.server.queued_runs import AcceptedRun
from andon.server.remote_runs import find_many, wait_until_gone
from andon.server.requested_limits import requested_limits
from andon.server.responses import json_response
from andon.server.run_location import run_headers
from andon.server.sse import DelayedResponse, EventResponse, OnDisconnect

router = APIRouter()

MAX_WAIT = 3600.0
MAX_REASON = 10_000
"""In characters. A reason is written several times, before other writes, so it must not be large."""
MAX_SEQ = 2**31 - 1
"""The database numbers events with a 32-bit integer."""


def check_reason(reason: str | None) -> None:
    if reason is not None and len(reason) > MAX_REASON:
        raise Problem(422, f"reason has {len(reason):,} characters, and may have {MAX_REASON:,}")


class Start(Struct):
    """The body of a request to start a run. In a form, `messages`, `metadata` and an object as `budget` are JSON."""

    ignored_fields: ClassVar = AGENTOS_START
    message: str
    stream: bool = True
    background: bool = False
    session_id: str | None = None
    user_id: str | None = None
    run_id: str | None = None
    on_disconnect: Literal["cancel", "continue"] | None = None
    on_busy: Literal["reject", "queue", "cancel"] = "reject"
    on_full: Literal["reject", "queue"] = "reject"
    """What to do if there are as many runs as worker processes may have: refuse, or wait in the queue."""
    timeout: float | None = None
    events: Literal["all", "agentos"] | None = None
    max_turns: int | None = None
    budget: int | dict[str, int | None] | str | None = None
    metadata: str | dict[str, Any] | None = None
    messages: str | list[Any] | None = None
    output_schema: dict[str, Any] | str | None = None
    """The JSON schema that the answer must match; in a form, as text."""
    files: list[Any] | str | None = None
    """Images and files beside the message: blocks as a session shows them; in a form, uploads."""

    def check(self) -> None:
        check_session_id(self.session_id)
        check_user_id(self.user_id)
        check_run_id(self.run_id)

    def options(self, agent: Agent) -> RunOptions:
        """The options for a run of this agent."""
        options: RunOptions = {
            "session_id": self.session_id,
            "user_id": self.user_id,
            "run_id": self.run_id,
            "on_busy": self.on_busy,
            "metadata": read_metadata(self.metadata),
            "messages": read_messages(self.messages),
        }
        return {**options, **requested_limits(agent, self.max_turns, self.timeout, self.budget)}


class Cancel(Struct):
    """The fields of a cancel."""

    ignored_fields: ClassVar = AGENTOS_CANCEL
    reason: str | None = None
    by: str | None = None
    mode: str = "now"
    grace: float | None = None
    force: bool = False
    """Also cut calls whose tools say `on_cancel="finish"`."""
    wait: float | None = None

    def request(self) -> CancelRequest:
        if self.wait is not None and not 0 <= self.wait <= MAX_WAIT:
            raise Problem(422, f"wait is {self.wait}; it is a number of seconds from 0 to {MAX_WAIT:g}")
        check_reason(self.reason)
        try:
            return CancelRequest.make(CancelCause.user, self.reason, self.by, self.mode, self.grace, self.force)
        except ValueError as error:
            raise Problem(422, str(error)) from None


class CancelMany(Cancel):
    session_id: str | None = None
    user_id: str | None = None
    agent_id: str | None = None
    all: bool = False
    block: bool = False
    """Refuse new runs of this user, or of this agent, until `/unblock`."""


class Resume(Struct):
    ignored_fields: ClassVar = AGENTOS_RESUME
    last_event_index: int = -1
    events: Literal["all", "agentos"] | None = None


# -- starting ---------------------------------------------------------------------------------------------------------


@router.post("/agents/{agent_id}/runs", openapi_extra=openapi_body(Start))
async def start_run(request: Request, agent_id: str) -> Response:
    host = host_of(request)
    agent = host.agent(agent_id)
    wanted = await read_body(request, Start, host.settings.max_body)
    wanted.check()
    form = read_output_schema(wanted.output_schema)
    options = wanted.options(agent)
    prompt = read_prompt(wanted.message, wanted.files)
    key = read_key(request, wanted)

    async def begin() -> tuple[LocalRun | AcceptedRun, int]:
        return await host.begin(agent, prompt, options, form, key, waits=wanted.on_full == "queue"), 0

    return await respond_to_start(host, agent, wanted, await start_once(host, agent, wanted.user_id, key, begin))


class ResponseOptions(Protocol):
    """How a client wants the response."""

    stream: bool
    background: bool
    on_disconnect: Literal["cancel", "continue"] | None
    events: Literal["all", "agentos"] | None


def _respond_with_live_run(
    host: AuthorizedHost, agent: Agent, wanted: ResponseOptions, run: LocalRun, after: int, *, owned: bool
) -> Response:
    """The response to the request that started the run; or, not `owned`, to one that only watches it."""
    leave = run.cancel_for if owned and _is_tied(wanted) else None
    if wanted.stream:
        return _events(host, agent, run, after, everything=wanted.events == "all", leave=leave)
    if wanted.background:
        started = {"run_id": run.run_id, "session_id": run.session_id, "status": run.status}
        return json_response(started, 202, host.location_headers(agent, run.run_id))

    async def result() -> Response:
        await wait_result(run)
        return json_response(run_output(agent, run), headers=run_headers(run.run_id))

    return DelayedResponse(result, leave)


def _respond_with_accepted_run(
    host: AuthorizedHost, agent: Agent, wanted: ResponseOptions, run: AcceptedRun, after: int
) -> Response:
    """The same for a run that a worker process executes."""
    leave = run.cancel_for if _is_tied(wanted) else None
    if wanted.stream:
        reader = run.remote.read(after)
        return _stream(host, agent, run.run_id, reader, everything=wanted.events == "all", leave=leave)
    if wanted.background:
        started = {"run_id": run.run_id, "session_id": run.session_id, "status": run.status}
        return json_response(started, 202, host.location_headers(agent, run.run_id))

    async def result() -> Response:
        return json_response(stored_output(agent, *await run.rested()), headers=run_headers(run.run_id))

    return DelayedResponse(result, leave)


def _is_tied(wanted: ResponseOptions) -> bool:
    """Is the run to be cancelled if the client disconnects?"""
    return (wanted.on_disconnect or ("continue" if wanted.background else "cancel")) == "cancel"


async def respond_to_start(host: AuthorizedHost, agent: Agent, wanted: ResponseOptions, found: StartedRun) -> Response:
    """The response to a request that started or continued a run; or to a copy of it, which only watches the run."""
    run, after = found.run, found.after
    if isinstance(run, LocalRun):
        return _respond_with_live_run(host, agent, wanted, run, after, owned=found.fresh)
    if isinstance(run, AcceptedRun):
        return _respond_with_accepted_run(host, agent, wanted, run, after)
    remote = host.stored_run(agent, run)
    if wanted.stream:
        reader = None if remote is None else await remote.reader(after)
        if reader is None:
            raise _events_gone(run)
        return _stream(host, agent, run.run_id, reader, everything=wanted.events == "all")
    if wanted.background:
        started = {"run_id": run.run_id, "session_id": run.session.session_id, "status": run.status}
        return json_response(started, 202, host.location_headers(agent, run.run_id))
    if remote is None:
        return json_response(record_output(agent, run), headers=run_headers(run.run_id))

    async def result() -> Response:
        return json_response(record_output(agent, await remote.rested(after)), headers=run_headers(run.run_id))

    return DelayedResponse(result)


# -- asking and reading -----------------------------------------------------------------------------------------------


@router.get("/agents/{agent_id}/runs/{run_id}")
async def get_run(request: Request, agent_id: str, run_id: str) -> Response:
    host = host_of(request)
    agent = await host.agent_of(agent_id, run_id)
    found = await host.find(agent, run_id)
    output = run_output(agent, found) if isinstance(found, LocalRun) else record_output(agent, found)
    return json_response(output, headers=run_headers(run_id))


@router.get("/agents/{agent_id}/runs/{run_id}/events")
async def read_events(request: Request, agent_id: str, run_id: str) -> Response:
    last = request.headers.get("last-event-id") or request.query_params.get("last_event_id") or "0"
    if not last.isascii() or not last.isdigit() or len(last) > 18:
        raise Problem(400, f"Last-Event-ID is {last[:40]!r}; it is the id of the last event that was read, a number")
    host = host_of(request)
    agent = await host.agent_of(agent_id, run_id)
    return await _reattach(host, agent, run_id, int(last), everything=True)


@router.post("/agents/{agent_id}/runs/{run_id}/resume", openapi_extra=openapi_body(Resume))
async def resume(request: Request, agent_id: str, run_id: str) -> Response:
    """Read on after the event with this index, counted from 0, as the AgentOS family does."""
    host = host_of(request)
    agent = await host.agent_of(agent_id, run_id)
    wanted = await read_body(request, Resume, host.settings.max_body)
    if wanted.last_event_index < -1:
        raise Problem(422, f"last_event_index is {wanted.last_event_index}; it counts from 0")
    return await _reattach(host, agent, run_id, wanted.last_event_index + 1, everything=wanted.events == "all")


async def _reattach(host: AuthorizedHost, agent: Agent, run_id: str, after: int, *, everything: bool) -> Response:
    if after > MAX_SEQ:
        raise Problem(400, f"run {run_id!r} has no event with that number; no run has more than {MAX_SEQ}")
    found = await host.find_anywhere(agent, run_id)
    if isinstance(found, RunRecord):
        raise _events_gone(found)
    if isinstance(found, RemoteRun):
        reader = await found.reader(after)
        if reader is None and (after == 0 or not await found.has_events()):
            raise _events_gone(found.record)  # also for a client that had read some: it would come back for ever
        if reader is None:
            return _no_more(run_id)
        return _stream(host, agent, run_id, reader, everything=everything)
    journal = found.journal
    if after > len(journal.events):
        raise Problem(400, f"run {run_id!r} has {len(journal.events)} events so far, none with the number {after}")
    if (journal.closed or journal.resting) and after == len(journal.events):
        return _no_more(run_id)
    return _events(host, agent, found, after, everything=everything)


def _no_more(run_id: str) -> Response:
    """A 204: a browser's EventSource stops reconnecting."""
    return Response(status_code=204, headers=run_headers(run_id))


def _events_gone(record: RunRecord) -> Problem:
    detail = (
        f"run {record.run_id!r} is {record.status.name} and its events are no longer kept; ask for its state instead"
    )
    return Problem(410, detail, status=record.status)


def _events(
    host: AuthorizedHost,
    agent: Agent,
    run: LocalRun,
    after: int = 0,
    *,
    everything: bool,
    leave: OnDisconnect | None = None,
) -> Response:
    return _stream(host, agent, run.run_id, run.read(after), everything=everything, leave=leave)


def _stream(
    host: AuthorizedHost,
    agent: Agent,
    run_id: str,
    reader: EventSource,
    *,
    everything: bool,
    leave: OnDisconnect | None = None,
) -> Response:
    writer, heartbeat = EventWriter(agent, everything=everything), host.settings.heartbeat
    return EventResponse(reader, writer, heartbeat=heartbeat, leave=leave, headers=run_headers(run_id))


# -- cancelling -------------------------------------------------------------------------------------------------------


@router.post("/agents/{agent_id}/runs/{run_id}/cancel", openapi_extra=openapi_body(Cancel))
async def cancel_run(request: Request, agent_id: str, run_id: str) -> Response:
    host = host_of(request)
    agent = await host.agent_of(agent_id, run_id)
    wanted = convert_fields(request, await read_query_and_body(request, host.settings.max_body), Cancel)
    wait = wanted.wait
    outcome, found, stored = await host.cancel_run(agent, run_id, wanted.request(), look_up=wait is not None)

    def respond(receipt: Receipt | None) -> Response:
        status = RunStatus.cancelling if found is None else found.status
        view: dict[str, Any] = {"run_id": run_id, "outcome": outcome, "status": status}
        if status in (RunStatus.completed, RunStatus.error):
            ended = "completed" if status is RunStatus.completed else "failed"
            raise Problem(409, f"run {run_id!r} had {ended} before it could be cancelled", **view)
        if wait is not None:
            view["receipt"] = receipt
        if stored or (wait is not None and status.final):
            return json_response(view, headers=run_headers(run_id))
        # This server has stopped the run. It tells the store as soon as the store answers.
        return json_response({**view, "stored": False}, 202, host.location_headers(agent, run_id))

    if isinstance(found, RunRecord):
        return respond(found.receipt)
    if wait is None or found is None or found.status in (RunStatus.completed, RunStatus.error):
        return respond(None)

    run = found

    async def gone() -> Response:
        nonlocal found
        found, receipt = await host.wait_until_gone(agent, run, wait)
        return respond(receipt)

    return DelayedResponse(gone)


@router.post("/runs/cancel", openapi_extra=openapi_body(CancelMany))
async def cancel_many(request: Request) -> Response:
    host = host_of(request)
    given = await read_query_and_body(request, host.settings.max_body)
    wanted = convert_fields(request, given, CancelMany)
    if not (wanted.all or any(given.get(name) for name in ("session_id", "user_id", "agent_id"))):
        raise Problem(400, "say which runs: session_id, user_id, agent_id (all that are given must fit), or all=true")
    agents = host.agents_named(wanted.agent_id) if wanted.agent_id else host.all_agents
    asked = wanted.request()
    block = _to_block(host, wanted) if wanted.block else None
    host.log_cancel(asked, wanted.agent_id, wanted.user_id, wanted.session_id)
    found = await cancel_all(host, agents, asked, wanted.session_id, wanted.user_id, block)
    blocked = {} if block is None else {"blocked": {"kind": block[0], "id": block[1]}}
    return respond_when_ended(found, wanted, lambda: {"cancelled": [each.view(wanted) for each in found], **blocked})


def _to_block(host: AuthorizedHost, wanted: CancelMany) -> tuple[BlockKind, str]:
    host.principal.require_admin()
    block = block_target(wanted.user_id, wanted.agent_id)
    if wanted.session_id:
        raise Problem(422, "block is for a user or an agent as a whole: leave out session_id")
    check_user_id(wanted.user_id)
    return block


def block_target(user_id: str | None, agent_id: str | None) -> tuple[BlockKind, str]:
    """The user or agent to block or unblock."""
    if (user_id is None) == (agent_id is None):
        raise Problem(422, "give user_id or agent_id, and only one of them")
    return ("user", user_id) if user_id is not None else ("agent", str(agent_id))


class CancelTarget(Struct):
    """One of several runs that were asked to stop."""

    agent_id: str
    run_id: str
    outcome: CancelOutcome
    run: LocalRun | RemoteRun | None
    receipt: Receipt | None = None

    def view(self, wanted: Cancel) -> dict[str, Any]:
        status = None if self.run is None else self.run.status
        view = {"agent_id": self.agent_id, "run_id": self.run_id, "outcome": self.outcome, "status": status}
        return view if wanted.wait is None else {**view, "receipt": self.receipt}


async def cancel_all(
    host: AuthorizedHost,
    agents: Iterable[Agent],
    asked: CancelRequest,
    session_id: str | None,
    user_id: str | None,
    block: tuple[BlockKind, str] | None = None,
) -> list[CancelTarget]:
    """Cancel all matching runs of these agents, and block the given user or agent.

    All runs of this process are asked first, before any store. If a store can't be reached, the error is raised at the
    end.
    """
    sweeps = [(agent, host.sweep(agent, session_id=session_id, user_id=user_id)) for agent in agents]
    failures: list[BaseException] = []
    ask_here([sweep for _, sweep in sweeps], asked)
    if block is not None:
        try:
            await host.block(*block, asked.by, asked.reason)
        except StoreError as error:
            failures.append(error)
        ask_here([sweep for _, sweep in sweeps], asked)  # a run may have begun before the block
    found: list[CancelTarget] = []
    for each in await asyncio.gather(*(_ask_store(*each, asked) for each in sweeps), return_exceptions=True):
        if isinstance(each, BaseException):
            failures.append(each)
        else:
            found += each
    for failure in failures:
        if isinstance(failure, StoreError):
            failure.done = done_here(sum(sweep.asked for _, sweep in sweeps))
        raise failure
    return found


async def _ask_store(agent: Agent, sweep: Sweep, asked: CancelRequest) -> list[CancelTarget]:
    outcomes = await sweep.ask_store(asked)
    runs = sweep.found | await find_many(agent, outcomes.keys() - sweep.found.keys())
    return [CancelTarget(agent.id, run_id, outcome, runs.get(run_id)) for run_id, outcome in outcomes.items()]


def respond_when_ended(found: Sequence[CancelTarget], wanted: Cancel, view: Callable[[], Any]) -> Response:
    """Respond at once; or, with `wait`, when all of the runs are gone or their leftovers are known."""
    if (wait := wanted.wait) is None:
        return json_response(view())

    async def attend(asked: CancelTarget) -> None:
        if asked.run is not None:
            asked.receipt = await wait_until_gone(asked.run, wait)

    async def gone() -> Response:
        await asyncio.gather(*map(attend, found))
        return json_response(view())

    return DelayedResponse(gone)

# SPDX-License-Identifier: Apache-2.0
"""Routes for ADK's clients: the same agents, addressed by session. Run, talk, cancel, and manage sessions.

If a client disconnects, only the run that it started is cancelled. An unknown session is a 404 before a run is started
or an event is sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from fastapi import APIRouter, Request, WebSocket, WebSocketDisconnect
from msgspec import Struct
from starlette.responses import Response

from andon import __version__
from andon.agent.agent import Agent, RunOptions
from andon.agent.prompt import Prompt
from andon.core.cancel_runs import ask_here
from andon.core.events import RunEvent
from andon.core.receipt import CancelRequest
from andon.core.records import SessionKey, SessionRecord
from andon.core.run.run import LocalRun
from andon.core.run.waits import wait_result
from andon.core.session import OnBusy
from andon.core.shared.remote import RemoteRun
from andon.core.states import CancelCause, RunStatus
from andon.errors import AndonError
from andon.messages import Media
from andon.server.access import subprotocol
from andon.server.adk_json import (
    METADATA,
    REFUSED,
    AdkEventWriter,
    AdkJson,
    Create,
    Invocation,
    Invoke,
    LiveQuery,
    Update,
    parts_of,
    read_live_message,
    read_live_query,
    session_shape,
    to_snake_case,
    too_large,
)
from andon.server.auth_middleware import close_reason, send_refusal
from andon.server.authorized_host import AuthorizedHost, host_of, unknown_session
from andon.server.body import (
    CANCEL,
    check_session_id,
    check_user_id,
    convert_fields,
    openapi_body,
    read_fields,
    read_metadata,
    read_query,
    read_query_and_body,
    refuse_key,
)
from andon.server.host import HasMaxState, store_of
from andon.server.pages import Page, page_response
from andon.server.problems import Problem, problem_of
from andon.server.prompts import join_parts, size_of
from andon.server.queued_runs import AcceptedRun
from andon.server.remote_runs import live_in
from andon.server.responses import json_response, large_json_response, to_json
from andon.server.run_location import run_headers
from andon.server.runs import Cancel, cancel_all, respond_when_ended
from andon.server.sse import DelayedResponse, EventResponse
from andon.store.state import check_size

router = APIRouter()

T = TypeVar("T", bound=Struct)

# -- running ----------------------------------------------------------------------------------------------------------


@router.post("/run", openapi_extra=openapi_body(Invoke))
async def run_whole(request: Request) -> Response:
    refuse_key(request)
    wanted = await _read(request, Invoke)
    run = await _start(host_of(request), wanted)
    writer = AdkEventWriter(run, streaming=False)

    async def make() -> Response:
        told = [shape async for event in run.read() for shape in writer.write(event)]
        return json_response(told, headers=run_headers(run.run_id))

    return DelayedResponse(make, run.cancel_for)


@router.post("/run_sse", openapi_extra=openapi_body(Invoke))
async def run_streaming(request: Request) -> Response:
    refuse_key(request)
    wanted = await _read(request, Invoke)
    host = host_of(request)
    run = await _start(host, wanted)
    frames, heartbeat = AdkEventWriter(run, streaming=wanted.streaming).frames, host.settings.heartbeat
    named = run_headers(run.run_id)
    return EventResponse(run.read(), frames, heartbeat=heartbeat, leave=run.cancel_for, headers=named)


async def _start(host: AuthorizedHost, wanted: Invoke) -> LocalRun | AcceptedRun:
    if wanted.invocation_id is not None or wanted.function_call_event_id is not None:
        raise Problem(422, "an invocation can't be resumed here: leave out invocationId and functionCallEventId")
    agent = _agent(host, wanted.app_name)
    prompt = join_parts(parts_of(wanted.new_message))
    session = await _find(agent, wanted.user_id, wanted.session_id)
    if wanted.state_delta:  # before the run: a refused request must not change the session
        _check_state(agent, {**session.state, **wanted.state_delta})
    run = await _begin(host, agent, session.key, prompt, wanted.custom_metadata)
    if wanted.state_delta:
        try:
            await _set(agent, session.key, wanted.state_delta)
        except BaseException:  # the client gets an error, and will not read the run
            run.cancel_for(CancelCause.caller)
            raise
    return run


def _check_state(agent: Agent, state: dict[str, Any]) -> None:
    """Raise if the state is too large for the store."""
    store = store_of(agent)
    if isinstance(store, HasMaxState):
        check_size(len(to_json(state)), store.max_state)


async def _begin(
    host: AuthorizedHost,
    agent: Agent,
    key: SessionKey,
    prompt: Prompt,
    custom: dict[str, Any] | None = None,
    on_busy: OnBusy = "reject",
) -> LocalRun | AcceptedRun:
    options: RunOptions = {"session_id": key.session_id, "user_id": key.user_id, "on_busy": on_busy}
    if read_metadata(custom, METADATA):
        options["metadata"] = {METADATA: custom}
    return await host.begin(agent, prompt, options)


# -- talking ----------------------------------------------------------------------------------------------------------


_CLOSE_CODES = {400: 1007, 404: 1002, 413: 1009, 415: 1003, 422: 1007, 500: 1011, 501: 1011, 503: 1013}
"""Any other status is a 1008: the message was understood, and is not allowed."""
MAX_UNSENT = 8
"""How many runs may wait for a client that does not read. With more, the server stops reading from it."""


@router.websocket("/run_live")
async def run_live(socket: WebSocket) -> None:
    """Talk in a session: each text is a prompt, and cancels the run of the prompt before it."""
    wanted = read_live_query(socket)
    if isinstance(wanted, Problem) and wanted.status_code == 403:  # not authorized: refused in the handshake
        await send_refusal(wanted, socket, socket.receive, socket.send)
        return
    await socket.accept(subprotocol(socket))  # before other checks, so that the client can read the reason
    code, reason = 1000, ""
    try:
        await _LiveConnection(host_of(socket)).go(socket, wanted)
    except WebSocketDisconnect:  # while something was sent
        pass
    except (Problem, AndonError) as error:
        problem = error if isinstance(error, Problem) else problem_of(error)
        code, reason = _CLOSE_CODES.get(problem.status_code, 1008), problem.detail
    except Exception:
        code, reason = 1011, "the server failed; its log says why"
        raise
    finally:
        with contextlib.suppress(RuntimeError, WebSocketDisconnect):  # the client has closed it
            await socket.close(code, close_reason(reason))


class _LiveConnection:
    """A live connection: received texts become runs, and the events of the runs are sent one run after the other."""

    def __init__(self, host: AuthorizedHost) -> None:
        self._host = host
        self._run: LocalRun | AcceptedRun | None = None
        self._pieces: list[str | Media] = []
        self._held = 0
        """How many characters of text, and bytes of images and files, the pieces have."""
        self._to_send: asyncio.Queue[LocalRun | AcceptedRun | AdkJson] = asyncio.Queue(MAX_UNSENT)

    async def go(self, socket: WebSocket, wanted: LiveQuery | Problem) -> None:
        """Serve until the client closes or disconnects, or an error."""
        if isinstance(wanted, Problem):
            raise wanted
        agent = _agent(self._host, wanted.app_name)
        session = await _find(agent, wanted.user_id, wanted.session_id)
        both = [
            asyncio.ensure_future(self._hear(socket, agent, session.key)),
            asyncio.ensure_future(self._tell(socket)),
        ]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in both:
                task.cancel()
            await asyncio.wait(both)
            if self._run is not None:
                self._run.cancel_for(CancelCause.shutdown if self._host.draining else CancelCause.disconnect)
        for task in both:
            if not task.cancelled():
                task.result()

    async def _hear(self, socket: WebSocket, agent: Agent, key: SessionKey) -> None:
        while (frame := await socket.receive())["type"] == "websocket.receive":
            said = read_live_message(socket, frame.get("text"), self._host.settings.max_body)
            if said.state_delta:
                await _set(agent, key, said.state_delta)
            if said.close:
                return
            if said.content is None:
                continue
            parts = parts_of(said.content)
            self._pieces += parts
            self._held += sum(map(size_of, parts)) + len(parts)
            if self._held > self._host.settings.max_body:
                raise too_large(self._host.settings.max_body)
            if not said.partial:
                await _find(agent, key.user_id, key.session_id)  # the session may have been deleted meanwhile
                await self._answer(join_parts(self._pieces), agent, key)
                self._pieces, self._held = [], 0

    async def _answer(self, prompt: Prompt, agent: Agent, key: SessionKey) -> None:
        """Start the next run. It replaces a live run of this connection, never one of another client."""
        before = self._run
        going = before is not None and not (await _status_now(before)).final
        try:
            self._run = await _begin(self._host, agent, key, prompt, on_busy="queue" if going else "reject")
        except Problem as problem:
            refusal = Invocation(uuid.uuid4().hex, agent.id, {}).event(
                "end", time.time(), errorCode=REFUSED, errorMessage=problem.detail, turnComplete=True
            )
            await self._to_send.put(refusal)
            return
        if before is not None:  # only now: a refused prompt cancels nothing
            before.cancel_for(CancelCause.superseded)
        await self._to_send.put(self._run)

    async def _tell(self, socket: WebSocket) -> None:
        while True:
            told = await self._to_send.get()
            if not isinstance(told, LocalRun | AcceptedRun):
                await socket.send_text(to_json(told).decode())
                continue
            writer = AdkEventWriter(told, streaming=True)
            async for event in told.read():
                shapes = writer.write(event)
                if shapes and (event.event.terminal or event.event is RunEvent.run_paused):
                    shapes[-1]["turnComplete"] = True
                for shape in shapes:
                    await socket.send_text(to_json(shape).decode())


async def _status_now(run: LocalRun | AcceptedRun) -> RunStatus:
    """Of a run that a worker process executes, only the store knows it."""
    return run.status if isinstance(run, LocalRun) else (await run.remote.look()).status


# -- sessions ---------------------------------------------------------------------------------------------------------

SESSIONS = "/apps/{app}/users/{user}/sessions"
SESSION = SESSIONS + "/{session}"
DELETE_SECONDS = 5.0
"""How long a deletion waits for the runs that it cancelled."""


@router.post(
    SESSION + CANCEL, openapi_extra=openapi_body(Cancel)
)  # declared before the route that would take `s1:cancel` as the id of a new session
async def cancel_session(request: Request, app: str, user: str, session: str) -> Response:
    host = host_of(request)
    agent = host.agent(app)
    wanted = convert_fields(request, await read_query_and_body(request, host.settings.max_body), Cancel)
    # Runs of this process are cancelled without asking the store first.
    if not _runs_in(agent, SessionKey(agent.id, user, session)):
        await _find(agent, user, session)
    found = [each for each in await cancel_all(host, [agent], wanted.request(), session, user) if each.outcome]

    def view() -> dict[str, Any]:
        cancelled = {"session_id": session, "cancelled": [asked.run_id for asked in found]}
        return cancelled if wanted.wait is None else {**cancelled, "runs": [asked.view(wanted) for asked in found]}

    return respond_when_ended(found, wanted, view)


@router.post(SESSION)
async def create_session_with_id(request: Request, app: str, user: str, session: str) -> Response:
    host = host_of(request)
    agent = host.agent(app)
    return await _create(host, agent, user, session, await read_fields(request, host.max_state_body(agent)))


@router.post(SESSIONS, openapi_extra=openapi_body(Create))
async def create_session(request: Request, app: str, user: str) -> Response:
    host = host_of(request)
    agent = host.agent(app)
    wanted = await _read(request, Create, host.max_state_body(agent))
    if wanted.events:
        raise Problem(422, "a session can't be made of events here: leave them out, and send the messages by /run")
    return await _create(host, agent, user, wanted.session_id or uuid.uuid4().hex, wanted.state)


async def _create(host: AuthorizedHost, agent: Agent, user: str, session_id: str, state: dict[str, Any]) -> Response:
    check_user_id(user)
    check_session_id(session_id)
    key = SessionKey(agent.id, user, session_id)
    async with host.session_slot(agent, user, session_id):
        record = None if _runs_in(agent, key) else await store_of(agent).create_session(key, state)
    if record is None:
        raise Problem(409, f"session {session_id!r} exists already: use it, or leave the id out to get a fresh one")
    return json_response(session_shape(record))


@router.get(SESSIONS)
async def list_sessions(request: Request, app: str, user: str) -> Response:
    """Oldest first, without events. `GET` of one session has its events."""
    agent = host_of(request).agent(app)
    wanted = read_query(request, Page)
    after = wanted.check()
    found = await store_of(agent).list_sessions(agent.id, user, wanted.limit + 1, after)
    records = {record.key: record for record in found}
    for run in agent.runtime.live_runs:
        if run.session.key[:2] == (agent.id, user) and (after is None or (run.created_at, run.session_id) > after):
            records.setdefault(run.session.key, _begun_by(run))
    listed = sorted(records.values(), key=lambda record: (record.created_at, record.key.session_id))
    positions = [(record.created_at, record.key.session_id) for record in listed]
    return page_response(request, [session_shape(record) for record in listed], positions, wanted.limit)


@router.get(SESSION)
async def get_session(request: Request, app: str, user: str, session: str) -> Response:
    agent = host_of(request).agent(app)
    record = await _find(agent, user, session)
    head, events = session_shape(record), await _events(agent, record.key)
    del head["events"]
    return await large_json_response(head, "events", events)


@router.patch(SESSION, openapi_extra=openapi_body(Update))
async def update_session(request: Request, app: str, user: str, session: str) -> Response:
    """The response has the new state and no events, so that a small change needs no large response."""
    host = host_of(request)
    agent = host.agent(app)
    wanted = await _read(request, Update, host.max_state_body(agent))
    key = (await _find(agent, user, session)).key
    return json_response(session_shape(await _set(agent, key, wanted.state_delta)))


@router.delete(SESSION)
async def delete_session(request: Request, app: str, user: str, session: str) -> Response:
    """Runs in the session are cancelled first, so that none writes into it afterwards."""
    host = host_of(request)
    agent = host.agent(app)
    store, asked = store_of(agent), CancelRequest.make(reason="its session was deleted", by=host.principal.by)
    ask_here([host.sweep(agent, session_id=session, user_id=user)], asked)
    key = (await _find(agent, user, session)).key
    try:
        async with asyncio.timeout(DELETE_SECONDS):
            while runs := await _all_in(agent, key):  # new ones may begin meanwhile
                for run in runs:
                    await host.cancel(agent, run, asked)
                for run in runs:
                    await (wait_result(run) if isinstance(run, LocalRun) else run.gone(DELETE_SECONDS))
    except TimeoutError:
        raise Problem(409, f"a run in session {session!r} was cancelled and has not ended yet: try again") from None
    await store.delete_session(key)
    return json_response(None)


async def _find(agent: Agent, user: str | None, session_id: str) -> SessionRecord:
    """A session exists once it was created, or as soon as a run is in it."""
    key = SessionKey(agent.id, user, session_id)
    running = _runs_in(agent, key)
    record = await store_of(agent).find_session(key)
    if record is None and not running and not await live_in(agent, key):
        raise unknown_session(key)
    return record or SessionRecord(key, {}, (now := running[0].created_at if running else time.time()), now)


async def _set(agent: Agent, key: SessionKey, delta: dict[str, Any]) -> SessionRecord:
    store = store_of(agent)
    record = await store.update_session(key, delta)
    if record is None and _runs_in(agent, key):  # its first run has not written anything yet
        await store.create_session(key, {})
        record = await store.update_session(key, delta)
    if record is None:  # deleted meanwhile
        raise unknown_session(key)
    return record


async def _events(agent: Agent, key: SessionKey) -> Callable[[], Iterator[AdkJson]]:
    """The events of a session; of a live run, the complete ones. The returned function may be called in a thread."""
    running = {run.run_id: run for run in _runs_in(agent, key)}
    history = await store_of(agent).history(key)
    for record, _ in history:
        running.pop(record.run_id, None)
    begun = [(run, list(run.own_messages)) for run in running.values()]

    def make() -> Iterator[AdkJson]:
        for record, messages in history:
            # Messages that were put into the session have no run id.
            invocation = Invocation(record.run_id or "history", agent.id, record.metadata)
            yield from invocation.whole(messages, record.created_at, record)
        for run, messages in begun:
            yield from Invocation(run.run_id, agent.id, run.metadata).whole(messages, run.created_at, None)

    return make


def _runs_in(agent: Agent, key: SessionKey) -> list[LocalRun]:
    return [run for run in agent.runtime.live_runs if run.session.key == key]


async def _all_in(agent: Agent, key: SessionKey) -> list[LocalRun | RemoteRun]:
    """The same, with the runs of other processes."""
    here = {run.run_id: run for run in _runs_in(agent, key)}
    return [*here.values(), *(each for each in await live_in(agent, key) if each.run_id not in here)]


def _begun_by(run: LocalRun) -> SessionRecord:
    return SessionRecord(run.session.key, {}, run.created_at, run.created_at)


# -- the rest ---------------------------------------------------------------------------------------------------------


@router.get("/list-apps")
async def list_apps(request: Request) -> Response:
    return json_response(list(host_of(request).agents))


@router.get("/version")
async def version() -> Response:
    python = ".".join(map(str, sys.version_info[:3]))
    return json_response({"version": __version__, "language": "python", "language_version": python})


def _agent(host: AuthorizedHost, app: str | None) -> Agent:
    if app is None and len(host.agents) > 1:
        raise Problem(422, f"there is no app name, and several to choose from: {', '.join(host.agents)}")
    return host.agent(next(iter(host.agents)) if app is None else app)


async def _read(request: Request, kind: type[T], limit: int | None = None) -> T:
    """The body, with keys in camelCase or snake_case."""
    fields = await read_fields(request, host_of(request).settings.max_body if limit is None else limit)
    return convert_fields(request, to_snake_case(fields, kind), kind)

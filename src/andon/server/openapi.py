# SPDX-License-Identifier: Apache-2.0
"""The OpenAPI document of the server: every response, error, parameter, tag and security scheme, so that clients can be
generated from it.

The routes read and write JSON themselves, so FastAPI only knows their paths. `OPERATIONS` has the rest, by the name of
the function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from andon.agent.sessions import StoredSession
from andon.core.selection import Block
from andon.scale.overview import Overview
from andon.server.adk_json import Create, Invoke, Update
from andon.server.auth_middleware import OPEN
from andon.server.board.feed import Changes, Hello
from andon.server.board.plots import Plots
from andon.server.board.routes import HistoryQuery, Tree
from andon.server.continuing import CancelCall, Continue
from andon.server.conversations import Fork, Replace, Whose
from andon.server.event_tickets import PARAMETER, TicketRequest
from andon.server.lists import AnyRunFilter, RunFilter
from andon.server.operations import CancelLogQuery, Unblock
from andon.server.pages import Page
from andon.server.response_types import (
    EVENTS,
    AgentDetail,
    AgentSummary,
    CancelAnswer,
    CancelCallAnswer,
    CancelLine,
    CancelManyAnswer,
    CancelSessionAnswer,
    DrainAnswer,
    ProblemDetail,
    RollbackAnswer,
    RunLine,
    RunOutput,
    RunStartedAnswer,
    ServerConfig,
    ServerStatus,
    ServerVersion,
    Session,
    SessionEvent,
    Ticket,
    UnblockAnswer,
)
from andon.server.run_location import RUN_ID
from andon.server.runs import Cancel, CancelMany, Resume, Start

Json = dict[str, Any]

JSON, SSE, TEXT = "application/json", "text/event-stream", "text/plain"
FORMS = {"application/x-www-form-urlencoded": "Form", "multipart/form-data": "Multipart"}
JSON_ALONE = (Invoke, Create, Update, Json)
"""Bodies that can't be sent as a form."""
EVENT, BOARD = "RunStreamEvent", "BoardMessage"
BEARER: Mapping[str, Mapping[str, Any]] = {"bearer": {"type": "http", "scheme": "bearer"}}
TICKET = {"ticket": {"type": "apiKey", "in": "query", "name": PARAMETER, "description": "From `POST …/ticket`."}}


class EventsQuery(Struct):
    """The query of a request for the events of a run."""

    last_event_id: str | None = None


TAGS = {
    "runs": "Start runs, read their events, cancel and continue them.",
    "conversations": "Read, replace, fork and delete the messages of a session.",
    "sessions": "The same agents, addressed by session, in ADK's format. `WS /run_live` is not described here.",
    "agents": "The agents of the server.",
    "operations": "For operators: cancel many runs, block users and agents, metrics.",
    "board": "What the page at `/` reads.",
}

ERRORS = {
    400: "The request can't be parsed, or answers are wrong or missing.",
    401: "The token or the user is not known.",
    403: "The user may not do this, or the origin of the page or the Host header is not allowed.",
    404: "The agent, run, session or user does not exist, or belongs to another user.",
    409: "The session is busy, the id is taken, or the run has ended.",
    410: "The events are no longer kept; the state is.",
    413: "The request is too large.",
    415: "The body is neither JSON nor a form, or has parts other than text.",
    422: "A field is unknown or has a wrong value.",
    429: "The limit of runs, or of sessions of this user, is reached.",
    500: "The server failed; its log says why.",
    501: "The agent's store keeps no sessions.",
    503: "The server is shutting down, or its database does not answer.",
}
_EVERYWHERE = (403, 422, 500, 503)
_BODY = (400, 413, 415, 422)


class Operation(NamedTuple):
    """The request and the responses of a route."""

    tag: str
    summary: str
    answers: Mapping[int, Any] = {200: None}
    """The type of the JSON by status."""
    body: Any = None
    query: type[Struct] | None = None
    headers: Mapping[str, str] = {}
    errors: Sequence[int] = ()
    media: str = JSON
    """The media type of the response 200."""
    streams: str | None = None
    """The component of each event, if the response 200 can be a stream."""

    @property
    def is_of_one_run(self) -> bool:
        """Whether its responses have the header `Andon-Run-Id`."""
        kinds = (RunOutput, CancelAnswer, CancelCallAnswer, RollbackAnswer, Ticket, list[SessionEvent])
        return self.streams not in (None, BOARD) or any(kind in kinds for kind in self.answers.values())


_UNIONS: Mapping[str, tuple[str, Any]] = {
    EVENT: ("One event of a run.", EVENTS),
    BOARD: ("One message to a board.", Hello | Changes),
}
_STREAMED = {200: RunOutput, 202: RunStartedAnswer}
_KEY = {"Idempotency-Key": "A copy of the request with the same key gets the run that the first one started."}
_LAST = {"Last-Event-ID": "The id of the last event that was read; a browser's `EventSource` sends it."}
_FOUND = (404,)
_SESSION = (404, 501)

OPERATIONS: dict[str, Operation] = {
    "list_agents": Operation("agents", "The agents", {200: list[AgentSummary]}),
    "get_agent": Operation("agents", "An agent and its tools", {200: AgentDetail}, errors=_FOUND),
    "list_apps": Operation("agents", "The ids of the agents", {200: list[str]}),
    "config": Operation("agents", "What is served, as AgentOS's clients ask for it", {200: ServerConfig}),
    "version": Operation("agents", "The server's version", {200: ServerVersion}),
    "health": Operation("operations", "Is the process there?", {200: ServerStatus}),
    "ready": Operation("operations", "Does it take runs?", {200: ServerStatus}),
    "get_metrics": Operation("operations", "Figures for Prometheus", {200: str}, media=TEXT),
    "list_blocks": Operation("operations", "Who is blocked", {200: list[Block]}),
    "unblock": Operation("operations", "Take runs again", {200: UnblockAnswer}, Unblock, errors=_BODY),
    "list_workers": Operation("operations", "Worker processes and queues", {200: Overview}),
    "drain_worker": Operation("operations", "Stop a worker process", {200: DrainAnswer}, errors=_FOUND),
    "list_cancels": Operation(
        "operations", "Who cancelled what", {200: list[CancelLine]}, query=CancelLogQuery, errors=(422,)
    ),
    "cancel_many": Operation(
        "operations", "Cancel many runs", {200: CancelManyAnswer}, CancelMany, CancelMany, errors=(*_BODY, 404)
    ),
    "list_runs": Operation("runs", "Runs of all agents", {200: list[RunLine]}, query=AnyRunFilter, errors=(422,)),
    "list_runs_of": Operation("runs", "Runs of an agent", {200: list[RunLine]}, query=RunFilter, errors=(404, 422)),
    "start_run": Operation(
        "runs", "Start a run", _STREAMED, Start, headers=_KEY, errors=(*_BODY, 404, 409, 410, 429), streams=EVENT
    ),
    "get_run": Operation("runs", "A run's state, and its result", {200: RunOutput}, errors=_FOUND),
    "read_events": Operation(
        "runs",
        "A run's events",
        {200: None, 204: None},
        query=EventsQuery,
        headers=_LAST,
        errors=(400, 404, 410, 422),
        media=SSE,
        streams=EVENT,
    ),
    "resume": Operation(
        "runs",
        "A run's events, by the index of the last one",
        {200: None, 204: None},
        Resume,
        errors=(*_BODY, 404, 410),
        media=SSE,
        streams=EVENT,
    ),
    "get_ticket": Operation(
        "runs", "A ticket for a browser's EventSource", {200: Ticket}, TicketRequest, errors=(*_BODY, 404)
    ),
    "cancel_run": Operation(
        "runs",
        "Cancel a run",
        {200: CancelAnswer, 202: CancelAnswer},
        Cancel,
        Cancel,
        errors=(*_BODY, 404, 409),
    ),
    "continue_run": Operation(
        "runs",
        "Answer a run that has asked, or go on after a cut",
        _STREAMED,
        Continue,
        headers=_KEY,
        errors=(*_BODY, 404, 409, 410, 429),
        streams=EVENT,
    ),
    "roll_back_run": Operation("runs", "Take a run back out of its session", {200: RollbackAnswer}, errors=(404, 409)),
    "cancel_call": Operation(
        "runs", "Cancel one tool call", {200: CancelCallAnswer}, CancelCall, errors=(*_BODY, 404, 409)
    ),
    "board_events": Operation("board", "Lines of all runs, as they change", {200: None}, media=SSE, streams=BOARD),
    "board_run": Operation("board", "A run and the runs inside it", {200: Tree}, errors=_FOUND),
    "board_history": Operation("board", "Counts of the last hours", {200: Plots}, query=HistoryQuery, errors=(422,)),
    "get_conversation": Operation(
        "conversations", "What was said in a session", {200: StoredSession}, query=Whose, errors=(*_BODY, 404)
    ),
    "replace_conversation": Operation(
        "conversations",
        "Put other messages into a session",
        {200: StoredSession},
        Replace,
        Whose,
        errors=(*_BODY, 404, 409, 429),
    ),
    "fork_conversation": Operation(
        "conversations",
        "A session that begins like this one",
        {201: StoredSession},
        Fork,
        Whose,
        errors=(*_BODY, 404, 409, 429),
    ),
    "delete_conversation": Operation(
        "conversations", "Forget a session", {204: None}, Whose, Whose, errors=(*_BODY, 404, 409)
    ),
    "run_whole": Operation(
        "sessions", "Run to the end", {200: list[SessionEvent]}, Invoke, errors=(*_BODY, *_SESSION, 409, 429)
    ),
    "run_streaming": Operation(
        "sessions",
        "Run, and stream",
        {200: None},
        Invoke,
        errors=(*_BODY, *_SESSION, 409, 429),
        media=SSE,
        streams=SessionEvent.__name__,
    ),
    "create_session": Operation(
        "sessions", "Make a session", {200: Session}, Create, errors=(*_BODY, *_SESSION, 409, 429)
    ),
    "create_session_with_id": Operation(
        "sessions", "Make a session with this id", {200: Session}, Json, errors=(*_BODY, *_SESSION, 409, 429)
    ),
    "list_sessions": Operation(
        "sessions", "The sessions of a user", {200: list[Session]}, query=Page, errors=(*_SESSION, 422)
    ),
    "get_session": Operation("sessions", "A session and its events", {200: Session}, errors=_SESSION),
    "update_session": Operation(
        "sessions", "Change a session's state", {200: Session}, Update, errors=(*_BODY, *_SESSION)
    ),
    "delete_session": Operation("sessions", "Cancel and forget", {200: None}, errors=(*_SESSION, 409)),
    "cancel_session": Operation(
        "sessions",
        "Cancel what runs in a session",
        {200: CancelSessionAnswer},
        Cancel,
        Cancel,
        errors=(*_BODY, *_SESSION),
    ),
}


def describe(make: Callable[[], Json], schemes: Mapping[str, Mapping[str, Any]] | None) -> Json:
    """FastAPI's document, completed. `schemes` are the security schemes; None if the server is open to all."""
    document = make()
    if "tags" in document:  # FastAPI caches the document
        return document
    schemas = SchemaBuilder()
    for path, methods in document["paths"].items():
        for operation in methods.values():
            known = OPERATIONS.get(operation["operationId"], Operation("runs", operation["summary"]))
            _complete(operation, known, schemas, guarded=schemes is not None and path not in OPEN)
    document["tags"] = [{"name": name, "description": about} for name, about in TAGS.items()]
    document["components"] = {"schemas": schemas.components}
    if schemes is not None:
        document["components"]["securitySchemes"] = {**schemes, **TICKET}
        document["security"] = [{name: []} for name in schemes]
        for path in OPEN:
            document["paths"][path]["get"]["security"] = []
        events = next(each for each in _operations(document) if each["operationId"] == "read_events")
        events["security"] = [*document["security"], {name: [] for name in TICKET}]
    return document


def _operations(document: Json) -> Iterator[Json]:
    for methods in document["paths"].values():
        yield from methods.values()


def _complete(operation: Json, known: Operation, schemas: SchemaBuilder, *, guarded: bool) -> None:
    operation["tags"], operation["summary"] = [known.tag], known.summary
    operation["responses"] = {
        str(status): _answer(known, status, kind, schemas) for status, kind in known.answers.items()
    }
    errors = {*known.errors, *_EVERYWHERE, *((401,) if guarded else ())}
    operation["responses"] |= {str(status): _error(status, schemas) for status in sorted(errors)}
    parameters = [*operation.get("parameters", ())]
    if known.query is not None:
        parameters += schemas.parameters(known.query)
    for name, about in known.headers.items():
        parameters.append({"name": name, "in": "header", "description": about, "schema": {"type": "string"}})
    if parameters:
        operation["parameters"] = parameters
    if known.body is not None:
        operation["requestBody"] = schemas.body(known.body)


def _answer(known: Operation, status: int, kind: Any, schemas: SchemaBuilder) -> Json:
    meanings = {201: "Created", 202: "Accepted", 204: "Done" if known.streams is None else "No more events"}
    answer: Json = {"description": meanings.get(status, "OK")}
    content: Json = {}
    if status != 204 and not (status == 200 and known.media == SSE):
        content[known.media if status == 200 else JSON] = {"schema": schemas.of(kind)}
    if status == 200 and known.streams is not None:
        content[SSE] = schemas.stream(known.streams)
    if content:
        answer["content"] = content
    headers = {}
    if known.is_of_one_run:
        headers[RUN_ID] = _header("The run's id, percent-encoded.")
    if status == 202:
        headers["Location"] = _header("Where the run's state is found.")
    if status == 200 and known.query is not None and issubclass(known.query, Page):
        headers["Link"] = _header('The address of the next page, if there is one: `<…>; rel="next"`.')
    return {**answer, "headers": headers} if headers else answer


def _error(status: int, schemas: SchemaBuilder) -> Json:
    answer: Json = {"description": ERRORS[status], "content": {JSON: {"schema": schemas.of(ProblemDetail)}}}
    if status in (429, 503):
        answer["headers"] = {"Retry-After": _header("After how many seconds to try again.")}
    if status == 401:
        answer["headers"] = {"WWW-Authenticate": _header("How to authenticate.")}
    return answer


def _header(about: str) -> Json:
    return {"description": about, "schema": {"type": "string"}}


class SchemaBuilder:
    """Makes JSON schemas of types. Structs and enums become components, which other schemas refer to."""

    def __init__(self) -> None:
        self.components: Json = {}

    def of(self, kind: Any) -> Json:
        if kind is None:
            return {"type": "null"}
        (schema,), components = msgspec.json.schema_components([kind], ref_template="#/components/schemas/{name}")
        self.components |= _with_items(components)
        plain: Json = _with_items(schema)
        return plain

    def stream(self, name: str) -> Json:
        """A stream of events: as text, or event by event for clients that read it so."""
        if name in _UNIONS:
            about, kind = _UNIONS[name]
            self.components[name] = {"title": name, "description": about, **self.of(kind)}
        else:
            self.of(SessionEvent)
        data = {"type": "string", "contentMediaType": JSON, "contentSchema": {"$ref": f"#/components/schemas/{name}"}}
        self.components[f"{name}Frame"] = {
            "title": f"{name}Frame",
            "description": f"One server-sent event. Its data is a {name}, as one line of JSON.",
            "type": "object",
            "properties": {"id": {"type": "string"}, "event": {"type": "string"}, "data": data},
            "required": ["data"],
        }
        text = {"type": "string", "description": "All of the events, as they are sent."}
        return {"schema": {"anyOf": [text, {"$ref": f"#/components/schemas/{name}Frame"}]}}

    def parameters(self, kind: type[Struct]) -> Iterator[Json]:
        """The fields of the struct as query parameters."""
        for name, schema in _schema_of(kind)["properties"].items():
            yield {"name": name, "in": "query", "required": False, "schema": schema}

    def body(self, kind: Any) -> Json:
        """JSON, or a form. Each has its own component, because generated clients tell bodies apart by their types."""
        if kind in JSON_ALONE:
            return {"content": {JSON: {"schema": self.of(kind)}}, "required": kind is not Json}
        self.of(kind)
        content = {JSON: {"schema": {"$ref": f"#/components/schemas/{kind.__name__}"}}}
        for media, suffix in FORMS.items():
            name = f"{kind.__name__}{suffix}"
            self.components[name] = {**_schema_of(kind), "title": name}
            content[media] = {"schema": {"$ref": f"#/components/schemas/{name}"}}
        return {"content": content, "required": bool(_schema_of(kind).get("required"))}


def _schema_of(kind: type[Struct]) -> Json:
    """The schema of a struct whose fields are no structs."""
    found: Json = _with_items(msgspec.json.schema(kind)["$defs"][kind.__name__])
    return found


def _with_items(schema: Any) -> Any:
    """Add `items` to arrays of any type: some client generators need it."""
    if isinstance(schema, list):
        return [_with_items(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    spelled = {name: _with_items(value) for name, value in schema.items()}
    return {"items": {}, **spelled} if spelled.get("type") == "array" else spelled

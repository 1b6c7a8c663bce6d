# SPDX-License-Identifier: Apache-2.0
"""Runs and messages in ADK's format: a run is an invocation, a message an event, a piece of a message a partial event.

Whole events are made from messages, both during a run and when its session is read later, so their ids are the same in
both. What must stay true: an aborted invocation ends with an event of code `INVOCATION_ABORTED`, and no event has a key
`error`, because ADK's client raises on one.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, Protocol

from msgspec import Struct
from starlette.requests import HTTPConnection

from andon.core.events import Event, RunEvent
from andon.core.records import RunRecord, SessionRecord
from andon.core.states import CancelCause, RunStatus
from andon.messages import Block, Media, Message, Reasoning, Text, ToolCall, ToolResult, Usage
from andon.server.body import convert_fields, read_json
from andon.server.ignored_fields import ADK_LIVE, ADK_LIVE_MESSAGE, ADK_RUN
from andon.server.problems import Problem
from andon.server.prompts import read_parts
from andon.server.responses import to_json
from andon.server.sse import escape_line_separators

ABORTED = "INVOCATION_ABORTED"
FAILED = "INVOCATION_FAILED"
REFUSED = "INVOCATION_REFUSED"
METADATA = "customMetadata"
"""The key in the metadata of a run whose value is put on each of its ADK events."""

AdkJson = dict[str, Any]
"""An object in ADK's JSON."""


class Invocation(Struct, frozen=True):
    """A run in ADK's terms. Makes the run's events."""

    run_id: str
    agent_id: str
    metadata: dict[str, Any]

    def event(self, number: int | str, at: float, message: Message | None = None, **facts: Any) -> AdkJson:
        shape: AdkJson = {
            "id": f"{self.run_id}-{number}",
            "invocationId": self.run_id,
            "author": "user" if message is not None and message.role == "user" else self.agent_id,
            "timestamp": at,
            "actions": {
                "stateDelta": {},
                "artifactDelta": {},
                "requestedAuthConfigs": {},
                "requestedToolConfirmations": {},
            },
        }
        if message is not None:
            role = "model" if message.role == "assistant" else "user"
            shape["content"] = {"role": role, "parts": [_part(block) for block in message.content]}
        if custom := self.metadata.get(METADATA):
            shape["customMetadata"] = custom
        return shape | facts

    def whole(
        self, messages: Sequence[Message], at: float, end: Event | RunRecord | None, first: int = 0
    ) -> list[AdkJson]:
        """The messages from number `first` on, and a last event if the run was cancelled or failed."""
        last: AdkJson | None = None
        if end is not None and end.status in _CODES:
            messages, marker = _without_marker(messages)
            last = self.event("end", at, **_failure(end, marker))
        shapes = [self.event(number, at, message) for number, message in enumerate(messages[first:], first)]
        if last is not None:
            shapes.append(last)
        if end is not None and end.usage is not None and shapes:
            shapes[-1] |= _usage(end.usage)
        return shapes


_CODES = {RunStatus.cancelled: ABORTED, RunStatus.error: FAILED}


def _without_marker(messages: Sequence[Message]) -> tuple[Sequence[Message], str]:
    """The messages without the cancel marker, and the marker: it goes into the last event."""
    if not messages:  # the run could not be settled
        return [], ""
    *before, last = messages
    *said, marker = last.content
    assert isinstance(marker, Text)
    return [*before, Message(last.role, said)] if said else before, marker.text


def _failure(end: Event | RunRecord, marker: str) -> AdkJson:
    assert end.status is not None
    shape: AdkJson = {"errorCode": _CODES[end.status], "errorMessage": end.error or marker}
    if end.receipt is not None and end.receipt.cause is CancelCause.superseded:
        shape["interrupted"] = True
    return shape


def _part(block: Block) -> AdkJson:
    if isinstance(block, Text):
        return {"text": block.text}
    if isinstance(block, Reasoning):
        return {"text": block.text, "thought": True}
    if isinstance(block, ToolCall):
        return {"functionCall": {"id": block.id, "name": block.name, "args": block.arguments}}
    if isinstance(block, Media):
        return _media(block)
    response = {"result" if block.status == "ok" else "error": block.content}
    return {"functionResponse": {"id": block.call_id, "name": block.name, "response": response}}


def _media(media: Media) -> AdkJson:
    if media.url is not None:
        return {"fileData": {"fileUri": media.url, "mimeType": media.media_type or None}}
    return {"inlineData": {"mimeType": media.media_type, "data": base64.b64encode(media.data).decode()}}


def _usage(usage: Usage) -> AdkJson:
    counts = {
        "promptTokenCount": usage.input_tokens,
        "candidatesTokenCount": usage.output_tokens,
        "totalTokenCount": usage.total_tokens,
    }
    known = {name: count for name, count in counts.items() if count is not None}
    return {"usageMetadata": known} if known else {}


class RunWithMessages(Protocol):
    """A run whose events are written, in this process or in another one."""

    @property
    def run_id(self) -> str: ...
    @property
    def agent_id(self) -> str: ...
    @property
    def metadata(self) -> dict[str, Any]: ...
    @property
    def own_messages(self) -> Sequence[Message]:
        """What it has added to its session so far."""
        ...


class AdkEventWriter:
    """Writes the events of a run as ADK events, as they come; `streaming` adds partial events.

    The tool events of a turn produce its calls and results. The end of the run produces the rest.
    """

    __slots__ = ("_answers", "_calls", "_invocation", "_next", "_run", "_streaming")

    def __init__(self, run: RunWithMessages, *, streaming: bool) -> None:
        self._run, self._streaming = run, streaming
        self._invocation = Invocation(run.run_id, run.agent_id, run.metadata)
        self._next = 1  # 0 is the prompt, which the client knows
        self._calls: list[ToolCall] = []
        self._answers: dict[str, ToolResult] = {}

    def write(self, event: Event) -> list[AdkJson]:
        """The ADK events for this event: often none. Events of sub-agents are not part of the invocation."""
        if event.run_id != self._run.run_id:
            return []
        if event.event in (RunEvent.run_content, RunEvent.reasoning):
            return [self._piece(event)] if self._streaming else []
        if event.event in (RunEvent.tool_call_started, RunEvent.tool_call_completed, RunEvent.tool_call_error):
            return self._tool(event)
        if event.event is RunEvent.run_paused:
            return [self._question(event)]
        if event.event.terminal:
            return self._invocation.whole(self._run.own_messages, event.created_at, event, self._next)
        return []

    def _piece(self, event: Event) -> AdkJson:
        part: Block = Text(event.content) if event.event is RunEvent.run_content else Reasoning(event.content)
        return self._invocation.event(self._next, event.created_at, Message("assistant", [part]), partial=True)

    def _question(self, event: Event) -> AdkJson:
        """The calls that wait for a person. If none has begun, this event also has the turn's message."""
        waiting = list(dict.fromkeys(each.call_id for each in event.interrupts or ()))
        told, number = None, f"asks-{event.seq}"
        if not self._calls:
            told, number = self._run.own_messages[self._next], str(self._next)
            self._calls, self._next = told.tool_calls, self._next + 1
        return self._invocation.event(number, event.created_at, told, longRunningToolIds=waiting)

    def _tool(self, event: Event) -> list[AdkJson]:
        view = event.tool
        told: list[Message] = []
        assert view is not None
        if all(call.id != view.call_id for call in self._calls):
            told = list(self._run.own_messages[self._next : self._next + 1])
            calls = told[0].tool_calls if told else []
            if all(call.id != view.call_id for call in calls):  # the run could not be settled
                return []
            self._calls = calls
        if event.event is not RunEvent.tool_call_started:
            status: Literal["ok", "error"] = "ok" if event.event is RunEvent.tool_call_completed else "error"
            self._answers[view.call_id] = ToolResult(view.call_id, view.name, view.result or "", status)
        if len(self._answers) == len(self._calls):
            told.append(Message("tool", [self._answers[call.id] for call in self._calls]))
            self._calls, self._answers = [], {}
        first, self._next = self._next, self._next + len(told)
        return [self._invocation.event(first + n, event.created_at, message) for n, message in enumerate(told)]

    def frames(self, events: Sequence[Event]) -> bytes:
        """A batch of events as server-sent events. ADK's have a `data` field only."""
        shapes = [shape for event in events for shape in self.write(event)]
        return escape_line_separators(b"".join([b"data: %b\n\n" % to_json(shape) for shape in shapes]))


def session_shape(record: SessionRecord, events: Sequence[AdkJson] = ()) -> AdkJson:
    """A session. ADK's client refuses one with other keys."""
    key = record.key
    return {
        "id": key.session_id,
        "appName": key.agent_id,
        "userId": key.user_id,
        "state": record.state,
        "events": events,
        "lastUpdateTime": record.updated_at,
    }


def parts_of(content: dict[str, Any]) -> list[str | Media]:
    """The parts of a message. Parts of other kinds are refused, not dropped."""
    parts = content.get("parts")
    if content.get("role") not in (None, "user") or not isinstance(parts, list):
        raise Problem(422, 'a message is {"role": "user", "parts": [{"text": "..."}]}')
    return read_parts(parts)


class Invoke(Struct):
    """The body of a request to run an agent."""

    ignored_fields: ClassVar = ADK_RUN
    user_id: str
    session_id: str
    new_message: dict[str, Any]
    app_name: str | None = None
    streaming: bool = False
    state_delta: dict[str, Any] = {}
    custom_metadata: dict[str, Any] = {}
    invocation_id: str | None = None
    function_call_event_id: str | None = None


class Create(Struct):
    """The body of a request to create a session."""

    session_id: str | None = None
    state: dict[str, Any] = {}
    events: list[Any] = []


class Update(Struct):
    """The body of a request to change the state of a session."""

    state_delta: dict[str, Any]


class LiveQuery(Struct):
    """The query of a live connection."""

    ignored_fields: ClassVar = ADK_LIVE
    user_id: str
    session_id: str
    app_name: str | None = None


def read_live_query(connection: HTTPConnection) -> LiveQuery | Problem:
    """The query, or the problem with it."""
    try:
        return convert_fields(
            connection, {name: value for name, value in connection.query_params.items() if value}, LiveQuery
        )
    except Problem as problem:
        return problem


class LiveMessage(Struct):
    """One message of a live connection."""

    ignored_fields: ClassVar = ADK_LIVE_MESSAGE
    content: dict[str, Any] | None = None
    blob: Any = None
    close: bool = False
    partial: bool = False
    state_delta: dict[str, Any] = {}


def too_large(limit: int) -> Problem:
    return Problem(413, f"the message is larger than {limit:,} characters")


def read_live_message(connection: HTTPConnection, text: str | None, limit: int) -> LiveMessage:
    if text is None:
        raise Problem(415, "only text is taken here: send JSON in text frames")
    if len(text) > limit:
        raise too_large(limit)
    fields = read_json(text.encode(errors="replace"), "the message", 422)
    said = convert_fields(connection, to_snake_case(fields), LiveMessage)
    if said.blob is not None:
        raise Problem(415, "blobs are not taken: send content with text parts")
    return said


def to_snake_case(fields: Any, kind: type[Struct] = LiveMessage) -> dict[str, Any]:
    """The fields with camelCase names of this struct in snake_case. Unknown names stay as they are."""
    if not isinstance(fields, dict):
        raise Problem(422, "the message must be a JSON object")
    ignored_fields: frozenset[str] = getattr(kind, "ignored_fields", frozenset())
    names: tuple[str, ...] = (*kind.__struct_fields__, *ignored_fields)
    known = {camel_case(name): name for name in names}
    given: dict[str, Any] = fields
    return {known.get(name, name): value for name, value in given.items()}


def camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))

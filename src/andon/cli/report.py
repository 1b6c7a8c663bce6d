# SPDX-License-Identifier: Apache-2.0
"""What commands know about a run, from any source. As JSON, these are the keys that scripts may rely on.

`andon run` has the run itself, a server sends JSON, a database has records: all are converted to these types.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from andon.core.events import Event, RunEvent
from andon.core.log_text import escaped_json
from andon.core.receipt import Interrupt, Receipt, RunResult
from andon.core.records import RunRecord
from andon.core.states import CancelOutcome, FinishReason, Phase, RunStatus, StopReason
from andon.errors import describe
from andon.messages import Usage


class RunLine(Struct, frozen=True):
    """A run, as `andon ps` lists it."""

    run_id: str
    agent_id: str
    session_id: str
    user_id: str | None
    status: RunStatus
    created_at: float
    phase: Phase | None = None
    """What it is doing; None from a database."""
    held_by: str | None = None
    """The worker process, or the process of a server, that executes it."""

    @classmethod
    def of(cls, record: RunRecord, held_by: str | None = None) -> RunLine:
        agent_id, user_id, session_id = record.session
        return cls(record.run_id, agent_id, session_id, user_id, record.status, record.created_at, None, held_by)


class Report(Struct, frozen=True, kw_only=True):
    """The state of a run, or its result once it has ended."""

    run_id: str
    agent_id: str
    session_id: str
    status: RunStatus
    stop_reason: StopReason | None = None
    finish_reason: FinishReason | None = None
    content: str = ""
    usage: Usage | None = None
    interrupts: list[Interrupt] = []
    receipt: Receipt | None = None
    error: str | None = None
    warnings: list[str] = []

    @classmethod
    def of_result(cls, result: RunResult) -> Report:
        shared = {name: getattr(result, name) for name in cls.__struct_fields__}
        return cls(**shared | {"error": None if result.error is None else describe(result.error)})

    @classmethod
    def of_record(cls, record: RunRecord) -> Report:
        shared = {name: getattr(record, name) for name in cls.__struct_fields__ if hasattr(record, name)}
        return cls(**shared, agent_id=record.session.agent_id, session_id=record.session.session_id)

    @classmethod
    def of_event(cls, event: Event) -> Report:
        """The state in the last event of a run, or in the event of its pause."""
        return cls(
            run_id=event.run_id,
            agent_id=event.agent_id,
            session_id=event.session_id,
            status=event.status or RunStatus.paused,
            content=event.content,
            usage=event.usage,
            interrupts=event.interrupts or [],
            receipt=event.receipt,
            error=event.error,
            finish_reason=event.finish_reason,
        )


class Cancelled(Struct, frozen=True):
    """The result of a cancel."""

    run_id: str
    outcome: CancelOutcome
    status: RunStatus | None = None
    receipt: Receipt | None = None


def to_json(value: Any) -> str:
    """JSON in one line: lone surrogates are escaped, objects that JSON does not know become their `str`."""
    plain = msgspec.to_builtins(value, enc_hook=str)
    try:
        return escaped_json(msgspec.json.encode(plain).decode())
    except UnicodeEncodeError:
        return json.dumps(plain)


def event_of(wire: Mapping[str, Any]) -> Event | None:
    """An event from the JSON of a server; None for a kind that this version does not know."""
    fields: dict[str, Any] = {name: wire[name] for name in Event.__struct_fields__ if wire.get(name) is not None}
    if (tool := fields.pop("tool", None)) is not None:
        names = {"call_id": "tool_call_id", "name": "tool_name", "arguments": "tool_args"}
        names |= {"result": "result", "outcome": "outcome"}
        fields["tool"] = {name: tool.get(theirs) for name, theirs in names.items()}
    if fields.get("event") == RunEvent.run_error:
        fields["content"] = ""  # the server repeats the error there
    try:
        return msgspec.convert(fields, Event)
    except msgspec.ValidationError:
        return None

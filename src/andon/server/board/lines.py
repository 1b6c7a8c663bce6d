# SPDX-License-Identifier: Apache-2.0
"""What a board shows of a run: one line, made of the run's events.

An `Activity` reads the events of a run, and knows what the run is doing. The events come from the journal of this
process or from a shared store; the line is the same. The words in a line are for people, and are plain text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct

from andon.core.event_log import TextSpan
from andon.core.events import Event, RunEvent
from andon.core.receipt import Interrupt, Receipt
from andon.core.records import RunRecord, SessionKey
from andon.core.shared.overview import StoredRun
from andon.core.states import CancelCause, Phase, RunStatus, ToolOutcome
from andon.messages import CHARACTERS_PER_TOKEN, Usage
from andon.server.board.words import describe_end

MOST_CALLS = 8
"""The most calls that a line shows: of those at work, and of those that a cancel cut."""

LONGEST = 500
"""The most characters of a reason or an error."""

Key = tuple[str, str]
"""The agent's id and the run's: on two runtimes two runs may have the same id."""


class ShownCall(Struct, gc=False, omit_defaults=True):
    """A tool call that is at work."""

    call_id: str
    name: str
    since: float


class ShownQuestion(Struct, gc=False):
    id: str
    name: str


class FoundCall(Struct, gc=False):
    """A tool call that a cancel cut, and how it ended."""

    name: str
    outcome: ToolOutcome


class Line(Struct, omit_defaults=True):
    """One run on a board."""

    run_id: str
    agent_id: str
    session_id: str
    status: RunStatus
    created_at: float
    user_id: str | None = None
    parent_run_id: str | None = None
    continues: str | None = None
    server: str | None = None
    """The process that holds it."""
    doing: str = ""
    since: float | None = None
    """When it began to do that."""
    seq: int = 0
    """The number of its last event."""
    tokens: int | None = None
    """The tokens that the model has written; while the run goes on, an estimate."""
    estimated: bool = False
    calls: list[ShownCall] = []
    asks: list[ShownQuestion] = []
    ended_at: float | None = None
    ending: str = ""
    """How it ended, in words."""
    cause: CancelCause | None = None
    reason: str | None = None
    by: str | None = None
    latency: float | None = None
    cut: list[FoundCall] = []
    leftovers: list[str] = []
    error: str | None = None

    @property
    def key(self) -> Key:
        return self.agent_id, self.run_id


class RunHead(Struct, frozen=True):
    """What does not change in a run."""

    run_id: str
    session: SessionKey
    created_at: float
    parent_run_id: str | None = None
    continues: str | None = None


_ENDS_CALL = frozenset({RunEvent.tool_call_completed, RunEvent.tool_call_error, RunEvent.tool_call_cancelled})
_TEXT = frozenset({RunEvent.run_content, RunEvent.reasoning})
_BACK_AT_WORK = frozenset({RunEvent.run_started, RunEvent.run_continued})

_CUT = frozenset({ToolOutcome.cut, ToolOutcome.abandoned, ToolOutcome.not_started, ToolOutcome.compensated})

_PHASES = {
    Phase.pending: "starting",
    Phase.queued: "waiting for the runs ahead in its session",
    Phase.loading: "reading the conversation",
    Phase.hook: "in a hook",
    Phase.waiting: "waiting for the first token",
    Phase.backoff: "waiting to try the model again",
}
_WAITING = _PHASES[Phase.waiting]


class Activity:
    """What a run does, from its events. Only the events that are new since the last time are taken."""

    __slots__ = ("_asks", "_calls", "_characters", "_kind", "_started", "seq")

    def __init__(self) -> None:
        self.seq = 0
        """The number of the last event that it has read."""
        self._calls: dict[str, ShownCall] = {}
        self._asks: Sequence[Interrupt] = ()
        self._kind: RunEvent | None = None
        """The kind of the last event that changed what the run is doing. `_started` has its time."""
        self._started = 0.0
        self._characters = 0

    def take(self, run_id: str, events: Iterable[Event | TextSpan]) -> None:
        for event in events:
            self.seq = event.seq
            if event.run_id != run_id:  # relayed from a sub-agent
                continue
            if isinstance(event, TextSpan):
                self._take_text(event.event, event.characters, event.created_at)
            elif event.event in _TEXT:
                self._take_text(event.event, len(event.content), event.created_at)
            elif self._take(event):
                self._kind, self._started = event.event, event.created_at

    def _take_text(self, kind: RunEvent, characters: int, at: float) -> None:
        self._characters += characters
        if kind is not self._kind:
            self._kind, self._started = kind, at

    def _take(self, event: Event) -> bool:
        """True if the run is doing something else from now on."""
        kind, tool = event.event, event.tool
        if kind is RunEvent.tool_call_started and tool is not None:
            self._calls[tool.call_id] = ShownCall(tool.call_id, tool.name, event.created_at)
        elif kind in _ENDS_CALL and tool is not None:
            self._calls.pop(tool.call_id, None)
        elif kind is RunEvent.run_paused:
            self._asks = event.interrupts or ()
        elif kind in _BACK_AT_WORK:
            self._asks = ()
        else:
            return kind is RunEvent.model_retry or kind is RunEvent.cancel_requested
        return True

    @property
    def calls(self) -> list[ShownCall]:
        return list(self._calls.values())[:MOST_CALLS]

    @property
    def asks(self) -> Sequence[Interrupt]:
        return self._asks

    @property
    def tokens(self) -> int:
        """An estimate, as for a run that was cut."""
        return -(-self._characters // CHARACTERS_PER_TOKEN)

    def since(self, created_at: float) -> float:
        if self._calls:
            return min(call.since for call in self._calls.values())
        return self._started or created_at

    def describe(self, status: RunStatus, phase: Phase | None = None) -> str:
        """What it does, in words. The phase is known for runs of this process."""
        calls = ", ".join(dict.fromkeys(call.name for call in self._calls.values()))
        if status is RunStatus.cancelling:
            return f"stopping; still in {calls}" if calls else "stopping"
        if status is RunStatus.paused:
            return f"asks a person: {', '.join(dict.fromkeys(each.name for each in self._asks))}"
        if calls:
            return f"in {calls}"
        if status is RunStatus.pending:
            return _PHASES[Phase.queued if phase is Phase.queued else Phase.pending]
        if phase in _PHASES:
            return _PHASES[phase]
        if self._kind is RunEvent.run_content:
            return "writing"
        if self._kind is RunEvent.reasoning:
            return "thinking"
        return _PHASES[Phase.backoff] if self._kind is RunEvent.model_retry else _WAITING


def live_line(
    head: RunHead,
    status: RunStatus,
    activity: Activity,
    server: str | None,
    phase: Phase | None = None,
    asks: Sequence[Interrupt] | None = None,
) -> Line:
    """The line of a run that has not ended."""
    agent_id, user_id, session_id = head.session
    queued = status is RunStatus.pending and server is None  # for a worker, or behind the runs ahead in its session
    return Line(
        head.run_id,
        agent_id,
        session_id,
        status,
        head.created_at,
        user_id,
        head.parent_run_id,
        head.continues,
        server,
        "waiting for its turn" if queued else activity.describe(status, phase),
        activity.since(head.created_at),
        activity.seq,
        activity.tokens,
        estimated=True,
        calls=activity.calls,
        asks=[ShownQuestion(each.id, each.name) for each in (activity.asks if asks is None else asks)],
    )


def ended_line(stored: StoredRun, server: str | None = None) -> Line:
    """The line of a run that has ended, from its record."""
    record = stored.record
    agent_id, user_id, session_id = record.session
    line = Line(record.run_id, agent_id, session_id, record.status, record.created_at, user_id, server=server)
    line.parent_run_id, line.continues = record.parent_run_id, record.continues
    line.ended_at = stored.ended_at
    _add_end(line, record.usage, record.receipt, record.error)
    return line


def _add_end(line: Line, usage: Usage | None, receipt: Receipt | None, error: str | None) -> None:
    if usage is not None:
        line.tokens, line.estimated = usage.output_tokens, usage.estimated
    line.error = _short(error)
    line.ending = _short(describe_end(line.status, receipt, error)) or ""
    if receipt is not None:
        line.cause, line.reason, line.by = receipt.cause, _short(receipt.reason), _short(receipt.by)
        line.latency = receipt.latency
        cut = [FoundCall(each.name, each.outcome) for each in receipt.tools if each.outcome in _CUT]
        line.cut = cut[:MOST_CALLS]
        line.leftovers = receipt.leftovers[:MOST_CALLS]


def _short(text: Any) -> str | None:
    return None if text is None else text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def head_of(record: RunRecord) -> RunHead:
    return RunHead(record.run_id, record.session, record.created_at, record.parent_run_id, record.continues)

# SPDX-License-Identifier: Apache-2.0
"""The events of a run as rows of `andon_events`: a batch of them is one row, in which a token costs few bytes.

A row has the number of its last event, and the events in it are numbered without a gap. Which run, session and agent
they belong to is in `andon_runs`: only an event that was relayed from another run says so here. Pieces of text that
follow each other are one stretch: the time of the first one, the texts, and the milliseconds from each to the next, a
letter each (`0` to `9`, `A` to `Z`, `a` to `z`; numbers if one of them is larger than 61); then, unless it is the run's
own `RunContent`, of which kind and which run it is. This is a row of four events:

    [{"event":"RunStarted","created_at":1754000000.1234},[1754000000.2468,["Once ","upon ","a "],"Cb"]]

Events that were written again, because the answer was lost, may be in two rows. A run only ever gets more events. So
the later row ends with the same event, and is not added, or with a later one: readers skip the events that they have.

What must stay true: reading gives the events that were written, each once. Only the time of a piece of text that is not
the first of its stretch may be up to a millisecond earlier, never later, so that times don't go backwards.
"""

from __future__ import annotations

import string
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec.structs import astuple

from andon.core.events import Event, RunEvent
from andon.errors import show
from andon.store.sql.codec import clean, dump

EVENTS_IN_A_ROW = 1_000
"""At most. To read one event, its whole row is read."""

_CONTENT, _REASONING = RunEvent.run_content, RunEvent.reasoning
_IDS = ("run_id", "session_id", "agent_id")
_FACTS = Event.__struct_fields__.index("content") + 1
"""Where those fields of an event begin that a piece of text leaves empty."""
_NO_FACTS = (None,) * (len(Event.__struct_fields__) - _FACTS)


class _Stretch(msgspec.Struct, array_like=True, gc=False):
    """Pieces of text that follow each other."""

    first: float
    texts: list[str]
    gaps: str | list[int]
    """In milliseconds, from each to the next."""
    kind: RunEvent = _CONTENT
    run_id: str | None = None
    session_id: str = ""
    agent_id: str = ""
    """Of the run that they were relayed from."""


_LETTERS = string.digits + string.ascii_uppercase + string.ascii_lowercase
_VALUES = {letter: value for value, letter in enumerate(_LETTERS)}
_read = msgspec.json.Decoder(list[_Stretch | dict[str, Any]]).decode


# -- writing ----------------------------------------------------------------------------------------------------------


def write_rows(run_id: str, events: Sequence[Event]) -> list[tuple[int, str]]:
    """Events from the journal of this run, as rows: the number of the last event of each, and its text."""
    return [(part[-1].seq, dump(_pieces(run_id, part))) for part in _parts(events)]


def _parts(events: Sequence[Event]) -> Iterator[Sequence[Event]]:
    """Cut them where a number is missing, and where a row would become too long."""
    if len(events) <= EVENTS_IN_A_ROW and events and events[-1].seq - events[0].seq == len(events) - 1:
        yield events  # as nearly always
        return
    start = 0
    for end in range(1, len(events) + 1):
        if end == len(events) or end - start == EVENTS_IN_A_ROW or events[end].seq != events[end - 1].seq + 1:
            yield events[start:end]
            start = end


def _pieces(run_id: str, events: Sequence[Event]) -> list[Any]:
    """This is called for every token. A run has one session and one agent, so the run's id is enough to compare."""
    pieces: list[Any] = []
    texts: list[str] = []
    gaps: list[int] = []
    first, passed, kind, whose = 0.0, 0, None, None
    for event in events:
        told = event.event
        if (told is not _CONTENT and told is not _REASONING) or astuple(event)[_FACTS:] != _NO_FACTS:
            kind = None
            pieces.append(_alone(run_id, event))
        elif told is kind and event.run_id == whose:
            before, passed = passed, int((event.created_at - first) * 1000)
            texts.append(event.content)
            gaps.append(passed - before)
        else:
            kind, whose, first, passed = told, event.run_id, event.created_at, 0
            texts, gaps = [event.content], []
            pieces.append([first, texts, gaps, *_told_of(run_id, event)])  # the lists grow with the next events
    for piece in pieces:
        if type(piece) is list and piece[2] and min(piece[2]) >= 0 and max(piece[2]) < len(_LETTERS):
            piece[2] = "".join(map(_LETTERS.__getitem__, piece[2]))
    return pieces


def _told_of(run_id: str, event: Event) -> list[str]:
    if event.run_id != run_id:
        return [event.event, event.run_id, event.session_id, event.agent_id]
    return [] if event.event is _CONTENT else [event.event]


def _alone(run_id: str, event: Event) -> dict[str, Any]:
    try:
        told: dict[str, Any] = msgspec.to_builtins(event, enc_hook=show)
    except RecursionError:  # something without end
        told = msgspec.to_builtins(clean(event), enc_hook=show)
    del told["seq"]
    if event.run_id == run_id:
        for name in _IDS:
            del told[name]
    return told


# -- reading ----------------------------------------------------------------------------------------------------------


def read_row(last: int, batch: str, run_id: str, session_id: str, agent_id: str) -> list[Event]:
    """The events of a row, with the ids of the run that it is of."""
    pieces = _read(batch)
    seq = last - sum([len(piece.texts) if type(piece) is _Stretch else 1 for piece in pieces])
    events: list[Event] = []
    for piece in pieces:
        if isinstance(piece, dict):
            seq += 1
            own = {"run_id": run_id, "session_id": session_id, "agent_id": agent_id}
            events.append(msgspec.convert({**own, **piece, "seq": seq}, Event))
            continue
        kind, at, passed, ids = piece.kind, piece.first, 0, (run_id, session_id, agent_id)
        if piece.run_id is not None:
            ids = (piece.run_id, piece.session_id, piece.agent_id)
        gaps = piece.gaps if isinstance(piece.gaps, list) else map(_VALUES.__getitem__, piece.gaps)
        for text, gap in zip(piece.texts, [0, *gaps], strict=True):
            seq += 1
            passed += gap
            events.append(Event(kind, *ids, seq, at + passed / 1000, text))
    return events

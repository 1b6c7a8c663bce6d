# SPDX-License-Identifier: Apache-2.0
"""How much of a run its store has, and what is to be written next.

Events and messages are only ever added. So a number of events, and the size of the messages, say what is written.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from andon.core.event_log import EventLog
from andon.core.events import Event
from andon.core.shared.event_channel import TEXT
from andon.core.shared.store import Progress
from andon.messages import Message

EVENTS_AT_ONCE = 5_000
"""How many events of a run one transaction takes."""

TEXT_SECONDS, RELAYED_TEXT_SECONDS = 0.15, 2.0
"""How often text is written; and how often while readers get it through an event channel too."""


class News(NamedTuple):
    """What the store does not have yet."""

    events: list[Event]
    messages: list[Message] | None
    """All messages of the run so far. None if they have not changed."""


class Written:
    """What is written of one run. `news` and `note` are called on the worker's thread, beside the run."""

    __slots__ = ("_scanned", "_size", "_so_far", "_text_at", "events", "has_waiting_text", "log", "relayed")

    def __init__(self, log: EventLog, so_far: Callable[[], list[Message]]) -> None:
        self.log, self._so_far = log, so_far
        self.events = self.relayed = 0
        """How many of the run's events the store is known to have; and how many an event channel was sent."""
        self.has_waiting_text = False
        """There is text that will be written a little later."""
        self._size: tuple[int, int] | None = None
        """The size of the messages that the store has."""
        self._scanned, self._text_at = 0, -math.inf
        """How many events are known to be text or written. When text was written."""

    def news(self, now: float, *, hurried: bool, relayed: bool = False) -> News | None:
        """What is new. Text may wait a little, unless the run waits for it to be written (`hurried`); and longer while
        an event channel carries it to readers too (`relayed`).
        """
        due = self._text_at + (RELAYED_TEXT_SECONDS if relayed else TEXT_SECONDS)
        self.has_waiting_text = now < due and not hurried and self._is_text()
        if self.has_waiting_text:
            return None
        events, messages = self.log.since(self.events, EVENTS_AT_ONCE), self._so_far()
        has_changed = _size(messages) != self._size
        return News(events, messages if has_changed else None) if events or has_changed else None

    def note(self, progress: Progress, now: float) -> None:
        """This progress is written."""
        self.events = max(self.events, progress.events[-1].seq if progress.events else 0)
        self._text_at = now
        if progress.messages is not None:
            self._size = _size(progress.messages)

    def rest(self) -> list[Event]:
        """All events that the store is not known to have."""
        return self.log.since(self.events)

    def unsent(self, limit: int) -> list[Event]:
        """The events that neither the store has nor an event channel was sent."""
        return self.log.since(max(self.events, self.relayed), limit)

    def check_messages(self) -> Callable[[], bool]:
        """A function that says whether the messages that there are now are written."""
        size = _size(self._so_far())
        return lambda: self._size is not None and self._size >= size

    def _is_text(self) -> bool:
        """Is all that is new text, and not very much?"""
        count = len(self.log)
        if not 0 < count - self.events < EVENTS_AT_ONCE:
            return False
        if not self.log.kinds(max(self._scanned, self.events)) <= TEXT:
            return False
        self._scanned = count
        return True


def _size(messages: list[Message]) -> tuple[int, int]:
    """Messages are only ever added, and results to the last one: so these numbers tell whether there are new ones."""
    return len(messages), len(messages[-1].content) if messages else 0

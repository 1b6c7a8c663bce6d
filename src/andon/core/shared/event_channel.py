# SPDX-License-Identifier: Apache-2.0
"""The interface of an event channel: it carries the newest text of runs from process to process, quickly and cheaply.

A channel may lose what it was given, at any moment, and may be away for any time. Only text goes through it. The store
has every event in the end, and everything else never enters a channel: ends, pauses, cancels, leases, tool calls and
messages. So losing a channel costs time, and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from andon.core.events import Event, RunEvent

TEXT = frozenset({RunEvent.run_content, RunEvent.reasoning})
"""The events that go through a channel."""


class ChannelError(Exception):
    """The channel does not answer, or refuses."""


class Text(NamedTuple):
    """Pieces of text of one run, as events that are numbered without a gap."""

    run_id: str
    session_id: str
    agent_id: str
    events: Sequence[Event]


class Received(NamedTuple):
    """What was read of one run."""

    run_id: str
    place: str
    """From here on there may be more."""
    texts: Sequence[Sequence[Event]]


class EventChannel(Protocol):
    """Every method may be cancelled, and raises `ChannelError` if the channel can't be reached. All calls come from one
    event loop at a time.
    """

    @property
    def shown(self) -> str:
        """Where it is, without its password."""
        ...

    async def check(self) -> None:
        """Raise `ConfigurationError` if it can't work as it is set up. It leaves no connection open."""
        ...

    async def open(self, space: str) -> None:
        """Check that the channel answers, and takes text. From now on use only what is under this name: each store has
        its own.
        """
        ...

    async def send(self, texts: Sequence[Text]) -> None: ...

    async def receive(self, places: Mapping[str, str | None]) -> list[Received]:
        """Wait for text of these runs, each from a place on; None stands for the oldest text that the channel has. May
        return nothing.
        """
        ...

    async def interrupt(self) -> None:
        """Have the `receive` that waits now, or the next one, return at once: the runs have changed."""
        ...

    async def close(self) -> None:
        """Close all connections. A later call opens new ones."""
        ...

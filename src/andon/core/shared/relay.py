# SPDX-License-Identifier: Apache-2.0
"""Sends and receives the newest text of runs through an event channel, beside the store (`event_channel.py`).

What must stay true: readers never depend on the channel. They look at the store at each notification, as they do
without one, and take from the channel only what follows without a gap. While the channel answers, the writer stores
text less often; the moment that it does not, `is_up` is false, and the writer stores text as often as without one.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from andon.core.events import Event
from andon.core.shared.event_cache import EventCache
from andon.core.shared.event_channel import TEXT, ChannelError, EventChannel, Received, Text
from andon.core.shared.link import StoreLink
from andon.core.shared.store import SecretStore
from andon.core.shared.written import Written
from andon.core.waiters import Waiters

T = TypeVar("T")
log = logging.getLogger(__name__)

SEND_SECONDS = 0.025
"""How often new text is sent."""

IDLE_ROUNDS = 40
"""After so many rounds without new text, a run is not looked at until its writer names it again."""

EVENTS_AT_ONCE = 1_000
"""How many events of a run are sent at once."""

ANSWER_SECONDS = 1.0
"""A channel that does not answer for so long is away."""

RECEIVE_SECONDS = 5.0
"""How long one `receive` may wait. Feeds that have no reader any more are left out then, at the latest."""

AWAY_SECONDS = 1.0
"""How long to wait before the next try while the channel is away."""

PACE_SECONDS = 0.0001
"""After each `receive`, for each run: with many runs, the text of several moments is read at once."""


class RelayedRun(Protocol):
    """A run that this worker holds, as the relay sees it."""

    written: Written

    @property
    def is_closing(self) -> bool: ...

    @property
    def is_settled(self) -> bool: ...

    @property
    def is_held(self) -> bool: ...


class ChannelLink:
    """The channel of one worker, with what its two users share: the name of the store in it, and when it is away."""

    def __init__(self, link: StoreLink, channel: EventChannel) -> None:
        self.channel, self._link = channel, link
        self._space: str | None = None
        self._complained = False

    async def open(self) -> None:
        """Wait until the channel answers."""
        while True:
            try:
                await self.ask(lambda space: self.channel.open(space), ANSWER_SECONDS)
            except ChannelError as error:
                self.complain(error)
                await asyncio.sleep(AWAY_SECONDS)
            else:
                if self._complained:
                    log.warning("events go through %s again", self.channel.shown)
                self._complained = False
                return

    async def ask(self, make: Callable[[str], Awaitable[T]], seconds: float) -> T:
        """Call the channel, which has so many seconds to answer."""
        space = self._space or await self._find_space()
        try:
            async with asyncio.timeout(seconds):
                return await make(space)
        except TimeoutError:
            raise ChannelError(f"no answer within {seconds:g} s") from None

    async def _find_space(self) -> str:
        """A name that only the processes of this store know: another store's runs may have the same ids."""
        store = self._link.store
        if isinstance(store, SecretStore):
            self._space = await self._link.retry(lambda: store.secret("events"))
        return self._space or ""

    def complain(self, error: ChannelError) -> None:
        """Log a warning once for each outage."""
        if not self._complained:
            log.warning("events go through the database alone: %s: %s", self.channel.shown, error)
        self._complained = True


class Relay:
    """Sends the text of the runs that one worker holds, on the worker's thread."""

    def __init__(self, link: ChannelLink | None) -> None:
        self._link = link
        self._idle: dict[RelayedRun, int] = {}
        """The runs that may have new text, and for how many rounds they had none."""
        self._changed = Waiters()
        self.is_up = False
        """The channel has taken what it was sent."""

    def changed(self, run: RelayedRun) -> None:
        """The run may have new text. Called on the worker's thread."""
        if self.is_up:
            self._idle[run] = 0
            self._changed.wake()

    async def serve(self) -> None:
        """Send until cancelled, if there is a channel."""
        link = self._link
        assert link is not None
        while True:
            await link.open()
            self.is_up = True
            try:
                await self._send_all(link)
            except ChannelError as error:
                link.complain(error)
            finally:
                self.is_up = False
                self._idle.clear()
            await asyncio.sleep(AWAY_SECONDS)

    async def _send_all(self, link: ChannelLink) -> None:
        while True:  # this frame refers to no run, so that a run that has ended is freed
            await self._changed.wait(lambda: bool(self._idle))
            await self._send_news(link)
            await asyncio.sleep(SEND_SECONDS)

    async def _send_news(self, link: ChannelLink) -> None:
        texts: list[Text] = []
        sent = [(run, upto) for run in list(self._idle) if (upto := self._collect(run, texts))]
        if texts:
            await link.ask(lambda _: link.channel.send(texts), ANSWER_SECONDS)
        for run, upto in sent:
            run.written.relayed = upto

    def _collect(self, run: RelayedRun, texts: list[Text]) -> int | None:
        """Add the new text of the run. Returns the number of its last event, if there is a new one."""
        if run.is_settled or run.is_closing or not run.is_held:  # what is left of it is stored with its end
            del self._idle[run]
            return None
        log, events = run.written.log, run.written.unsent(EVENTS_AT_ONCE)
        if not events:
            self._idle[run] += 1
            if self._idle[run] > IDLE_ROUNDS:
                del self._idle[run]
            return None
        self._idle[run] = 0
        texts += [Text(log.run_id, log.session_id, log.agent_id, part) for part in _stretches(events)]
        return events[-1].seq


def _stretches(events: Sequence[Event]) -> Iterator[Sequence[Event]]:
    """The text among these events, cut where other events are."""
    for is_text, part in itertools.groupby(events, lambda event: event.event in TEXT):
        if is_text:
            yield list(part)


class Receiver:
    """Receives the text of all runs that this process reads, on the worker's thread."""

    def __init__(self, link: ChannelLink, cache: EventCache) -> None:
        self._link, self._cache = link, cache
        self._changed = Waiters()
        self._is_new = False
        cache.on_new = self.look_again

    def look_again(self) -> None:
        """A run is read from now on. Called from any thread."""
        self._is_new = True
        self._changed.wake()

    async def receive(self) -> None:
        """Receive until cancelled."""
        while True:
            await self._changed.wait(lambda: not self._cache.is_empty)
            await self._link.open()
            try:
                while places := {feed.run_id: feed.place for feed in self._cache.feeds}:
                    self._hand_out(await self._receive(places))
                    await asyncio.sleep(min(SEND_SECONDS, PACE_SECONDS * len(places)))
            except ChannelError as error:
                self._link.complain(error)
                await asyncio.sleep(AWAY_SECONDS)

    async def _receive(self, places: dict[str, str | None]) -> list[Received]:
        return await self._link.ask(lambda _: self._link.channel.receive(places), RECEIVE_SECONDS + ANSWER_SECONDS)

    def _hand_out(self, found: list[Received]) -> None:
        for run_id, place, texts in found:
            if (feed := self._cache.find(run_id)) is not None:
                feed.place = place
                for events in texts:
                    if all(event.event in TEXT for event in events):  # no end and no question comes from a channel
                        feed.receive(events)

    async def interrupt(self) -> None:
        """Have the runs that are new received too, until cancelled."""
        while True:
            await self._changed.wait(lambda: self._is_new)
            self._is_new = False
            try:
                await self._link.ask(lambda _: self._link.channel.interrupt(), ANSWER_SECONDS)
            except ChannelError:  # the receiver finds that out too, and then looks at all runs
                await asyncio.sleep(AWAY_SECONDS)

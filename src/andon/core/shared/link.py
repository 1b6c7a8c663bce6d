# SPDX-License-Identifier: Apache-2.0
"""A worker's link to the shared store: calls that are tried again while the store is away, and a thread for them."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from andon.core.portal import Portal
from andon.core.process_name import process_name
from andon.core.receipt import CancelRequest
from andon.core.shared.event_cache import EventCache
from andon.core.shared.news import News
from andon.core.shared.store import SharedStore, Taken
from andon.errors import StoreError, say

if TYPE_CHECKING:
    import concurrent.futures

T = TypeVar("T")
log = logging.getLogger(__name__)

FIRST_DELAY, LONGEST_DELAY = 0.05, 1.0
"""Between two tries to reach the store, in seconds."""


EndOrphan = Callable[[SharedStore, Taken, CancelRequest], Awaitable[None]]


class StoreLink:
    """What all parts of a worker share. Its thread is started when it is needed."""

    def __init__(
        self,
        store: SharedStore,
        seconds: float,
        serve: Callable[[], Coroutine[Any, Any, None]],
        end_orphan: EndOrphan,
    ) -> None:
        self.store, self.seconds, self._serve, self._end_orphan = store, seconds, serve, end_orphan
        self.closed = self._complained = False
        self._portal = Portal("andon-worker")
        self.start_over()

    def start_over(self) -> None:
        """Be as new; also in a forked child, where the thread is gone."""
        self.owner = f"{process_name()}:{os.urandom(8).hex()}"
        """The name under which this worker holds runs."""
        self.news = News()
        self.cache = EventCache(self)
        """What the readers of runs of other processes share."""
        self.giving_back: dict[str, concurrent.futures.Future[None]] = {}  # see claim.py
        self._lock = threading.Lock()
        self._served: concurrent.futures.Future[None] | None = None
        self._portal.forget()

    async def end_orphan(self, taken: Taken, request: CancelRequest) -> None:
        """End a run that no worker holds, from what the store has of it."""
        await self._end_orphan(self.store, taken, request)

    async def retry(self, make: Callable[[], Awaitable[T]]) -> T:
        """Call the store, and try again while it can't be reached. The lease of the waiting run bounds that."""
        tries = 0
        while True:
            self.check_open()
            try:
                return await make()
            except StoreError as error:
                if type(error) is not StoreError:  # it could be reached, and has refused
                    raise
                self.complain("a call of the store has to wait", error)
            await self.pause_before_retry(tries)
            tries += 1

    @staticmethod
    async def pause_before_retry(tries: int) -> None:
        await asyncio.sleep(min(LONGEST_DELAY, FIRST_DELAY * 2**tries))

    def submit(self, make: Callable[[], Coroutine[Any, Any, T]]) -> concurrent.futures.Future[T]:
        """Do something on the worker's thread. It is done to its end, even if the caller is cancelled."""
        with self._lock:
            self.check_open()
            return self._portal.submit(make)

    def start(self) -> None:
        """Begin to serve: hold leases, write, listen, and end runs that other processes have left behind."""
        with self._lock:
            if not self.closed and (self._served is None or self._served.done()):
                self._served = self._portal.submit(self._serve)

    def stop(self) -> None:
        """Serve no more, for good."""
        with self._lock:  # what was submitted before this is ended with the rest
            self.closed = True
        self._portal.close()
        self.news.tell_all()

    def check_open(self) -> None:
        if self.closed:
            raise StoreError("the runtime was closed: nothing more is written by it")

    def complain(self, what: str, error: StoreError) -> None:
        """Log a warning once for each outage of the store, and not for each try."""
        log.log(logging.DEBUG if self._complained else logging.WARNING, "%s: %s", what, say(error))
        self._complained = True

    def is_reached(self) -> None:
        """The store has answered: the next outage is logged again."""
        self._complained = False

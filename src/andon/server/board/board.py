# SPDX-License-Identifier: Apache-2.0
"""The parts of the board of one server."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator

from andon.core.process_name import process_name
from andon.server.access import Principal
from andon.server.board.elsewhere import Elsewhere
from andon.server.board.feed import Feed
from andon.server.board.history import History
from andon.server.board.plots import Plots, make_plots
from andon.server.host import Host

PLOTS_SECONDS = 5.0
"""How long the same plots answer further requests."""


class Board:
    """What boards are shown."""

    def __init__(self, host: Host) -> None:
        self.host, self.server = host, process_name()
        self.history = History(lambda: host.directory.ids, self.server)
        self.feed = Feed(host, self.history, self.server)
        for runtime in host.runtimes:
            runtime.watch_ends(self.history)
        stores = {id(each.store): each.worker.link for each in host.runtimes if each.worker is not None}
        self._elsewhere = [Elsewhere(host, link, self.feed, self.history) for link in stores.values()]
        self._keeping: asyncio.Task[None] | None = None
        self._plots: dict[tuple[bool, str | None, int], Plots] = {}

    @contextlib.contextmanager
    def watched(self) -> Iterator[asyncio.Task[None]]:
        """A board is open: its feed is kept up to date, by this task."""
        loop, keeping = asyncio.get_running_loop(), self._keeping
        if keeping is None or keeping.done() or keeping.get_loop() is not loop:
            self.feed.begin()
            self._keeping = keeping = loop.create_task(self._keep_up())
            keeping.add_done_callback(lambda _: self.feed.wake())
        with self.feed.watched():
            yield keeping

    async def _keep_up(self) -> None:
        async with asyncio.TaskGroup() as group:
            watching = [group.create_task(each.watch()) for each in self._elsewhere]
            await self.feed.keep_up()
            for each in watching:
                each.cancel()

    def plots(self, principal: Principal, hours: int) -> Plots:
        now, wanted = time.time(), (principal.admin, principal.user_id, hours)
        found = self._plots.get(wanted)
        if found is None or not 0 <= now - found.now < PLOTS_SECONDS:
            self._plots = {key: each for key, each in self._plots.items() if 0 <= now - each.now < PLOTS_SECONDS}
            ended = (line for line in self.history.lines if principal.may_see(line.user_id))
            live = (line for line in self.feed.live if principal.may_see(line.user_id))
            found = self._plots[wanted] = make_plots(ended, live, now, hours, self.history.begins)
        return found

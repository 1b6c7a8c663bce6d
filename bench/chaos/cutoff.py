# SPDX-License-Identifier: Apache-2.0
"""A server that has lost its database, and is asked to cancel: what it says must be true.

All else is quiet here, so that it is certain what happens. Some runs wait for a person at the server, and some are in a
tool there; then it loses the database. Those that wait are cancelled at it, more than once, and answered at another
server: an acknowledged cancel that only this server knows of would be lost. Those in a tool are held by this server,
which can stop them whatever the database does.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from bench.chaos.agent import AGENT, read_notes
from bench.chaos.clients import ENDS, Clients
from bench.chaos.provider import ASKING, BUSY
from bench.chaos.proxy import MOMENTARY
from bench.chaos.servers import Server, start_again
from bench.chaos.ways import Way

LEASE = 10.0
"""The default. A short one would stop the tools by itself."""
PAUSED_RUNS, BUSY_RUNS = 2, 2
BEGIN_SECONDS = 30.0
"""How long a run may take to get where it is wanted."""
STOP_SECONDS = 1.0
"""How long a tool may go on after its run was cancelled at the server that holds it."""
PATIENCE = 15.0
"""How long one who cancels waits for the answer."""
MEND_SECONDS = 12.0
"""After so long the database is there again, whoever still waits."""


class HeldCancel(NamedTuple):
    """A cancel of a run that is in a tool, at the server that holds it."""

    run_id: str
    how: str
    """In which way the database was lost."""
    asked: float
    seconds: float
    """How long the answer took."""
    status: int


class CutOff:
    """One server of several loses the database."""

    def __init__(
        self, servers: Sequence[Server], ways: Sequence[Way], clients: Clients, notes: Path, chance: Random
    ) -> None:
        self._servers, self._ways, self._clients = servers, ways, clients
        self._notes, self._chance = notes, chance
        self.held: list[HeldCancel] = []

    async def hold(self, times: int, name: str) -> None:
        """So many times, each in another way while there are any. At every second time the server is killed once it has
        answered: then only the store can still know of a cancel.
        """
        cuts = [how for how in self._ways[0].cuts if how not in MOMENTARY]
        for number in range(times):
            how = cuts[number % len(cuts)]
            chosen = self._chance.randrange(len(self._servers))
            dies = number % 2 == 0
            await self._once(f"{name}-cut-{number}", chosen, how, dies=dies)
            if dies and number + 1 < times:
                await start_again(self._servers[chosen])

    async def _once(self, name: str, number: int, how: str, *, dies: bool) -> None:
        way, server = self._ways[number], self._servers[number]
        others = [each.url for each in self._servers if each is not server]
        paused = [f"{name}-paused-{each}" for each in range(PAUSED_RUNS)]
        busy = [f"{name}-busy-{each}" for each in range(BUSY_RUNS)]
        prompts = [*zip(paused, itertools.repeat(ASKING)), *zip(busy, itertools.cycle(BUSY))]
        await asyncio.gather(*(self._begin(run_id, server.url, prompt) for run_id, prompt in prompts))
        asking = await asyncio.gather(*(self._reached(run_id, server.url, "PAUSED") for run_id in paused))
        await self._noted(busy, starts=True)
        mended = asyncio.Event()
        await way.cut(how)
        async with asyncio.TaskGroup() as tasks:
            during = [tasks.create_task(self._cancel_held(run_id, server.url, how)) for run_id in busy]
            for each, (run_id, found) in enumerate(zip(paused, asking, strict=True)):
                cancelling = tasks.create_task(self._cancel_paused(run_id, server.url))
                later = not way.alone or each % 2 == 1
                answering = self._answer(cancelling, mended if later else None, run_id, found["interrupts"], others)
                task = tasks.create_task(answering)
                during.append(cancelling if later else task)
            await asyncio.wait(during, timeout=MEND_SECONDS)
            if dies:
                with contextlib.suppress(TimeoutError):
                    await self._noted(busy, starts=False, seconds=STOP_SECONDS)
                await server.program.kill()
            await way.mend()
            mended.set()

    # -- what the runs are made to do ---------------------------------------------------------------------------------

    async def _begin(self, run_id: str, at: str, message: str) -> None:
        clients, session = self._clients, f"{run_id}-session"
        clients.ledger.sessions.add(session)
        body = {"message": message, "run_id": run_id, "session_id": session, "stream": False, "background": True}
        status, said = await clients.ask("POST", f"/agents/{AGENT}/runs", at=at, json=body, timeout=BEGIN_SECONDS)
        if status != 202:
            raise RuntimeError(f"{run_id} was not started, though all is quiet: {status} {said}")
        clients.ledger.admitted.add(run_id)

    async def _reached(self, run_id: str, at: str, *statuses: str) -> dict[str, Any]:
        """Wait until it has one of them."""
        async with asyncio.timeout(BEGIN_SECONDS):
            while True:
                _, found = await self._clients.ask("GET", self._clients.path(run_id), at=at)
                if found.get("status") in statuses:
                    return found
                await asyncio.sleep(0.05)

    async def _noted(self, run_ids: Sequence[str], *, starts: bool, seconds: float = BEGIN_SECONDS) -> None:
        """Wait until each is in a tool, or has left it."""
        async with asyncio.timeout(seconds):
            while True:
                if set(run_ids) <= {note.run_id for note in read_notes(self._notes) if note.starts is starts}:
                    return
                await asyncio.sleep(0.05)

    # -- what is done to them -----------------------------------------------------------------------------------------

    async def _cancel_held(self, run_id: str, at: str, how: str) -> None:
        asked = time.monotonic()
        status = await self._clients.cancel_as(run_id, at, {}, timeout=PATIENCE)
        self.held.append(HeldCancel(run_id, how, asked, time.monotonic() - asked, status))

    async def _cancel_paused(self, run_id: str, at: str) -> None:
        for _ in range(self._chance.randrange(2, 4)):
            await self._clients.cancel_as(run_id, at, {}, timeout=PATIENCE)

    async def _answer(
        self,
        cancelling: asyncio.Task[None],
        when: asyncio.Event | None,
        run_id: str,
        questions: list[dict[str, Any]],
        others: Sequence[str],
    ) -> None:
        """Elsewhere, where nobody knows of the cancels, once those were answered; and let the run go on."""
        await asyncio.wait([cancelling])
        if when is not None:
            await when.wait()
        at = self._chance.choice(others)
        if await self._clients.answer(run_id, questions, at, yes=True):
            await self._reached(run_id, at, *ENDS)

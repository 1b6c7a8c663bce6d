# SPDX-License-Identifier: Apache-2.0
"""Those who use the servers: each request goes to any of them, and what is answered is noted.

What must stay true: only what a server has answered in full is noted. A connection that broke says nothing, whatever
was asked: it may have been done or not.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from random import Random
from typing import Any

import httpx

from andon.core.shared.event_channel import TEXT
from bench.chaos.agent import AGENT
from bench.chaos.provider import KINDS
from bench.chaos.servers import Server

Json = dict[str, Any]
ACKNOWLEDGED = {"requested", "already_requested"}
TERMINAL = {"RunCompleted", "RunCancelled", "RunError"}
ENDS = ("COMPLETED", "CANCELLED", "ERROR")
PATIENCE = 3.0
"""A server that says nothing for so long may be stopped: another one is asked."""
RUN_SECONDS = 8.0
WATCH_SECONDS = 30.0
ACTIONS = ("yes", "yes", "yes", "no", "both", "cancel", "quarrel", "quarrel", "leave")
"""What is done about a question, by chance: `both` is two people at once, on two servers; `quarrel` is one who cancels
the run, again and again, where it was paused, and then another one who says yes elsewhere.
"""


class Ledger:
    """What clients were told."""

    def __init__(self) -> None:
        self.admitted: set[str] = set()
        self.acknowledged: dict[str, float] = {}
        """Runs whose cancel was acknowledged, and when that was first. So it is where the server that holds the run has
        stopped it and the store does not know of it yet (`stored` is false).
        """
        self.homes: dict[str, str] = {}
        """The server that a run was started at, or answered at last."""
        self.ends: dict[str, set[str]] = defaultdict(set)
        """How a run has ended, as anybody was told."""
        self.told: dict[str, dict[int, str]] = defaultdict(dict)
        """The text of runs, by the numbers of its events, as anybody was told first."""
        self.sessions: set[str] = set()
        self.counts: Counter[str] = Counter()
        self.odd: list[str] = []
        """What no server should ever say."""


class Clients:
    """All of them."""

    def __init__(self, sessions: int, name: str, chance: Random) -> None:
        self._sessions, self._name, self._chance = sessions, name, chance
        self.servers: Sequence[Server] = ()
        self._http = httpx.AsyncClient(
            timeout=httpx.Timeout(PATIENCE), limits=httpx.Limits(max_connections=None, max_keepalive_connections=0)
        )
        self.ledger = Ledger()

    async def close(self) -> None:
        await self._http.aclose()

    # -- requests -----------------------------------------------------------------------------------------------------

    def _somewhere(self) -> str:
        return self._chance.choice(self.servers).url

    def _perhaps_home(self, run_id: str) -> str:
        home = self.ledger.homes.get(run_id)
        return home if home and self._chance.random() < 0.5 else self._somewhere()

    async def ask(self, method: str, path: str, *, at: str | None = None, **options: Any) -> tuple[int, Json]:
        """The status and the answer; 0 if there was none."""
        try:
            answer = await self._http.request(method, f"{at or self._somewhere()}{path}", **options)
            said = answer.json() if answer.content else {}
        except (httpx.HTTPError, ValueError):
            await asyncio.sleep(0.05)  # one that is down answers at once
            return 0, {}
        if answer.status_code >= 500 and answer.status_code != 503:
            self.ledger.odd.append(f"{method} {path}: {answer.status_code} {said}")
        return answer.status_code, said

    def path(self, run_id: str, what: str = "") -> str:
        return f"/agents/{AGENT}/runs/{run_id}{what}"

    # -- one run ------------------------------------------------------------------------------------------------------

    async def use(self, number: int) -> None:
        """Start a run, and do to it what chance wants."""
        chance, run_id = self._chance, f"{self._name}-{number}"
        session = await self._begin(run_id)
        if session is None:
            return
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch(run_id))
            if chance.random() < 0.5:
                tasks.create_task(self._cancel_later(run_id, session))
        if chance.random() < 0.1:  # from where it was cut; a run that was not is refused
            await self.ask("POST", self.path(run_id, "/continue"), json={"stream": False, "background": True})

    async def _begin(self, run_id: str) -> str | None:
        """Ask until the run is there; its session."""
        for _ in range(100):
            session = f"s{self._chance.randrange(self._sessions)}"
            self.ledger.sessions.add(session)
            body = {
                "message": self._chance.choice(KINDS),
                "run_id": run_id,
                "session_id": session,
                "background": True,
                "on_busy": self._chance.choice(("reject", "queue", "cancel")),
                "timeout": RUN_SECONDS,
            }
            at = self._somewhere()
            if self._chance.random() < 0.3:
                began = await self._begin_streaming(body, at, leaves=self._chance.random() < 0.3)
            else:
                status, _ = await self.ask("POST", f"/agents/{AGENT}/runs", at=at, json={**body, "stream": False})
                began = status == 202
            if began:
                self.ledger.admitted.add(run_id)
                self.ledger.homes[run_id] = at
                return session
            status, found = await self.ask("GET", self.path(run_id))
            if status == 200:  # it was started after all
                return str(found["session_id"])
        self.ledger.counts["runs that found no server"] += 1
        return None

    async def _begin_streaming(self, body: Json, at: str, *, leaves: bool) -> bool:
        """Start it and read on from there, where it runs; to leave early is to cancel it."""
        body = {**body, "stream": True, "events": "all", "on_disconnect": "cancel" if leaves else "continue"}
        reading = Reading(body["run_id"], self.ledger)
        path = f"{at}/agents/{AGENT}/runs"
        await reading.follow(self._http.stream("POST", path, json=body), self._chance.randrange(2, 30) if leaves else 0)
        return reading.seq > 0

    # -- watching -----------------------------------------------------------------------------------------------------

    async def _watch(self, run_id: str) -> None:
        """Read its events to the end, wherever that can be done; answer what it asks."""
        reading = Reading(run_id, self.ledger)
        try:
            async with asyncio.timeout(WATCH_SECONDS):
                while not reading.ended:
                    seen, path = reading.seq, f"{self._somewhere()}{self.path(run_id, '/events')}"
                    headers = {"last-event-id": str(seen)}
                    status = await reading.follow(self._http.stream("GET", path, headers=headers))
                    if status == 404:  # whoever wanted to start it died before that was answered; or it is missed later
                        return
                    if status in (0, 503):
                        await asyncio.sleep(0.1)
                    elif not reading.ended and (reading.asks or reading.seq == seen) and not await self._look(run_id):
                        return
        except TimeoutError:
            self.ledger.counts["watchers who gave up"] += 1

    async def _look(self, run_id: str) -> bool:
        """There is nothing to read: because it asks, or because of what a killed server had shown the last moment was
        not stored. False if there is no need to read on.
        """
        _, found = await self.ask("GET", self.path(run_id))
        if found.get("status") == "PAUSED":
            return await self._answer(run_id, found["interrupts"])
        return found.get("status") not in ENDS

    async def _answer(self, run_id: str, questions: list[Json]) -> bool:
        """False if it is left as it is."""
        action = self._chance.choice(ACTIONS)
        if action == "leave":
            return False
        if action == "cancel":
            await self.cancel(run_id, self._perhaps_home(run_id))
            return True
        home = self.ledger.homes.get(run_id, self._somewhere())
        servers = [server.url for server in self.servers]
        if action == "quarrel":
            for _ in range(self._chance.randrange(2, 4)):
                await self.cancel(run_id, home)
            servers = [url for url in servers if url != home]
        chosen = self._chance.sample(servers, 2 if action == "both" else 1)
        await asyncio.gather(*(self.answer(run_id, questions, url, yes=action != "no") for url in chosen))
        return True

    async def answer(self, run_id: str, questions: list[Json], at: str, *, yes: bool) -> bool:
        """Say the same to all of them; whether that was accepted."""
        body = {"answers": {each["id"]: yes for each in questions}, "stream": False, "background": True}
        status, _ = await self.ask("POST", self.path(run_id, "/continue"), at=at, json=body)
        if status == 202:
            self.ledger.homes[run_id] = at
            self.ledger.counts["answers"] += 1
        return status == 202

    # -- cancelling ---------------------------------------------------------------------------------------------------

    async def _cancel_later(self, run_id: str, session: str) -> None:
        await asyncio.sleep(self._chance.choice((0.0, 0.1, 0.5, 1.5)) * self._chance.random())
        if self._chance.random() < 0.1:
            _, said = await self.ask("POST", "/runs/cancel", json={"session_id": session})
            for each in said.get("cancelled", ()):
                self._note_one_of_many(each["run_id"], each)
        for _ in range(self._chance.randrange(1, 4)):  # impatient ones ask again, elsewhere
            await self.cancel(run_id, self._perhaps_home(run_id))

    async def cancel(self, run_id: str, at: str) -> None:
        how: Json = self._chance.choice(({}, {}, {}, {"wait": 1}, {"mode": "after_tools", "grace": 0.3}))
        await self.cancel_as(run_id, at, how)

    async def cancel_as(self, run_id: str, at: str, how: Json, **options: Any) -> int:
        body = {**how, "by": "chaos"}
        status, said = await self.ask("POST", self.path(run_id, "/cancel"), at=at, json=body, **options)
        self._note(run_id, status, said)
        return status

    def _note(self, run_id: str, status: int, said: Json) -> None:
        if status in (200, 202) and said.get("outcome") in ACKNOWLEDGED:
            self._note_acknowledged(run_id)
            if not said.get("stored", True):
                self.ledger.counts["cancels acknowledged that were not stored yet"] += 1
        elif status == 200:
            self.ledger.ends[run_id].add("CANCELLED")
        elif status == 409:
            self.ledger.ends[run_id].add(said["status"])

    def _note_one_of_many(self, run_id: str, said: Json) -> None:
        """Where many are cancelled, one that had ended in any other way is no reason for a 409: its status says it."""
        if said["outcome"] in ACKNOWLEDGED:
            self._note_acknowledged(run_id)
        elif said["status"] in ENDS:
            self.ledger.ends[run_id].add(said["status"])

    def _note_acknowledged(self, run_id: str) -> None:
        self.ledger.acknowledged.setdefault(run_id, time.monotonic())


class Reading:
    """One reader of a run, who goes on where it was."""

    def __init__(self, run_id: str, ledger: Ledger) -> None:
        self._run_id, self._ledger = run_id, ledger
        self.seq, self.ended, self.asks = 0, False, False

    async def follow(self, stream: Any, limit: int = 0) -> int:
        """Read until it ends or breaks, or so many events; the status, 0 if nobody has answered."""
        try:
            async with stream as answer:
                if answer.status_code == 200:
                    read = 0
                    async for line in answer.aiter_lines():
                        if line.startswith("data: "):
                            self._take(json.loads(line[6:]))
                            read += 1
                            if read == limit:
                                break
                return int(answer.status_code)
        except httpx.HTTPError:
            return 0

    def _take(self, event: Json) -> None:
        if event["seq"] <= self.seq and event["event"] in (*TERMINAL, "RunPaused"):
            # What a server that was killed has shown last was not stored: how it stands is told once more.
            self._ledger.counts[f"{event['event']} told to who had read further"] += 1
        elif event["seq"] != self.seq + 1:
            self._ledger.odd.append(f"{self._run_id}: event {event['seq']}, {event['event']}, comes after {self.seq}")
        self.seq = event["seq"]
        if event["event"] in TEXT:
            told = self._ledger.told[self._run_id].setdefault(self.seq, event["content"])
            if told != event["content"]:
                self._ledger.odd.append(f"{self._run_id}: event {self.seq} is {event['content']!r}, and was {told!r}")
        self.asks = event["event"] == "RunPaused"
        if event["event"] in TERMINAL:
            self.ended = True
            self._ledger.ends[self._run_id].add(event["status"])

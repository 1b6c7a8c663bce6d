# SPDX-License-Identifier: Apache-2.0
"""Servers that accept runs, and workers that execute them, in threads of this process and on one database."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import httpx
import psycopg

from andon import Agent, Runtime
from andon.models.scripted import Fail, ScriptedModel, Turn
from andon.scale.service import WorkerService
from andon.store.sql import SQLStore
from tests.server.live import Live, serving
from tests.support import Flag, Worker, eventually

LONG = 30.0
"""A lease that no test outlives."""


class ExecutedHereError(Exception):
    """A server that executes nothing has called a model."""


def pair(*turns: Turn, name: str = "Helper", then: Any = "OK.", **options: Any) -> tuple[Agent, Agent]:
    """An agent as the server has it, whose model is never to be called, and as the workers have it."""
    nothing = ScriptedModel(then=Fail(ExecutedHereError()))
    return Agent(name, nothing, **options), Agent(name, ScriptedModel(*turns, then=then), **options)


class Crew:
    """What `andon worker` runs, in a thread of this process."""

    def __init__(self, url: str, *agents: Agent, lease: float = LONG, **options: Any) -> None:
        self.runtime = Runtime(SQLStore(url), lease_seconds=lease)
        for agent in agents:
            agent.move_to(self.runtime)
        self.service = WorkerService(agents, self.runtime, **{"concurrency": 10, "drain": 0.0} | options)
        self.over = Flag()
        self._up = Flag()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = Worker(lambda: asyncio.run(self._serve()))
        self._up.wait()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._up.set()
        try:
            await self.service.serve()
        finally:
            await self.runtime.close()
            self.over.set()

    def stop(self) -> None:
        """Ask it to stop, as SIGTERM does."""
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # it is over
            self._loop.call_soon_threadsafe(self.service.stop)

    def done(self) -> None:
        """Wait for its end. It fails if the service has failed."""
        self._thread.done()


@contextlib.contextmanager
def working(url: str, *agents: Agent, **options: Any) -> Iterator[Crew]:
    crew = Crew(url, *agents, **options)
    try:
        yield crew
    finally:
        crew.stop()
        crew.done()


@contextlib.contextmanager
def accepting(url: str, *agents: Agent, lease: float = LONG, **settings: Any) -> Iterator[Live]:
    """A server that executes nothing."""
    runtime = Runtime(SQLStore(url), lease_seconds=lease)
    try:
        with serving(*agents, runtime=runtime, execute=False, **settings) as live:
            yield live
    finally:
        asyncio.run(runtime.close())


def start(live: Live, run_id: str, agent: str = "helper", status: int = 202, **fields: Any) -> httpx.Response:
    """Start a run in the background."""
    body = {"message": "Hi", "background": True, "stream": False, "run_id": run_id, "session_id": run_id, **fields}
    response = live.client.post(f"/agents/{agent}/runs", json=body)
    assert response.status_code == status, response.text
    return response


def told(live: Live, run_id: str, agent: str = "helper", after: int | None = None) -> list[Any]:
    """All events of a run; waits for its end, or for its pause."""
    with live.watch(f"/agents/{agent}/runs/{run_id}/events", after) as stream:
        return list(stream)


def kinds(live: Live, run_id: str, agent: str = "helper") -> list[str]:
    return [frame.event for frame in told(live, run_id, agent)]


def state(live: Live, run_id: str, agent: str = "helper") -> dict[str, Any]:
    response = live.client.get(f"/agents/{agent}/runs/{run_id}")
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def ended(live: Live, run_id: str, agent: str = "helper") -> dict[str, Any]:
    """Wait for the end of a run. Returns its state."""
    told(live, run_id, agent)
    found = state(live, run_id, agent)
    assert found["status"] in ("COMPLETED", "CANCELLED", "ERROR"), found
    return found


def cancel(live: Live, run_id: str, agent: str = "helper", **fields: Any) -> dict[str, Any]:
    """Cancel a run, and wait until it is over."""
    response = live.client.post(f"/agents/{agent}/runs/{run_id}/cancel?wait=30", json=fields)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def rows(url: str, question: str, *values: Any) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(question, values).fetchall()


def waiting(url: str, run_id: str) -> str | None:
    """The state of a run's row in the queue."""
    found = rows(url, "SELECT state FROM andon_waiting WHERE run_id = %s", run_id)
    return found[0][0] if found else None


def is_forgotten(url: str) -> bool:
    """Nothing is left in the queue: neither of ours nor of the engine's."""
    left = "SELECT (SELECT count(*) FROM andon_waiting) + (SELECT count(*) FROM procrastinate_jobs)"
    return bool(rows(url, left)[0][0] == 0)


def eventually_forgotten(url: str) -> None:
    eventually(lambda: is_forgotten(url), every=0.02)

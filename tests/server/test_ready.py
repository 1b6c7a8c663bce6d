# SPDX-License-Identifier: Apache-2.0
"""`/ready` answers within a second, whatever the database does, and however many ask."""

from __future__ import annotations

import asyncio
import signal
import time
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

from andon import Agent, Runtime
from andon.errors import StoreError
from andon.models.scripted import ScriptedModel
from andon.server import readiness
from andon.server.readiness import Readiness
from andon.store.sql import SQLStore
from tests.server.live import serving
from tests.store.conftest import own_server, server, sqlite_url
from tests.store.server import Server
from tests.support import Flag, play

__all__ = ["own_server", "server", "sqlite_url"]


def test_a_server_that_has_stopped_is_not_waited_for(own_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "FRESH_SECONDS", -1.0)
    runtime = Runtime(SQLStore(own_server.url("postgres")))
    agent = Agent("Helper", ScriptedModel("Yes."), runtime=runtime)
    postmaster = psutil.Process(own_server._server.get_pid())
    with serving(agent) as live:
        assert live.client.get("/ready").status_code == 200
        processes = [postmaster, *postmaster.children(recursive=True)]
        for process in processes:
            process.send_signal(signal.SIGSTOP)
        try:
            for _ in range(3):
                began = time.monotonic()
                assert live.client.get("/ready").status_code == 503
                assert time.monotonic() - began < 10  # without a bound it would be many times that
        finally:
            for process in reversed(processes):
                process.send_signal(signal.SIGCONT)
        while live.client.get("/ready").status_code != 200:
            pass
    asyncio.run(runtime.close())


class Slow(SQLStore):
    """Answers a ping when the test says so."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.pings, self.asked, self.may_answer = 0, Flag(), Flag()
        self.error: Exception | None = None

    async def ping(self) -> None:
        self.pings += 1
        self.asked.set()
        await self.may_answer.arrived()
        if self.error is not None:
            raise self.error


def test_probes_share_one_question_and_its_answer(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        store = Slow(sqlite_url)
        ready = Readiness(lambda: [store])
        monkeypatch.setattr(readiness, "ANSWER_SECONDS", 0.01)
        for _ in range(3):  # one after the other, and none is answered
            with pytest.raises(StoreError, match="has not answered within"):
                await ready.check()
        monkeypatch.setattr(readiness, "ANSWER_SECONDS", 60.0)
        monkeypatch.setattr(readiness, "FRESH_SECONDS", 60.0)
        probes = [asyncio.create_task(ready.check()) for _ in range(10)]
        store.error = StoreError("it is away")
        await asyncio.sleep(0)
        store.may_answer.set()
        told: list[Any] = await asyncio.gather(*probes, return_exceptions=True)
        assert [str(each) for each in told] == ["it is away"] * 10
        store.error = None
        with pytest.raises(StoreError, match="it is away"):  # as just now
            await ready.check()
        assert store.pings == 1
        monkeypatch.setattr(readiness, "FRESH_SECONDS", -1.0)
        await ready.check()
        assert store.pings == 2
        await store.close()

    play(main)


def test_a_question_of_another_loop_is_not_waited_for(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "FRESH_SECONDS", 60.0)
    store = Slow(sqlite_url)
    store.may_answer.set()
    ready = Readiness(lambda: [store])
    for _ in range(2):
        asyncio.run(ready.check())
    assert store.pings == 2
    asyncio.run(store.close())

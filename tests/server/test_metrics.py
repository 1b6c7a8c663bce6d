# SPDX-License-Identifier: Apache-2.0
"""`/metrics` answers while the database is away: with what the process itself knows."""

from __future__ import annotations

import asyncio
import logging

import pytest

from andon import Agent, Runtime
from andon.core.selection import Block
from andon.errors import SchemaError, StoreError
from andon.models.scripted import ScriptedModel, Stall
from andon.server import metrics
from andon.store.sql import SQLStore
from tests.server.live import serving
from tests.store.conftest import sqlite_url

__all__ = ["sqlite_url"]


class Away(SQLStore):
    """Does not say what is blocked."""

    error: Exception | None = None
    answers = True

    async def blocks(self) -> list[Block]:
        if not self.answers:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error
        return await super().blocks()


@pytest.mark.parametrize("how", ["store", "schema", "silent"])
def test_what_only_the_database_knows_is_left_out(
    sqlite_url: str, how: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(metrics, "ANSWER_SECONDS", 0.01 if how == "silent" else 60.0)
    store = Away(sqlite_url)
    runtime = Runtime(store)
    agent = Agent("Helper", ScriptedModel(then=Stall()), runtime=runtime)
    with serving(agent) as live, caplog.at_level(logging.WARNING, "andon"):
        body = {"message": "Hi", "background": True, "stream": False, "run_id": "r1"}
        assert live.client.post("/agents/helper/runs", json=body).status_code == 202
        while 'status="running"} 1' not in live.client.get("/metrics").text:
            pass
        if how != "silent":
            assert "andon_blocked" in live.client.get("/metrics").text
        store.error = SchemaError("it is newer") if how == "schema" else StoreError("it is away")
        store.answers = how != "silent"
        answer = live.client.get("/metrics")
        store.error, store.answers = None, True
        assert live.client.post("/agents/helper/runs/r1/cancel?wait=30").status_code == 200
    asyncio.run(runtime.close())
    assert answer.status_code == 200
    lines = answer.text.splitlines()
    assert 'andon_runs{status="running"} 1' in lines
    assert "andon_draining 0" in lines
    assert "andon_blocked" not in answer.text
    why = {"store": "it is away", "schema": "it is newer", "silent": "it has not answered within 0.01 s"}[how]
    assert why in caplog.text
    assert why not in answer.text

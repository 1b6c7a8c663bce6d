# SPDX-License-Identifier: Apache-2.0
"""Events that are kept for minutes: then they are deleted, and the run, its messages and its state stay."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from andon import Agent, Runtime
from andon.core.shared import pruning
from andon.errors import ConfigurationError
from andon.models.scripted import ScriptedModel
from andon.store.sql import SQLStore
from tests.server.live import serving
from tests.shared_store.helpers import on, stored_events
from tests.store.making import opened
from tests.support import Flag, play

RUNS = "/agents/keeper/runs"


class Watched(SQLStore):
    """Says when events were pruned."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.pruned = Flag()

    async def prune_events(self, older_than: float, since: float) -> tuple[int, float]:
        found = await super().prune_events(older_than, since)
        if found[0]:
            self.pruned.set()
        return found


def test_events_of_ended_runs_are_deleted_and_the_runs_stay(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "SHORTEST_SECONDS", 0.01)

    async def main() -> None:
        store = Watched(url)
        runtime = Runtime(store, keep_event_minutes=0)
        agent = on(runtime, "Hello.", "Hello again.")
        await agent.invoke_async("go", run_id="r1", session_id="s")
        await store.pruned.arrived()
        record = await store.find("r1")
        assert record is not None
        assert record.usage is not None
        assert len(await store.load(record.session)) == 2
        assert await stored_events(runtime, "r1") == []
        assert (await agent.invoke_async("more", session_id="s")).content == "Hello again."
        await runtime.close()

    play(main)


def test_only_what_is_old_enough_is_deleted(url: str) -> None:
    async def main() -> None:
        runtime = Runtime(SQLStore(url))
        await on(runtime, "Hello.").invoke_async("go", run_id="r1")
        async with opened(url) as store:
            assert (await store.prune_events(60, 0.0))[0] == 0
            count, since = await store.prune_events(-1, 0.0)
            assert count == len(["RunStarted", "RunContent", "RunCompleted"])
            assert (await store.prune_events(-1, since))[0] == 0
        await runtime.close()

    play(main)


def test_a_reader_that_comes_later_is_told_that_they_are_gone(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/andon.db"

    async def prepare() -> None:
        runtime = Runtime(SQLStore(url))
        await on(runtime, "Hello.").invoke_async("go", run_id="r1")
        await runtime.close()
        async with opened(url) as store:
            await store.prune_events(-1, 0.0)

    asyncio.run(prepare())
    runtime = Runtime(SQLStore(url))
    with (
        serving(Agent("Keeper", ScriptedModel.story(), runtime=runtime)) as live,
        httpx.Client(base_url=live.url) as client,
    ):
        for last in ("0", "1", "2", "3"):
            answer = client.get(f"{RUNS}/r1/events", headers={"last-event-id": last})
            assert answer.status_code == 410, last
            assert "no longer kept" in answer.json()["detail"]
        assert client.get(f"{RUNS}/r1").json()["status"] == "COMPLETED"
    asyncio.run(runtime.close())


@pytest.mark.parametrize("minutes", [-1, "7"])
def test_how_long_is_a_number(minutes: Any) -> None:
    with pytest.raises(ConfigurationError, match="keep_event_minutes is"):
        Runtime(keep_event_minutes=minutes)

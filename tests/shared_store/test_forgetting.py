# SPDX-License-Identifier: Apache-2.0
"""A runtime that is told how long to keep things forgets what is older, by itself."""

from __future__ import annotations

from typing import Any

import pytest

from andon import Runtime
from andon.core.shared import worker as worker_module
from andon.errors import ConfigurationError, StoreError
from andon.store.sql import SQLStore
from tests.shared_store.helpers import on
from tests.support import Flag, play


class Watched(SQLStore):
    """Tells when it was pruned, and may fail at first."""

    def __init__(self, url: str, failures: int = 0) -> None:
        super().__init__(url)
        self.failures, self.older_than, self.pruned = failures, 0.0, Flag()

    async def prune(self, older_than: float, *, dry_run: bool = False) -> dict[str, int]:
        self.failures -= 1
        if self.failures >= 0:
            raise StoreError("it is away")
        counts = await super().prune(older_than, dry_run=dry_run)
        self.older_than = older_than
        self.pruned.set()
        return counts


async def pruned(store: Watched, keep_days: float) -> Any:
    """What is left of run `r` once a runtime has looked."""
    runtime = Runtime(store, keep_days=keep_days)
    on(runtime)
    assert runtime.worker is not None
    runtime.worker.start()
    await store.pruned.arrived()
    record = await store.find("r")
    await runtime.close()
    return record


def test_what_was_not_used_for_so_long_is_forgotten(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        first = Runtime(SQLStore(sqlite_url))
        await on(first, "Hello.").invoke_async("go", run_id="r")
        await first.close()
        store = Watched(sqlite_url)
        monkeypatch.setattr(worker_module, "PRUNE_SECONDS", 0.01)  # a store that was away is asked again
        assert await pruned(store, 2) is not None
        assert store.older_than == 2 * worker_module.DAY
        assert await pruned(Watched(sqlite_url, failures=2), 0) is None
        assert "old rows can't be pruned: it is away" in caplog.text

    play(main)


@pytest.mark.parametrize("keep_days", [-1, "7"])
def test_how_long_is_a_number(keep_days: Any) -> None:
    with pytest.raises(ConfigurationError, match="keep_days is"):
        Runtime(keep_days=keep_days)


def test_nothing_is_forgotten_by_a_clock_that_jumps(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be wrong, and be put right: what is old is known when it has kept pace for a while."""
    monkeypatch.setattr(worker_module, "PRUNE_SECONDS", 0.5)  # much longer than a machine at work stands still

    class Jumping(Watched):
        steps, ahead = 4, 0.0

        async def clock(self) -> float:
            if self.steps:
                assert not self.pruned.is_set()
                self.steps, self.ahead = self.steps - 1, self.ahead + 40 * worker_module.DAY
            return await super().clock() + self.ahead

    async def main() -> None:
        store = Jumping(sqlite_url)
        await pruned(store, 30)
        assert store.steps == 0

    play(main)

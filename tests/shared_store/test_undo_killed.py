# SPDX-License-Identifier: Apache-2.0
"""A worker process is killed while calls of it can be undone, are about to be, or are half undone. The process that
ends its runs undoes each call that nobody had begun to undo, and names the others. No call is undone twice.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from andon import CancelCause, RunEvent, RunStatus, Runtime, ToolOutcome, ToolReceipt
from tests.shared_store.helpers import LEASE, check_stored, ended, found, runtimes, store_of, stored_events
from tests.shared_store.undo_worker import NOTES, SCENES, noted, scene
from tests.shared_store.worker import Worker
from tests.support import play
from tests.support.processes import eventually_gone


@pytest.fixture(autouse=True)
def _notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NOTES, str(tmp_path / "notes"))


async def call_in(runtime: Runtime, name: str) -> ToolReceipt:
    receipt = (await found(runtime, name)).receipt
    assert receipt is not None
    (call,) = receipt.tools
    return call


async def told_in(runtime: Runtime, name: str) -> str:
    messages = await store_of(runtime).added(name) or []
    ((result,),) = [message.tool_results for message in messages if message.tool_results]
    return result.content


def undone() -> dict[str, list[int]]:
    """For each call that was undone, the processes that did it."""
    found: dict[str, list[int]] = {}
    for pid, what, *words in noted():
        if what == "undid":
            found.setdefault(words[0], []).append(int(pid))
    return found


def test_what_a_killed_worker_has_not_undone_is_undone_or_named(url: str) -> None:
    async def main() -> None:
        worker = Worker(url, LEASE, *SCENES, module="tests.shared_store.undo_worker")
        try:
            await asyncio.to_thread(worker.reached, *SCENES)
            async with runtimes(url, 1, LEASE) as (there,):
                keepers = [scene(name, there, lambda: None) for name in SCENES]  # a runtime does not keep them
                assert there.worker is not None
                there.worker.start()
                await there.cancel(run_id="half-undone", by="ann")
                await asyncio.to_thread(worker.reached, "half-undone")
                await there.cancel(run_id="abandoned", by="ann")
                await ended(there, "abandoned")  # its thread goes on, and would be undone later
                worker.kill()
                await there.cancel(run_id="paused", by="ann")
                for name in SCENES:
                    await ended(there, name)
                await _check_undone_here(there, worker.pid)
                await _check_half_undone(there, worker.pid)
                await _check_abandoned(there)
                assert [keeper.id for keeper in keepers] == list(SCENES)
        finally:
            worker.kill()

    play(main)


async def _check_undone_here(there: Runtime, killed: int) -> None:
    causes = {
        "at-work": CancelCause.lost,
        "in-process": CancelCause.lost,
        "cleaning-up": CancelCause.user,
        "paused": CancelCause.user,
    }
    for name, cause in causes.items():
        await check_stored(there, name, RunStatus.cancelled, cause)
        call = await call_in(there, name)
        assert (call.outcome, call.undo) == (ToolOutcome.compensated, None), name
        (by,) = undone()[name]
        assert by != killed
        kinds = [event.event for event in await stored_events(there, name)]
        assert kinds.count(RunEvent.tool_undo_started) == 1
        assert "undo" in await told_in(there, name)
    (works,) = [int(pid) for pid, what, *_ in noted() if what == "works"]
    eventually_gone(works)


async def _check_half_undone(there: Runtime, killed: int) -> None:
    record = await check_stored(there, "half-undone", RunStatus.cancelled, CancelCause.user)
    assert record.receipt is not None
    assert record.receipt.by == "ann"
    call = await call_in(there, "half-undone")
    assert call.outcome is ToolOutcome.cut
    assert call.undo == "another process had begun to undo it, and is gone; how far it came is unknown"
    assert undone()["half-undone"] == [killed]
    told = await told_in(there, "half-undone")
    assert "could not be undone: another process had begun to undo it" in told


async def _check_abandoned(there: Runtime) -> None:
    """Its run had ended before. The receipt says what its undo depends on."""
    call = await call_in(there, "abandoned")
    assert call.outcome is ToolOutcome.abandoned
    assert call.undo == "it is undone when it has ended, unless its process ends first"
    assert "abandoned" not in undone()

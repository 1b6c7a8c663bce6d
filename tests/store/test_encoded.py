# SPDX-License-Identifier: Apache-2.0
"""What many runs have done is written in several transactions, because others wait for each."""

from __future__ import annotations

from typing import Any

import pytest

from andon.core.shared.store import Lease, Progress
from andon.store.sql import encoded, leases, postgres_fast
from andon.store.sql.encoded import EncodedProgress, in_parts
from tests.store.making import KEY, LONG, events, opened, record, said
from tests.support import play


def news(run_id: str, *sizes: int, messages: int | None = None) -> EncodedProgress:
    rows = [(seq, "x" * size) for seq, size in enumerate(sizes, 1)]
    return EncodedProgress(Lease(run_id, 1), None if messages is None else "x" * messages, rows, None)


def test_parts_are_not_much_larger_than_they_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoded, "PART", 100)
    batch = [news("a", 60), news("b", 30, 10), news("c", 300), news("d", messages=99), news("e"), news("f", 1)]
    parts = list(in_parts(iter(batch)))
    assert [each.size for each in batch] == [60, 40, 300, 99, 0, 1]
    assert [[each.lease.run_id for each in part] for part in parts] == [["a", "b"], ["c"], ["d", "e", "f"]]
    assert list(in_parts([])) == []
    assert list(in_parts([news("a", 5)])) == [[news("a", 5)]]


def test_a_part_is_made_when_the_one_before_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is JSON in it does not lie about while others are written."""
    monkeypatch.setattr(encoded, "PART", 100)
    made: list[str] = []

    def making() -> Any:
        for run_id in ("a", "b", "c"):
            made.append(run_id)
            yield news(run_id, 100)

    parts = in_parts(making())
    next(parts)
    assert made == ["a"]


def test_the_progress_of_many_large_runs_is_several_transactions(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it is written, and all that nobody holds any more is told of, whichever part it was in."""
    monkeypatch.setattr(encoded, "PART", 2_000)
    namesake: Any = leases if url.startswith("sqlite") else postgres_fast
    write, parts = namesake.write, list[list[str]]()

    def noting(tx: Any, batch: list[EncodedProgress]) -> list[str]:
        parts.append([each.lease.run_id for each in batch])
        refused: list[str] = write(tx, batch)
        return refused

    monkeypatch.setattr(namesake, "write", noting)

    async def main() -> None:
        async with opened(url) as store:
            batch = []
            for number in range(6):
                run_id, key = f"r{number}", KEY._replace(session_id=f"s{number}")
                granted = await store.enter(record(run_id, session=key), "me", LONG, "reject")
                lease = Lease(run_id, 9) if number in (1, 4) else granted  # someone else has those two
                batch.append(Progress(lease, said("x" * 500), events(run_id, (1, 2), key)))
            assert sorted(await store.write(batch)) == ["r1", "r4"]
            for number in (0, 2, 3, 5):
                key = KEY._replace(session_id=f"s{number}")
                assert await store.load(key) == said("x" * 500)
                assert await store.read_events(f"r{number}", 0, 9) == events(f"r{number}", (1, 2), key)
            assert await store.write([]) == []

    play(main)
    assert parts == [["r0", "r1"], ["r2", "r3"], ["r4", "r5"]]

# SPDX-License-Identifier: Apache-2.0
"""A batch of events is one row, and reading gives the events: each once, as it was written first."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from andon import Event, RunEvent, RunStatus, SessionKey
from andon.core.events import ContextView, ProgressView, ToolView
from andon.core.journal import Journal
from andon.core.receipt import CancelRequest, Interrupt, Receipt
from andon.core.shared.store import Lease, Progress
from andon.core.states import CancelCause, CancelMode, FinishReason, Phase, ToolOutcome
from andon.messages import ToolCall, Usage
from andon.store.sql import SQLStore, batches
from tests.store.making import KEY, LONG, events, opened, record, said
from tests.store.test_schema import execute
from tests.support import play

OTHER = SessionKey("scout", "ada", "inner")
DONE = record("r1", RunStatus.completed)


async def begun(store: SQLStore, run_id: str = "r1") -> Lease:
    lease = await store.enter(record(run_id), "me", LONG, "queue")
    await store.take_turn(lease)
    return lease


def read(rows: Sequence[tuple[int, str]]) -> list[Event]:
    return [
        event for last, batch in rows for event in batches.read_row(last, batch, "r1", KEY.session_id, KEY.agent_id)
    ]


def numbered(*found: Event) -> list[Event]:
    return [msgspec.structs.replace(event, seq=seq) for seq, event in enumerate(found, 1)]


def told(found: Sequence[Event]) -> list[tuple[int, str]]:
    return [(event.seq, event.content) for event in found]


def otherwise(run_id: str, numbers: Sequence[int]) -> list[Event]:
    """The same numbers, and other texts."""
    return [msgspec.structs.replace(event, content="too late") for event in events(run_id, numbers)]


# -- one row ----------------------------------------------------------------------------------------------------------


def test_a_batch_is_a_row_and_a_token_costs_few_bytes(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            lease = await begun(store)
            tokens = [
                Event(RunEvent.run_content, "r1", "s1", "helper", seq, 1754000000.1234567 + seq / 100, " word")
                for seq in range(1, 101)
            ]
            for start in range(0, 100, 10):
                await store.write([Progress(lease, None, tokens[start : start + 10])])
            assert told(await store.read_events("r1", 0, 200)) == told(tokens)

    play(main)
    ((count, size),) = execute(url, "SELECT count(*), sum(length(batch)) FROM andon_events")
    assert count == 10
    assert isinstance(size, int)
    assert size < 100 * 13  # 5 of which are the text


def everything() -> list[Event]:
    """A run's events of every kind, some of them another run's."""
    request = CancelRequest(CancelCause.user, "enough", "ada", CancelMode.now, None, 1.25)
    receipt = Receipt.of(request, CancelMode.now, Phase.streaming, [], Usage(1, None), [])
    own, child = Journal("r1", KEY.session_id, KEY.agent_id), Journal("c1", OTHER.session_id, OTHER.agent_id)
    own.append(RunEvent.run_started, parent_run_id="r0")
    own.append(RunEvent.reasoning, "Hm.")
    own.append(RunEvent.reasoning, " So.")
    for text in ("Once", "", ' "upon"', "\\ a\n", "\x00\u2028𝄞"):
        own.append(RunEvent.run_content, text)
    child.append(RunEvent.run_started, parent_run_id="r1")
    for text in ("I ", "see"):
        child.append(RunEvent.run_content, text)
    child.append(RunEvent.reasoning, "land")
    child.append(RunEvent.run_completed, "I see", status=RunStatus.completed, usage=Usage(3, 4))
    view = ToolView("t1", "look", {"deep": [{"er": None}], "big": 2**70, "é": 1.5})
    own.append(RunEvent.tool_call_started, tool=view)
    for event in child.events:
        own.relay(event)
    own.append(RunEvent.run_content, "Land!")
    seen = msgspec.structs.replace(view, result="I see", outcome=ToolOutcome.completed)
    own.append(RunEvent.tool_call_completed, tool=seen)
    call = ToolCall("t2", "delete", {"path": "/"})
    own.append(RunEvent.model_retry, error="429", delay=0.5)
    own.append(RunEvent.run_paused, interrupts=[Interrupt("t2", "delete", {"path": "/"}, "t2", True, call)])
    own.append(RunEvent.cancel_requested, reason="enough")
    usage = Usage(1, None)
    own.append(RunEvent.run_cancelled, "Once", status=RunStatus.cancelled, usage=usage, receipt=receipt, reason="no")
    return [msgspec.structs.replace(event, created_at=event.seq / 8) for event in own.events]


def test_every_kind_of_event_comes_back_as_it_was(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            lease, all_of_it = await begun(store), everything()
            await store.write([Progress(lease, None, all_of_it[:-1])])
            assert await store.finish(lease, DONE, said("One"), all_of_it[-1:]) is None
            assert await store.read_events("r1", 0, 100) == all_of_it
            for after in range(len(all_of_it)):
                assert await store.read_events("r1", after, 1) == all_of_it[after : after + 1]
            assert await store.last_event("r1") == all_of_it[-1]

    play(main)


def test_a_text_that_tells_more_than_its_text_keeps_it() -> None:
    plain = events("r1", (1,))[0]
    empty: dict[str, Any] = {"reason": "", "error": "", "parent_run_id": "", "interrupts": [], "delay": 0.0}
    empty["output"] = {}
    full = {"tool": ToolView("t", "look", {}), "status": RunStatus.running, "usage": Usage()}
    request = CancelRequest(CancelCause.user, None, None, CancelMode.now, None, 1.25)
    full["context"] = ContextView(9, 3, 900, 300)
    full["finish_reason"] = FinishReason.length
    full |= {"progress": ProgressView(1, None, None), "call_id": ""}
    full["receipt"] = Receipt.of(request, CancelMode.now, Phase.waiting, [], Usage(), [])
    facts = empty | full
    assert set(facts) == {field.name for field in msgspec.structs.fields(Event) if not field.required} - {"content"}
    for name, fact in facts.items():
        odd = msgspec.structs.replace(plain, **{name: fact})
        batch = numbered(plain, odd, plain, msgspec.structs.replace(odd, event=RunEvent.reasoning), plain)
        assert read(batches.write_rows("r1", batch)) == batch


def test_times_are_kept_to_a_millisecond_and_never_go_backwards() -> None:
    texts = [
        Event(RunEvent.run_content, "r1", "s1", "helper", 1, 1754000000.1 + number * 0.00037, "x")
        for number in range(99)
    ]
    started = msgspec.structs.replace(texts[0], event=RunEvent.tool_call_started)
    mixed = [
        msgspec.structs.replace(started, created_at=each.created_at) if not at % 7 else each
        for at, each in enumerate(texts)
    ]
    batch = numbered(*mixed)
    found = read(batches.write_rows("r1", batch[:50]) + batches.write_rows("r1", batch[50:]))
    for kept, event in zip(found, batch, strict=True):
        assert event.created_at - 0.001 < kept.created_at <= event.created_at
    assert all(before.created_at <= after.created_at for before, after in pairwise(found))


def test_a_clock_that_is_set_back_is_told_as_it_was() -> None:
    batch = numbered(*(msgspec.structs.replace(events("r1", (1,))[0], created_at=at) for at in (9.5, 2.5, 4.5)))
    assert read(batches.write_rows("r1", batch)) == batch


def test_every_gap_between_two_texts_comes_back_short_ones_as_a_letter() -> None:
    for gaps in ([0, 9, 10, 35, 36, 61], [61, 62], [0, 3600_000]):
        times = [0.0, *itertools.accumulate(gap / 1000 + 1e-7 for gap in gaps)]
        batch = numbered(*(msgspec.structs.replace(events("r1", (1,))[0], created_at=at) for at in times))
        rows = batches.write_rows("r1", batch)
        found = [round((after.created_at - before.created_at) * 1000) for before, after in pairwise(read(rows))]
        assert found == gaps
        assert ('"09AZaz"' in rows[0][1]) == (max(gaps) == 61)


def test_gaps_that_an_older_version_has_written_as_numbers_are_read() -> None:
    found = read([(3, '[[2.5,["a ","b ","c"],[250,500]]]')])
    assert [(event.seq, event.content, event.created_at) for event in found] == [
        (1, "a ", 2.5),
        (2, "b ", 2.75),
        (3, "c", 3.25),
    ]


def test_what_json_has_no_form_for_is_kept_as_text(url: str) -> None:
    endless: list[Any] = []
    endless.append(endless)
    odd = {"half": "\ud800", "thing": OTHER, "set": {1}, "endless": endless}
    whole, half = (Event(RunEvent.run_content, "r1", "s1", "helper", 0, 2.5, text) for text in ("whole", "half \udfff"))
    call = Event(RunEvent.tool_call_started, "r1", "s1", "helper", 0, 2.5, tool=ToolView("t", "look", odd))
    theirs = Event(RunEvent.run_content, "c\ud800", "s\ud800", "scout", 0, 2.5, "theirs")

    async def main() -> None:
        async with opened(url) as store:
            lease = await begun(store)
            batch = numbered(whole, half, call, theirs, whole)
            await store.write([Progress(lease, None, batch)])
            found = await store.read_events("r1", 0, 9)
            assert told(found) == [(1, "whole"), (2, "half ?"), (3, ""), (4, "theirs"), (5, "whole")]
            assert [found[place].run_id for place in (0, 1, 2, 4)] == ["r1"] * 4
            assert (found[3].run_id, found[3].session_id, found[3].agent_id) == ("c?", "s?", "scout")
            assert found[2].tool is not None
            arguments = found[2].tool.arguments
            assert (arguments["half"], arguments["set"]) == ("?", [1])
            assert "…" in str(arguments["endless"])

    play(main)


def test_a_runs_own_names_may_be_any(url: str) -> None:
    key, run_id = SessionKey("a\x00", None, "half \ud800"), "r\ud800"

    async def main() -> None:
        async with opened(url) as store:
            lease = await store.enter(record(run_id, session=key), "me", LONG, "queue")
            batch = events(run_id, (1, 2), key)
            await store.write([Progress(lease, None, batch)])
            assert await store.read_events(run_id, 0, 9) == batch
            assert await store.last_event(run_id) == batch[-1]

    play(main)


# -- several rows -----------------------------------------------------------------------------------------------------


def test_reading_begins_and_ends_anywhere_in_a_row(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "EVENTS_IN_A_ROW", 4)

    async def main() -> None:
        async with opened(url) as store:
            lease, whole = await begun(store), events("r1", range(1, 18))
            await store.write([Progress(lease, None, whole[:3])])
            await store.write([Progress(lease, None, whole[3:])])  # 4 rows
            for after in range(18):
                for limit in range(1, 19):
                    assert await store.read_events("r1", after, limit) == whole[after : after + limit]

    play(main)
    last = execute(url, "SELECT seq FROM andon_events ORDER BY seq")
    assert last == [(3,), (7,), (11,), (15,), (17,)]


def test_only_those_rows_are_read_that_have_what_is_wanted(url: str) -> None:
    """A run may have a million events, and who follows it asks for the next ones."""

    def spoil(seq: int) -> None:
        execute(url, f"UPDATE andon_events SET batch = 'nobody reads this' WHERE seq = {seq}")

    async def main() -> None:
        async with opened(url) as store:
            lease, whole = await begun(store), events("r1", range(1, 13))
            for start in range(0, 12, 3):
                await store.write([Progress(lease, None, whole[start : start + 3])])
            spoil(3)
            assert await store.last_event("r1") == whole[-1]
            assert await store.read_events("r1", 3, 9) == whole[3:]
            spoil(12)
            assert await store.read_events("r1", 3, 6) == whole[3:9]
            spoil(9)
            assert await store.read_events("r1", 4, 2) == whole[4:6]

    play(main)


def test_an_event_that_is_written_already_stays_as_it_is(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            lease = await begun(store)
            await store.write([Progress(lease, None, events("r1", (1, 2, 3)))])
            await store.write([Progress(lease, None, otherwise("r1", (1, 2, 3)))])  # the answer was lost
            assert await store.read_events("r1", 0, 9) == events("r1", (1, 2, 3))
            later = [*otherwise("r1", (2, 3)), *events("r1", (4, 5))]
            await store.write([Progress(lease, said("One"), later)])
            await store.write([Progress(lease, said("One"), otherwise("r1", (4, 5)))])
            assert await store.read_events("r1", 0, 9) == events("r1", range(1, 6))
            end = [*otherwise("r1", (1, 2, 3, 4, 5)), *events("r1", (6,))]
            assert await store.finish(lease, DONE, said("One"), end) is None
            whole = events("r1", range(1, 7))
            for after in range(7):
                for limit in range(1, 8):
                    assert await store.read_events("r1", after, limit) == whole[after : after + limit]
            assert await store.last_event("r1") == whole[-1]
            assert (await store.prune(ALL, dry_run=True))["events"] == 6
            assert (await store.prune(ALL))["events"] == 6

    play(main)


ALL = -1.0


def test_a_paused_run_is_taken_up_after_its_last_event(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            lease = await begun(store)
            await store.write([Progress(lease, None, events("r1", (1, 2)))])
            end = events("r1", range(1, 6))
            assert await store.finish(lease, record("r1", RunStatus.paused), said("One"), end) is None
            taken = await store.take_up("r1", "you", LONG)
            assert taken is not None
            assert taken.last_seq == 5
            assert await store.finish(taken.lease, DONE, said("One"), []) is None
            assert await store.read_events("r1", 0, 9) == end
            assert (await store.prune(ALL))["events"] == 5

    play(main)


def test_the_last_event_of_what_is_not_there_is_none(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            await begun(store)
            assert [await store.last_event(run_id) for run_id in ("r1", "r0")] == [None, None]

    play(main)


def test_many_runs_write_together(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            keys = {f"r{number}": KEY._replace(session_id=f"s{number}") for number in range(30)}
            leases = await asyncio.gather(
                *(store.enter(record(run_id, session=key), "me", LONG, "queue") for run_id, key in keys.items())
            )
            for numbers in ((1, 2, 3), (3, 4)):
                batch = [Progress(each, None, events(each.run_id, numbers, keys[each.run_id])) for each in leases]
                assert await store.write(batch) == []
            for run_id, key in keys.items():
                assert await store.read_events(run_id, 0, 9) == events(run_id, range(1, 5), key)

    play(main)
    assert execute(url, "SELECT count(*) FROM andon_events") == [(60,)]

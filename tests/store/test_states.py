# SPDX-License-Identifier: Apache-2.0
"""The state of a session: how large it may be, who changes it at once, and where it is read."""

from __future__ import annotations

import asyncio
import itertools
import sys
import threading
from functools import partial
from typing import Any

import pytest

from andon import ConfigurationError, MemoryStore, RunStatus, SessionKey, StateTooLargeError
from andon.errors import StoreError
from andon.store import open_store
from andon.store.sql import SQLStore, codec, states
from andon.store.sql.store import CHANGE_TRIES
from andon.store.state import MAX_STATE
from tests.store.making import KEY, LONG, events, opened, opened_any, record, said
from tests.store.test_schema import execute
from tests.support import Worker, play


def test_a_state_that_is_too_large_is_refused_and_nothing_changes(any_url: str) -> None:
    async def main() -> None:
        async with opened_any(any_url) as store:
            store.max_state = 100
            for create in (True, False):
                with pytest.raises(StateTooLargeError, match=r"would take 1\d\d bytes as JSON, and may take 100"):
                    await (store.create_session if create else store.update_session)(KEY, {"x": "é" * 60})
                if create:
                    assert await store.find_session(KEY) is None
                    assert await store.create_session(KEY, {"a": 1}) is not None
            kept = await store.update_session(KEY, {"x": "y" * 80})
            assert kept is not None
            with pytest.raises(StateTooLargeError):  # it is the whole of it that counts
                await store.update_session(KEY, {"z": "y" * 10})
            found = await store.find_session(KEY)
            assert found is not None
            assert found.state == {"a": 1, "x": "y" * 80}
            assert await store.update_session(KEY, {"x": None, "z": "y" * 10}) is not None  # there is room again

    play(main)


def test_the_limit_is_the_stores(sqlite_url: str) -> None:
    assert MemoryStore().max_state == SQLStore(sqlite_url).max_state == MAX_STATE == 262_144
    assert MemoryStore(max_state=5).max_state == SQLStore(sqlite_url, max_state=5).max_state == 5
    for wrong in (0, -1, 1.5, "5", True):
        with pytest.raises(ConfigurationError, match="max_state"):
            MemoryStore(max_state=wrong)  # type: ignore[arg-type]


def test_changes_at_once_are_all_kept(any_url: str) -> None:
    async def main() -> None:
        async with opened_any(any_url) as store:
            await store.create_session(KEY, {})
            other = store if isinstance(store, MemoryStore) else open_store(any_url)
            stores: list[Any] = [store, other]
            await asyncio.gather(*(stores[n % 2].update_session(KEY, {f"k{n}": n}) for n in range(20)))
            found = await store.find_session(KEY)
            assert found is not None
            assert found.state == {f"k{n}": n for n in range(20)}
            if isinstance(other, SQLStore) and other is not store:
                await other.close()

    play(main)


def test_changes_at_once_on_one_loop_take_turns(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each would make all the others begin again: forty of them, eight hundred writes."""
    writes: list[bool] = []
    change = states.change

    def counting(*arguments: Any, **named: Any) -> float | None:
        now = change(*arguments, **named)
        writes.append(now is not None)
        return now

    monkeypatch.setattr(states, "change", counting)

    async def main() -> None:
        async with opened(url) as store:
            await store.create_session(KEY, {})
            await asyncio.gather(*(store.update_session(KEY, {f"k{n}": n}) for n in range(40)))
            found = await store.find_session(KEY)
            assert found is not None
            assert found.state == {f"k{n}": n for n in range(40)}
            assert not store._locks._locks, "nobody waits any more"

    play(main)
    assert writes == [True] * 40


def test_a_change_waits_for_no_other_session_and_for_none_that_was_cancelled(url: str) -> None:

    async def main() -> None:
        async with opened(url) as store:
            other = KEY._replace(session_id="s2")
            for key in (KEY, other):
                await store.create_session(key, {})
            async with store._locks.of(KEY):
                waiting = asyncio.create_task(store.update_session(KEY, {"a": 1}))
                assert await store.update_session(other, {"b": 2}) is not None
                assert not waiting.done()
                leaving = asyncio.create_task(store.update_session(KEY, {"c": 3}))
                await asyncio.sleep(0)
                leaving.cancel()
            changed = await waiting
            assert changed is not None
            assert changed.state == {"a": 1}
            with pytest.raises(asyncio.CancelledError):
                await leaving

    play(main)


def test_one_store_changes_a_state_from_many_loops(url: str) -> None:
    store = SQLStore(url)
    asyncio.run(store.create_session(KEY, {}))

    def work(number: int) -> None:
        async def main() -> None:
            await asyncio.gather(*(store.update_session(KEY, {f"k{number}.{n}": n}) for n in range(4)))

        asyncio.run(main())

    workers = [Worker(partial(work, number)) for number in range(4)]
    for worker in workers:
        worker.done()
    found = asyncio.run(store.find_session(KEY))
    assert found is not None
    assert len(found.state) == 16
    asyncio.run(store.close())


@pytest.mark.parametrize("times", [CHANGE_TRIES - 1, CHANGE_TRIES])
def test_a_change_that_is_overtaken_again_and_again_gives_up(
    url: str, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process changes the state each time between what is read here and what is written."""
    tries = itertools.count(1)

    async def main() -> None:
        async with opened(url) as store:
            await store.create_session(KEY, {"a": 1})
            written = store._encode_state

            def overtaken(state: dict[str, Any]) -> str:
                if next(tries) <= times:
                    execute(url, "UPDATE andon_states SET version = version + 1")
                return written(state)

            monkeypatch.setattr(store, "_encode_state", overtaken)
            if times < CHANGE_TRIES:
                changed = await store.update_session(KEY, {"b": 2})
                assert changed is not None
                assert changed.state == {"a": 1, "b": 2}
            else:
                with pytest.raises(StoreError, match="keep changing the state of session 's1': try again"):
                    await store.update_session(KEY, {"b": 2})
                found = await store.find_session(KEY)
                assert found is not None
                assert found.state == {"a": 1}

    play(main)


def test_a_deleted_session_takes_its_state_with_it(any_url: str) -> None:
    async def main() -> None:
        async with opened_any(any_url) as store:
            await store.create_session(KEY, {"a": 1})
            assert await store.delete_session(KEY)
            assert await store.update_session(KEY, {"b": 1}) is None
            again = await store.create_session(KEY, {})
            assert again is not None
            assert again.state == {}
            found = await store.find_session(KEY)
            assert found is not None
            assert found.state == {}

    play(main)


def test_sessions_are_listed_page_by_page_without_their_states(any_url: str) -> None:
    async def main() -> None:
        async with opened_any(any_url) as store:
            names = [f"s{number}" for number in range(7)]
            for name in names:
                await store.create_session(SessionKey("helper", "ada", name), {"large": "x" * 1000})
            assert await store.count_sessions("helper", "ada") == 7
            assert await store.count_sessions("helper", "bob") == 0
            listed: list[str] = []
            after = None
            while page := await store.list_sessions("helper", "ada", 3, after):
                assert len(page) <= 3
                assert all(record.state == {} for record in page)
                listed += [record.key.session_id for record in page]
                after = page[-1].created_at, page[-1].key.session_id
                await store.delete_session(page[0].key)  # what goes meanwhile shifts nothing
            assert listed == names

    play(main)


def test_no_json_is_read_or_written_in_the_threads_that_others_wait_for(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They do renewals, cancels and ends as well."""
    busy: set[str] = set()

    def watched(name: str) -> Any:
        work = getattr(codec, name)

        def do(value: Any) -> Any:
            if "large" in str(value) and threading.current_thread().name.startswith("andon-store"):
                busy.add(name)
            return work(value)

        return do

    for name in ("dump", "read_state", "read_messages", "read_record"):
        do = watched(name)
        for module in [each for each in sys.modules.values() if each.__name__.startswith("andon.store.sql")]:
            if hasattr(module, name):
                monkeypatch.setattr(module, name, do)

    async def main() -> None:
        async with opened(url) as store:
            await store.create_session(KEY, {"large": 1})
            await store.update_session(KEY, {"more": "large"})
            await store.find_session(KEY)
            entering = record("r1", content="large")
            lease = await store.enter(entering, "me", LONG, "reject")
            assert await store.finish(lease, record("r1", RunStatus.paused), said("large"), events("r1", (1,))) is None
            taken = await store.take_up("r1", "you", LONG)
            assert taken is not None
            ended = record("r1", RunStatus.completed, content="large")
            assert await store.finish(taken.lease, ended, said("large"), events("r1", (2,))) is None
            assert (await store.history(KEY))[0][0].content == "large"
            assert await store.load(KEY) == await store.added("r1") == said("large")
            assert await store.find("r1") is not None

    play(main)
    assert busy == set()

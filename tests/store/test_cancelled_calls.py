# SPDX-License-Identifier: Apache-2.0
"""Whoever waits for a store may be cancelled, and may lose its loop: a call does all of its work or none."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import threading
import warnings
import weakref

import pytest

from andon import RunStatus
from andon.core.selection import Selection
from andon.store.sql import SQLStore, database, transaction
from andon.store.sql.threads import Answer, ThreadPool
from tests.store.making import KEY, LONG, asking, opened, record, said
from tests.support import Flag, Worker, eventually, play, until


class Gate:
    """Blocking work that says when it has begun, and goes on when it may."""

    def __init__(self) -> None:
        self.begun, self.may_go_on, self.ended = Flag(), Flag(), Flag()

    def __call__(self, answer: Answer[str]) -> None:
        self.begun.set()
        self.may_go_on.wait()
        self.ended.set()
        answer("done")


def at_once(answer: Answer[str]) -> None:
    answer("at once")


def test_work_that_has_begun_is_done_and_what_has_not_is_taken_back() -> None:
    async def main() -> None:
        pool, first, second = ThreadPool("test", 1), Gate(), Gate()
        waiting, queued = asyncio.create_task(pool.run(first)), asyncio.create_task(pool.run(second))
        await first.begun.arrived()
        for task in (waiting, queued):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert not first.ended.is_set()
        first.may_go_on.set()
        await first.ended.arrived()
        assert await pool.run(at_once) == "at once"
        assert not second.begun.is_set()
        pool.close()

    play(main)


def test_a_loop_that_is_closed_takes_nothing_with_it() -> None:
    pool, gate = ThreadPool("test", 1), Gate()

    async def leave() -> None:
        task = asyncio.create_task(pool.run(gate))
        await gate.begun.arrived()
        task.cancel()

    asyncio.run(leave())
    gate.may_go_on.set()
    gate.ended.wait()

    async def main() -> None:
        assert await pool.run(at_once) == "at once"

    asyncio.run(main())
    pool.close()


def test_a_lane_starts_no_more_threads_than_it_needs() -> None:
    async def main() -> None:
        pool = ThreadPool("test-pool", 3)
        for _ in range(5):
            await pool.run(at_once)
        gates = [Gate() for _ in range(5)]
        tasks = [asyncio.create_task(pool.run(gate)) for gate in gates]
        await asyncio.gather(*(gate.begun.arrived() for gate in gates[:3]))
        names = [thread.name for thread in threading.enumerate()]
        assert names.count("test-pool") == 3
        for gate in gates:
            gate.may_go_on.set()
        assert await asyncio.gather(*tasks) == ["done"] * 5
        pool.close()

    play(main)


def test_only_the_next_run_in_the_queue_waits_for_what_comes_after_the_answer(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "andon")
    after = Gate()

    def answer_first(answer: Answer[str]) -> None:
        answer("first")
        after(lambda _: None)
        raise RuntimeError("nobody waits for this")

    async def main() -> None:
        pool = ThreadPool("test", 1)
        assert await pool.run(answer_first) == "first"
        following = asyncio.create_task(pool.run(at_once))
        await after.begun.arrived()
        assert not following.done()
        after.may_go_on.set()
        assert await following == "at once"
        pool.close()

    play(main)
    assert "what came after the answer failed: RuntimeError: nobody waits for this" in caplog.text


def test_a_cancelled_call_has_done_all_of_its_work_or_none(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            lease = await store.enter(record("r1"), "me", LONG, "reject")
            for turn in range(30):
                task = asyncio.create_task(store.request_cancel(Selection(run_id="r1"), asking(reason=f"{turn}")))
                for _ in range(turn):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
            # In the same pool as those, or, with Postgres, behind their locks.
            await store.request_cancel(Selection(run_id="r1"), asking(reason="last"))
            log = await store.cancel_log(Selection(), 100)
            assert len(log) == 1
            assert (await store.renew([lease], None)).cancels == {"r1": log[0].request}

    play(main)


def test_an_error_in_a_transaction_undoes_it(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:

            def half(tx: transaction.Tx) -> None:
                from andon.store.sql import sessions
                from andon.store.sql.codec import dump

                ended = record("r1", RunStatus.completed)
                sessions.save(tx, ended, dump(ended), dump(said("One")))
                raise KeyError("half way")

            with pytest.raises(KeyError, match="half way"):
                await store._db.change(half)
            assert await store.find("r1") is None
            assert await store.find_session(KEY) is None

    play(main)


def _threads() -> set[threading.Thread]:
    return {each for each in threading.enumerate() if each.name.startswith("andon-store")}


def test_a_store_that_is_forgotten_leaves_no_thread_and_no_connection(url: str) -> None:
    before = _threads()

    async def main() -> None:
        store = SQLStore(url)
        woken = Flag()
        store.listen(lambda *_: woken.set())
        await store.ping()
        await woken.arrived()
        gone = weakref.ref(store)
        del store
        gc.collect()
        assert gone() is None
        await until(lambda: _threads() <= before)

    play(main)


def test_a_store_may_be_dropped_by_a_caller_that_has_its_locks_and_while_it_works(sqlite_url: str) -> None:
    """The garbage collector comes at any moment, on any thread: it finds no lock to wait for, and waits for nobody."""
    before, forgetting = _threads(), [database.Database(sqlite_url)]
    hub, pools, work = forgetting[0].hub, forgetting[0]._pools, Gate()
    going = pools[0].submit(work)
    work.begun.wait()

    def forget() -> None:
        with contextlib.ExitStack() as stack:
            for lock in {hub._lock, *(pool._lock for pool in pools)}:
                stack.enter_context(lock)
            forgetting.clear()
            gc.collect()

    Worker(forget).done()
    assert not going.done()
    work.may_go_on.set()
    eventually(lambda: _threads() <= before)


def test_a_forked_child_has_connections_and_threads_of_its_own(url: str) -> None:
    store = SQLStore(url)

    async def enter() -> None:
        await store.enter(record("r1"), "me", LONG, "reject")

    async def look() -> None:
        assert await store.find("r1") == record("r1", RunStatus.running)
        await store.close()

    asyncio.run(enter())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer Pythons warn of threads at a fork, and that is what this is about
        child = os.fork()
    if child == 0:
        code = 1
        try:
            asyncio.run(look())
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    asyncio.run(look())

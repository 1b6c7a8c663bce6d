# SPDX-License-Identifier: Apache-2.0
"""The engine while the database is away, or refuses it: it goes on trying, says why once, and can be stopped."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import procrastinate
import psycopg
import psycopg_pool
import pytest
from procrastinate.exceptions import ConnectorException
from procrastinate.testing import InMemoryConnector

from andon.errors import StoreError
from andon.scale import engine as module
from andon.scale.engine import Engine, OncePerOutage
from tests.support import HANG

URL = "postgresql://ada:secret@db/andon"


async def _nothing(run_id: str) -> None: ...


def made(handle: Any = _nothing) -> Engine:
    """An engine whose tables are in the memory of this process."""
    engine = Engine(URL, ["andon:default:helper"], 1, handle, 10.0)
    engine._app = procrastinate.App(connector=InMemoryConnector())
    return engine


def lost(error: Exception) -> ConnectorException:
    """As the engine raises it."""
    raised = ConnectorException()
    raised.__cause__ = error
    return raised


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RESTART_SECONDS", 0)


def test_a_cancel_is_obeyed_though_the_engine_can_not_sign_off() -> None:
    """It raises the error of the database then, and forgets the cancel."""

    async def main() -> None:
        engine, working, calls = made(), asyncio.Event(), 0

        async def work() -> None:
            nonlocal calls
            calls += 1
            working.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if calls > 1:  # that is one too many, and asyncio must be able to end it
                    raise
                raise lost(psycopg.OperationalError("it is away")) from None

        engine._work = work  # type: ignore[method-assign]
        serving = asyncio.ensure_future(engine.serve())
        await working.wait()
        serving.cancel()
        done, _ = await asyncio.wait([serving], timeout=HANG)
        assert done
        assert serving.cancelled()
        assert calls == 1

    asyncio.run(main())


async def serve_until(engine: Engine, is_enough: Callable[[], bool], work: Callable[[], Exception | None]) -> None:
    """Serve, with this in place of the engine's work, until it has done enough."""
    enough = asyncio.Event()

    async def worked() -> None:
        if is_enough():
            enough.set()
            await asyncio.Event().wait()
        if (error := work()) is not None:
            raise error

    engine._work = worked  # type: ignore[method-assign]
    serving = asyncio.ensure_future(engine.serve())
    await asyncio.wait([serving, asyncio.ensure_future(enough.wait())], return_when=asyncio.FIRST_COMPLETED)
    assert not serving.done(), serving.exception()
    serving.cancel()
    await asyncio.wait([serving], timeout=HANG)
    assert serving.cancelled()


def test_a_database_that_is_away_at_the_start_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    engine, tries, worked = made(), [0], [0]
    opens, closes = engine._app.open_async, [0]

    async def open_async() -> Any:
        tries[0] += 1
        if tries[0] < 3:
            raise psycopg_pool.PoolTimeout("pool initialization incomplete after 30.0 sec")
        return await opens()

    async def close_async() -> None:
        closes[0] += 1

    def work() -> None:
        assert not engine.is_failing or tries[0] == 3
        worked[0] += 1

    engine._app.open_async = open_async  # type: ignore[assignment, method-assign]
    engine._app.close_async = close_async  # type: ignore[method-assign]
    assert engine.is_failing, "it is not connected yet"
    asyncio.run(serve_until(engine, lambda: worked[0] > 0, work))
    assert (tries[0], closes[0]) == (3, 3), "a pool that could not be opened is not used again"
    assert "no jobs are taken: the database postgresql://ada:***@db/andon could not be asked: pool init" in caplog.text


def test_why_no_jobs_are_taken_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    refused = psycopg.errors.InsufficientPrivilege("permission denied for table procrastinate_jobs")
    errors = [lost(refused) for _ in range(5)] + [lost(psycopg.OperationalError("it is away"))] * 5
    left = list(errors)
    engine = made()
    with caplog.at_level(logging.WARNING, "andon.scale.engine"):
        asyncio.run(serve_until(engine, lambda: not left, lambda: left.pop(0)))
    assert engine.is_failing
    said = [each.getMessage() for each in caplog.records]
    assert said == [
        "no jobs are taken: the database postgresql://ada:***@db/andon could not be asked: permission denied for table "
        "procrastinate_jobs. Give the user of the URL the right to use and make tables in this database.",
        "no jobs are taken: the database postgresql://ada:***@db/andon could not be asked: it is away. Trying again "
        "may help.",
    ]


def test_an_engine_that_ends_by_itself_begins_again(caplog: pytest.LogCaptureFixture) -> None:
    """It does that when the connection is lost on which it listens."""
    engine, times = made(), [0]

    def work() -> None:
        times[0] += 1

    with caplog.at_level(logging.WARNING, "andon.scale.engine"):
        asyncio.run(serve_until(engine, lambda: times[0] == 3, work))
    assert engine.is_failing
    (said,) = [each.getMessage() for each in caplog.records]
    assert "the connection that listens for jobs was lost" in said


@pytest.mark.parametrize(("error", "has_traceback"), [(StoreError("it is away"), False), (KeyError("a"), True)])
def test_a_job_that_is_not_handled(error: Exception, has_traceback: bool, caplog: pytest.LogCaptureFixture) -> None:
    """An outage of the database needs no traceback."""

    async def handle(run_id: str) -> None:
        raise error

    asyncio.run(made(handle)._take("r"))
    (record,) = caplog.records
    assert record.getMessage().startswith("the job of run r was not handled: ")
    assert bool(record.exc_info) is has_traceback


def test_a_pool_that_tries_again_and_again_is_heard_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    only, record = OncePerOutage(), logging.makeLogRecord({})
    passed = []
    for seconds in (0, 1, 2, 50, 100, 161, 162):
        now[0] = float(seconds)
        if only.filter(record):
            passed.append(seconds)
    assert passed == [0, 161]

# SPDX-License-Identifier: Apache-2.0
"""The connections of the engine, its signs of life, and jobs that are left behind."""

from __future__ import annotations

from typing import Any

import procrastinate
import psycopg
import pytest

from andon import RunStatus
from andon.core.shared.run_queue import TASK
from andon.scale.engine import Engine
from tests.store.making import KEY, LONG, events, opened, record, said
from tests.support import play


async def _handle(run_id: str) -> None:
    raise AssertionError(run_id)


def test_a_statement_of_the_engine_is_a_transaction_and_waits_for_no_disk(postgres_url: str) -> None:
    async def main() -> None:
        engine = Engine(postgres_url, ["andon:default:helper"], 1, _handle, 6.0)
        async with engine._app.open_async(), engine.connector.pool.connection() as connection:
            assert connection.autocommit
            found = await connection.execute("SELECT current_setting('synchronous_commit')")
            assert await found.fetchone() == ("off",)

    play(main)


@pytest.mark.parametrize(("query", "timeout"), [("", "10000"), ("tcp_user_timeout=4000", "4000")])
def test_a_database_that_has_vanished_is_noticed(postgres_url: str, query: str, timeout: str) -> None:
    """Also while something was sent that it has not confirmed: else the listener might wait for 15 minutes."""

    async def main() -> None:
        url = f"{postgres_url}{'&' if '?' in postgres_url else '?'}{query}"
        engine = Engine(url, ["andon:default:helper"], 1, _handle, 6.0)
        async with engine._app.open_async(), engine.connector._get_standalone_connection() as listener:
            settings = listener.info.get_parameters()
            assert settings["tcp_user_timeout"] == timeout
            assert (settings["keepalives_idle"], settings["connect_timeout"]) == ("5", "5")
            assert settings["application_name"] == "andon-jobs"

    play(main)


def test_a_connection_that_the_server_has_closed_is_not_used(postgres_url: str) -> None:
    """Nor is the server asked each time whether it has."""

    async def main() -> None:
        engine = Engine(postgres_url, ["andon:default:helper"], 1, _handle, 6.0)
        async with engine._app.open_async():
            pool = engine.connector.pool
            async with pool.connection() as connection:
                pid = connection.info.backend_pid
            with psycopg.connect(postgres_url, autocommit=True) as admin:
                found = "SELECT query FROM pg_stat_activity WHERE pid = %s"
                assert admin.execute(found, (pid,)).fetchone() == ("SET synchronous_commit TO off",)
                async with pool.connection():
                    assert admin.execute(found, (pid,)).fetchone() == ("SET synchronous_commit TO off",)
                admin.execute("SELECT pg_terminate_backend(%s, 10000)", (pid,))
            async with pool.connection() as connection:
                assert connection.info.backend_pid != pid
                await connection.execute("SELECT 1")

    play(main)


def test_the_engine_gives_a_sign_of_life_three_times_in_a_lease(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = dict[str, Any]()

    async def work(self: procrastinate.App, **options: Any) -> None:
        given.update(options)

    monkeypatch.setattr(procrastinate.App, "run_worker_async", work)
    engine = Engine(postgres_url, ["andon:default:helper"], 1, _handle, 6.0)
    play(engine._work)
    assert given["update_heartbeat_interval"] == 2.0
    assert given["stalled_worker_timeout"] > 2 * 6.0


SEND = """
INSERT INTO procrastinate_jobs (queue_name, task_name, queueing_lock, args, status, worker_id)
VALUES ('any', %s, %s, jsonb_build_object('run_id', %s::text), %s, %s)
"""


def test_jobs_of_dead_processes_are_deleted_after_a_lease(postgres_url: str) -> None:
    async def main() -> None:
        async with opened(postgres_url) as store:
            queue = store.run_queue()
            await queue.prepare()
            for run_id in ("live", "over"):
                lease = await store.enter(record(run_id, session=KEY._replace(session_id=run_id)), "me", LONG, "queue")
            end = record("over", RunStatus.completed, KEY._replace(session_id="over"))
            assert await store.finish(lease, end, said("One"), events("over", (1,))) is None
            with psycopg.connect(postgres_url, autocommit=True) as admin:
                admin.execute("UPDATE andon_runs SET ended = ended - 20 WHERE ended IS NOT NULL")
                workers = "INSERT INTO procrastinate_workers (last_heartbeat) VALUES (now() - %s * interval '1 second')"
                alive, dead = (
                    admin.execute(f"{workers} RETURNING id", (silence,)).fetchall()[0][0] for silence in (5, 20)
                )
                jobs = [
                    ("of a live one", TASK, "live", "doing", alive),
                    ("of a dead one", TASK, "live", "doing", dead),
                    ("of one that is gone", TASK, "live", "doing", None),
                    ("of a run that is over", TASK, "over", "doing", alive),
                    ("not taken", TASK, "over", "todo", None),
                    ("of another program", "another.task", "live", "doing", dead),
                ]
                for name, task, *rest in jobs:
                    admin.execute(SEND, (task, name, *rest))
                left = "SELECT queueing_lock FROM procrastinate_jobs ORDER BY id"
                for stale, names in (
                    (30.0, [name for name, *_ in jobs if name != "of one that is gone"]),
                    (10.0, ["of a live one", "not taken", "of another program"]),
                ):
                    await queue.clean(stale)
                    assert [name for (name,) in admin.execute(left)] == names

    play(main)

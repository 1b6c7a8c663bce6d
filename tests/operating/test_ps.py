# SPDX-License-Identifier: Apache-2.0
"""What operators see of workers and queues: `andon ps`, `GET /workers`, `/metrics`, the board; and `andon drain`."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from andon import Agent, Runtime
from andon.cli import ps, terminal
from andon.errors import SchemaError, StoreError
from andon.models.scripted import ScriptedModel
from andon.scale.overview import Overview, WorkerLine
from andon.server import metrics, queue_metrics
from andon.store.sql import SQLStore
from tests.operating.processes import Site, eventually, site
from tests.server.live import serving


@pytest.fixture
def here(tmp_path: Path, postgres_url: str) -> Iterator[Site]:
    with site(tmp_path, postgres_url) as made:
        yield made


def test_workers_and_queues_are_shown_by_server_and_database(here: Site) -> None:
    server = here.serve("--no-execute")
    for place in (("--url", server.url), ("--db", here.url)):
        code, printed = here.ask("ps", "--workers", *place)
        assert code == 0
        assert re.fullmatch(r"no workers at \S+: `andon worker` starts one; it needs Postgres\nno runs wait\n", printed)
    alpha = here.worker("alpha", "--queues", "fast,default", "--concurrency", "7")
    here.worker("beta", "--queues", "default")
    server.start("waiter", "serving")
    server.start("storyteller", "telling")  # in the queue "slow", which neither serves
    server.follow("waiter", "serving", until="ToolCallStarted")
    eventually(lambda: sum(each["runs"] for each in server.workers()["workers"]) == 1)

    for place in (("--url", server.url), ("--db", here.url)):
        code, printed = here.ask("ps", "--workers", "--json", *place)
        assert code == 0
        found = json.loads(printed)
        workers = {each["name"]: each for each in found["workers"]}
        assert {name: (each["concurrency"], each["queues"]) for name, each in workers.items()} == {
            "alpha": (7, ["fast", "default"]),
            "beta": (50, ["default"]),
        }
        assert {each["state"] for each in workers.values()} == {"working"}
        assert sorted(workers["alpha"]["agents"]) == ["helper", "janitor", "storyteller", "waiter"]
        (waits,) = found["queues"]
        assert (waits["queue"], waits["agent_id"], waits["ready"], waits["held_back"], waits["workers"]) == (
            *("slow", "storyteller"),
            *(1, 0, 0),
        )
        assert waits["lag"] > 0
        code, printed = here.ask("ps", "--workers", *place)
        assert re.search(r"^alpha +working +[01]/7 +fast,default +\S+ +\d+s$", printed, re.MULTILINE)
        assert re.search(r"^slow +storyteller +1 +0 +\d+\.\ds +none$", printed, re.MULTILINE)

        (holder,) = [name for name, each in workers.items() if each["runs"]]
        code, printed = here.ask("ps", "--json", *place)
        assert {each["run_id"]: each["held_by"] for each in json.loads(printed)} == {"serving": holder, "telling": None}
        code, printed = here.ask("ps", *place)
        assert re.search(rf"^serving +waiter +running .* {holder}$", printed, re.MULTILINE)

    with server.http.stream("GET", "/board/events") as stream:
        lines = (line[5:] for line in stream.iter_lines() if line.startswith("data:"))
        shown: dict[str, Any] = {}
        while shown.get("serving") != holder:
            shown |= {run["run_id"]: run.get("server") for run in json.loads(next(lines)).get("runs", ())}
    (here.folder / "go").touch()
    assert server.follow("waiter", "serving")[-1] == "RunCompleted"
    assert alpha.stop(signal.SIGTERM) == 0


def test_a_queue_of_a_long_name_is_shown_by_its_own(here: Site) -> None:
    """The engine's name of such a queue is a digest."""
    (here.folder / "long.py").write_text(
        "from andon import Agent\nfrom andon.models.scripted import ScriptedModel\n"
        f"agent = Agent({'a' * 40!r}, ScriptedModel(then='Hi.'), queue={'q' * 32!r})\n"
    )
    process = here.andon("serve", "long:agent", "--port", "0", "--no-execute")
    server = here.client(process.said(r"at (http://\S+)$")[1], process)
    server.start("a" * 40, "r")
    (waits,) = server.workers()["queues"]
    assert (waits["queue"], waits["agent_id"], waits["ready"]) == ("q" * 32, "a" * 40, 1)
    assert server.metrics()[f'andon_queue_ready{{queue="{"q" * 32}"}}'] == 1


def test_metrics_of_queues_and_workers(here: Site) -> None:
    plain = here.serve()
    assert not [name for name in plain.metrics() if "queue" in name or "worker" in name], "it has no queue"
    server = here.serve("--no-execute")
    server.start("storyteller", "telling")
    found = server.metrics()
    assert found['andon_queue_ready{queue="slow"}'] == 1
    assert found['andon_queue_held_back{queue="slow"}'] == 0
    assert found['andon_queue_ready{queue="fast"}'] == 0
    assert found["andon_workers"] == 0
    eventually(lambda: server.metrics()['andon_queue_lag_seconds{queue="slow"}'] > 0.2)
    server.start("storyteller", "next", session_id="telling", on_busy="queue")
    assert server.metrics()['andon_queue_held_back{queue="slow"}'] == 1
    here.worker("alpha", "--queues", "slow", "--concurrency", "3")
    eventually(lambda: server.metrics().get('andon_worker_runs{worker="alpha"}') == 1)
    for each in (server, plain):  # a server that executes runs knows of the queue too
        found = each.metrics()
        assert (found["andon_workers"], found['andon_worker_concurrency{worker="alpha"}']) == (1, 3)
        assert (found['andon_queue_ready{queue="slow"}'], found['andon_queue_lag_seconds{queue="slow"}']) == (0, 0)
    server.cancel("storyteller", "next")
    server.cancel("storyteller", "telling")


def test_a_worker_is_drained_by_a_server_and_by_the_database(here: Site) -> None:
    server = here.serve("--no-execute")
    for number, place in enumerate((("--url", server.url), ("--db", here.url))):
        name, run_id = f"worker-{number}", f"run-{number}"
        process = here.worker(name, "--drain", "60")
        server.start("waiter", run_id)
        server.follow("waiter", run_id, until="ToolCallStarted")
        eventually(lambda: server.workers()["workers"][0]["runs"] == 1)
        code, printed = here.ask("drain", name, "--wait", "0.5", *place)
        assert code == 1
        assert f"worker {name} takes no more runs, and ends when it has none; it has 1 run now" in printed
        assert f"worker '{name}' has not ended within 0.5 s; it is still draining. `andon ps` shows its runs" in printed
        process.said("this worker was asked to drain")
        eventually(lambda: server.workers()["workers"][0]["state"] == "draining")
        assert server.metrics()[f'andon_worker_concurrency{{worker="{name}"}}'] == 0
        server.start("helper", f"after-{number}")
        waiting = here.andon("drain", name, "--wait", "60", *place)
        waiting.said("takes no more runs")
        (here.folder / "go").touch()
        assert waiting.ended() == 0
        assert waiting.printed[-1] == f"worker {name} has ended\n"
        assert process.ended() == 0
        assert server.state("waiter", run_id)["status"] == "COMPLETED", "it had its time"
        assert server.state("helper", f"after-{number}")["status"] == "PENDING", "it took no more runs"
        server.cancel("helper", f"after-{number}")
        (here.folder / "go").unlink()
        code, printed = here.ask("drain", name, *place)
        assert code == 1
        assert f"there is no worker {name!r} at" in printed


def test_only_an_admin_sees_workers_and_drains_them(here: Site) -> None:
    (here.folder / "tokens").write_text("ada-secret user=ada\nroot-secret admin\n")
    (here.folder / "tokens").chmod(0o600)
    process = here.andon("serve", "main:agents", "--port", "0", "--no-execute", "--token-file", "tokens")
    url = process.said(r"at (http://\S+)$")[1]
    ada = here.client(url, process, authorization="Bearer ada-secret").http
    root = here.client(url, process, authorization="Bearer root-secret").http
    here.worker("alpha")
    eventually(lambda: [each["name"] for each in root.get("/workers").json()["workers"]] == ["alpha"])
    for answer in (ada.get("/workers"), ada.post("/workers/alpha/drain"), ada.get("/metrics")):
        assert answer.status_code == 403
    assert root.post("/workers/nothing/drain").status_code == 404
    assert root.get("/workers").json()["workers"][0]["state"] == "working"
    assert root.post("/workers/alpha/drain").json() == {"name": "alpha", "draining": True}
    eventually(lambda: root.get("/workers").json()["workers"] == [])


def test_a_worker_that_was_ended_is_silent_and_its_name_may_be_used_again(here: Site) -> None:
    """It was draining when it was ended by a second signal. Its successor of the same name does not drain."""
    server = here.serve("--no-execute", "--lease", "1")
    process = here.worker("alpha", "--lease", "1", "--drain", "60")
    server.start("waiter", "lost")
    server.follow("waiter", "lost", until="ToolCallStarted")
    assert here.ask("drain", "alpha", "--url", server.url)[0] == 0
    eventually(lambda: server.workers()["workers"][0]["state"] == "draining")
    process.popen.send_signal(signal.SIGTERM)
    process.said(r"takes no more runs; 1 run has 60 s")
    assert process.stop(signal.SIGTERM) == -signal.SIGTERM, "the second one ends it at once"
    eventually(lambda: server.workers()["workers"][0]["state"] == "silent")
    assert server.metrics()["andon_workers"] == 0
    _, printed = here.ask("ps", "--workers", "--db", here.url)
    assert re.search(r"^alpha +silent \d+s ", printed, re.MULTILINE)
    code, printed = here.ask("drain", "alpha", "--wait", "30", "--db", here.url)
    assert code == 1
    assert re.search(
        r"^worker alpha has not reported for \d+ s; it will drain if it comes back$", printed, re.MULTILINE
    )
    assert re.search(r"worker 'alpha' has not reported for \d+ s: it is dead, or can't reach the database\. ", printed)
    here.worker("alpha")
    server.start("helper", "next")
    assert server.follow("helper", "next")[-1] == "RunCompleted"
    assert server.workers()["workers"][0]["state"] == "working"


def test_rows_of_workers_that_are_long_gone_are_deleted(here: Site) -> None:
    server = here.serve("--no-execute")
    with psycopg.connect(here.url, autocommit=True) as connection:
        connection.execute("INSERT INTO andon_workers VALUES ('old', '{}', 1, false)")
        now = "extract(epoch FROM clock_timestamp())"  # of another version: it can't be read
        connection.execute(f"INSERT INTO andon_workers VALUES ('newer', '{{\"name\": 1}}', {now}, false)")
        assert server.workers()["workers"] == []
        assert server.metrics()["andon_workers"] == 0
        connection.execute("DELETE FROM andon_workers WHERE name = 'newer'")
        here.worker("alpha")
        eventually(lambda: [each["name"] for each in server.workers()["workers"]] == ["alpha"])
        assert connection.execute("SELECT name FROM andon_workers").fetchall() == [("alpha",)]


class AwayQueue:
    """A queue of a database that is away, or silent."""

    def __init__(self, error: Exception | None) -> None:
        self._error = error

    async def is_there(self) -> bool:
        if self._error is None:
            await asyncio.Event().wait()
        raise self._error or AssertionError


class Away(SQLStore):
    error: Exception | None = None

    def run_queue(self) -> Any:
        return AwayQueue(self.error)


@pytest.mark.parametrize("how", ["store", "schema", "silent"])
def test_what_only_the_database_knows_is_left_out(
    postgres_url: str, how: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(metrics, "ANSWER_SECONDS", 0.5 if how == "silent" else 60.0)
    store = Away(postgres_url)
    store.error = {"store": StoreError("it is away"), "schema": SchemaError("it is newer"), "silent": None}[how]
    runtime = Runtime(store)
    with serving(Agent("Helper", ScriptedModel()), runtime=runtime) as live, caplog.at_level(logging.WARNING, "andon"):
        answer = live.client.get("/metrics")
    asyncio.run(runtime.close())
    assert answer.status_code == 200
    assert "andon_draining 0" in answer.text.splitlines()
    assert "queue" not in answer.text
    assert "worker" not in answer.text
    why = {"store": "it is away", "schema": "it is newer", "silent": "it has not answered within 0.5 s"}[how]
    assert f"/metrics leaves out queues and workers, because the database can't be asked: {why}" in caplog.text


@pytest.mark.parametrize("width", [40, 60])
def test_a_narrow_terminal_shows_the_whole_name_of_a_worker(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """`andon drain` needs it; and it ends with the id of the process."""
    monkeypatch.setattr(terminal, "width_of", lambda stream: width)
    line = WorkerLine("agents-7d9f-x2x9k:81234", "silent", 8, 50, ["fast", "slow"], ["support", "reports"], 0.0, 21.0)
    head, row = terminal.table(ps.WORKERS, [ps._worker_row(line)], sys.stdout).splitlines()
    assert row.startswith("agents-7d9f-x2x9k:81234  silent 21s")
    assert max(len(head), len(row)) <= width


def test_the_values_of_labels_are_escaped() -> None:
    found = Overview([WorkerLine('a"b\\c\nd\ud800', "working", 1, 2, [], [], 0.0, 0.0)], [])
    lines = queue_metrics.lines_of(found, served=())
    assert r'andon_worker_runs{worker="a\"b\\c\nd?"} 1' in lines
    assert all("\n" not in line for line in lines)

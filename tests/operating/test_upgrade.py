# SPDX-License-Identifier: Apache-2.0
"""A rolling upgrade: processes of the version before the queue, and of this one, on one Postgres.

The code of that version is in `version_3.tar.xz`: the files of the package, as they were, that `andon serve` needs. So
these tests need no history; where there is one, a test compares the archive with it.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.operating.processes import PROGRAM, Client, Process, Site, eventually, site
from tests.store.conftest import database
from tests.store.server import Server
from tests.support import HANG

pytestmark = pytest.mark.no_cover  # the old code is not to be measured

ROOT = Path(__file__).parents[2]
BEFORE = "0c846bf"
"""A version without a queue. Its tables have version 3, as those of this one."""

ARCHIVE = Path(__file__).parent / "version_3.tar.xz"

OLD_PROGRAM = re.sub(r', queue="\w+"', "", PROGRAM)
"""Agents as that version knows them."""


@pytest.fixture(scope="module")
def old_code(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with the package of the version before."""
    folder = tmp_path_factory.mktemp("before")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return str(folder)


def test_the_archive_has_what_the_history_has(old_code: str) -> None:
    """A shallow clone has no history to compare it with; then only the archive's own files are counted."""
    asked = ["git", "archive", BEFORE, "src"]
    made = subprocess.run(asked, cwd=ROOT, capture_output=True, check=False, timeout=HANG)
    found = [each for each in Path(old_code).rglob("*") if each.is_file() and each.suffix != ".pyc"]
    files = {str(each.relative_to(old_code)): each.read_bytes() for each in found}
    assert len(files) > 150
    if made.returncode == 0:
        with tarfile.open(fileobj=io.BytesIO(made.stdout)) as archive:
            for name, content in files.items():
                member = archive.extractfile(f"src/{name}")
                assert member is not None
                assert member.read() == content, name


class Mixed:
    """An old server, which executes its runs, beside a new one, which accepts runs, and a worker. The tests share them,
    and have runs and sessions of their own.
    """

    def __init__(self, here: Site, old_code: str) -> None:
        self.here, self._old_code = here, old_code
        found = here.start([sys.executable, "-P", "-c", "import andon; print(andon.__file__)"], python_path=old_code)
        found.said(re.escape(old_code))
        self.old = here.serve(python_path=old_code)
        self.new = here.serve("--no-execute")
        self.worker: Process = here.worker("alpha")
        assert self.old.http.get("/workers").status_code == 404, "it is the old one"

    def restore(self) -> None:
        """Start again what a test has stopped."""
        if self.old.process.has_ended:
            self.old = self.here.serve(python_path=self._old_code)
        if self.worker.has_ended:
            self.worker = self.here.worker("alpha")


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory, server: Server, old_code: str) -> Iterator[Mixed]:
    with database(server) as url, site(tmp_path_factory.mktemp("mixed"), url, OLD_PROGRAM) as here:
        yield Mixed(here, old_code)


@pytest.fixture
def mixed(started: Mixed) -> Mixed:
    started.restore()
    return started


def test_a_command_of_now_says_that_the_server_is_too_old(mixed: Mixed) -> None:
    here, old = mixed.here, mixed.old
    for command in (["ps", "--workers"], ["drain", "alpha"]):
        code, printed = here.ask(*command, "--url", old.url)
        assert (code, printed) == (1, f"andon: {old.url} is too old: it knows nothing of workers\n")
    old.start("storyteller", "told")
    old.follow("storyteller", "told", until="RunContent")
    code, printed = here.ask("ps", "--url", old.url)
    assert code == 0
    assert "HELD BY" not in printed, "it does not say that"
    code, printed = here.ask("ps", "--db", here.url)
    assert re.search(r"^told +storyteller +running .* [0-9a-f]{16}$", printed, re.MULTILINE), "its names were random"
    old.cancel("storyteller", "told")


def deleted(here: Site) -> int:
    file = here.folder / "deleted"
    return len(file.read_text().splitlines()) if file.exists() else 0


def told(client: Client, agent: str, session_id: str) -> list[str]:
    """The texts of a session's messages."""
    answer = client.http.get(f"/agents/{agent}/sessions/{session_id}")
    assert answer.status_code == 200, answer.text
    blocks = [block for message in answer.json()["messages"] for block in message["content"]]
    return [block["text"] for block in blocks if "text" in block]


def test_runs_of_each_are_read_and_cancelled_at_the_other(mixed: Mixed) -> None:
    old, new = mixed.old, mixed.new
    for number, (one, other) in enumerate(((old, new), (new, old))):
        one.start("helper", f"brief-{number}")
        assert other.follow("helper", f"brief-{number}")[-1] == "RunCompleted"
        assert other.state("helper", f"brief-{number}")["content"] == "All is well."
        one.start("storyteller", f"long-{number}")
        other.follow("storyteller", f"long-{number}", until="RunContent")
        assert other.cancel("storyteller", f"long-{number}")["status"] == "CANCELLED"
        for each in (one, other):
            found = each.state("storyteller", f"long-{number}")
            assert (found["status"], found["content"]) == ("CANCELLED", "Once upon a time ")
            assert each.follow("storyteller", f"long-{number}")[-1] == "RunCancelled"


def test_a_paused_run_of_each_is_answered_at_the_other(mixed: Mixed) -> None:
    old, new, before = mixed.old, mixed.new, deleted(mixed.here)
    for number, (one, other) in enumerate(((old, new), (new, old)), 1):
        run_id = f"p-{number}"
        one.start("janitor", run_id)
        assert one.follow("janitor", run_id)[-1] == "RunPaused"
        eventually(lambda other=other, run_id=run_id: other.state("janitor", run_id)["status"] == "PAUSED")  # type: ignore[misc]
        assert other.answer("janitor", run_id)["status"] == "COMPLETED"
        eventually(lambda one=one, run_id=run_id: one.state("janitor", run_id)["content"] == "Done.")  # type: ignore[misc]
        assert deleted(mixed.here) == before + number, "its tool was called once"


def test_a_session_has_one_line_for_both(mixed: Mixed) -> None:
    """Runs of one session, from both sides in turn, wait for each other, and are executed in their order."""
    old, new = mixed.old, mixed.new
    old.start("waiter", "r-0", session_id="s", message="number 0")
    old.follow("waiter", "r-0", until="ToolCallStarted")
    sides = [(new, "r-1"), (old, "r-2"), (new, "r-3"), (old, "r-4")]
    for number, (side, run_id) in enumerate(sides, 1):
        side.start("waiter", run_id, session_id="s", message=f"number {number}", on_busy="queue")
    for side in (old, new):
        listed = side.http.get("/runs?session_id=s").json()
        assert {each["run_id"]: each["status"] for each in listed} == {
            "r-0": "RUNNING",
            **{run_id: "PENDING" for _, run_id in sides},
        }
    assert old.cancel("waiter", "r-3")["status"] == "CANCELLED", "the new one has queued it"
    assert new.cancel("waiter", "r-2")["status"] == "CANCELLED", "the old one has queued it"
    (mixed.here.folder / "go").touch()
    assert old.follow("waiter", "r-4")[-1] == "RunCompleted"
    assert new.follow("waiter", "r-1")[-1] == "RunCompleted"
    said = [text for text in told(new, "waiter", "s") if text.startswith("number")]
    assert said == told_numbers(old, "waiter", "s")
    assert said == [f"number {number}" for number in range(5)]


def told_numbers(client: Client, agent: str, session_id: str) -> list[str]:
    return [text for text in told(client, agent, session_id) if text.startswith("number")]


def test_a_queued_run_is_cancelled_at_the_old_one_and_never_begins(mixed: Mixed) -> None:
    assert mixed.worker.stop() == 0
    mixed.new.start("janitor", "r")
    assert mixed.old.state("janitor", "r")["status"] == "PENDING"
    assert mixed.old.cancel("janitor", "r")["status"] == "CANCELLED"
    kinds = mixed.new.follow("janitor", "r")
    assert (kinds[0], kinds[-1]) == ("RunStarted", "RunCancelled")
    assert set(kinds[1:-1]) <= {"CancelRequested"}, "it never began"
    mixed.worker = mixed.here.worker("beta")
    mixed.new.start("helper", "next")
    assert mixed.new.follow("helper", "next")[-1] == "RunCompleted"
    assert mixed.old.state("janitor", "r")["status"] == "CANCELLED"


def test_the_runs_of_a_side_that_dies_are_ended_by_the_other(tmp_path: Path, postgres_url: str, old_code: str) -> None:
    with site(tmp_path, postgres_url, OLD_PROGRAM) as here:
        old = here.serve("--lease", "1", python_path=old_code)
        new = here.serve("--no-execute", "--lease", "1")
        worker = here.worker("alpha", "--lease", "1")
        new.start("storyteller", "of-worker")
        new.follow("storyteller", "of-worker", until="RunContent")
        worker.kill()
        new.process.kill()
        assert old.follow("storyteller", "of-worker")[-1] == "RunCancelled"
        assert old.state("storyteller", "of-worker")["receipt"]["cause"] == "lost"
        new = here.serve("--no-execute", "--lease", "1")
        old.start("storyteller", "of-old")
        old.follow("storyteller", "of-old", until="RunContent")
        old.process.kill()
        assert new.follow("storyteller", "of-old")[-1] == "RunCancelled"
        assert new.state("storyteller", "of-old")["receipt"]["cause"] == "lost"


def test_a_server_is_replaced_while_clients_go_on(mixed: Mixed) -> None:
    """The whole way: the old server drains and goes, the new one has its paused runs and its sessions."""
    old, new = mixed.old, mixed.new
    old.start("janitor", "asks", session_id="u")
    assert old.follow("janitor", "asks")[-1] == "RunPaused"
    old.start("helper", "done", session_id="t")
    old.follow("helper", "done")
    assert old.process.stop() == 0
    assert new.answer("janitor", "asks")["status"] == "COMPLETED"
    new.start("helper", "more", session_id="t")
    assert new.follow("helper", "more")[-1] == "RunCompleted"
    assert told(new, "helper", "t") == ["Hi", "All is well."] * 2


# -- the version of the queue's own tables ----------------------------------------------------------------------------


def test_a_queue_of_another_version_is_left_as_it_is(tmp_path: Path, postgres_url: str) -> None:
    """What docs/scale.md tells operators to do then brings it back."""
    with site(tmp_path, postgres_url) as here:
        server = here.serve("--no-execute")
        server.start("helper", "kept")
        here.worker("alpha")
        server.follow("helper", "kept")
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute("UPDATE andon_queue_meta SET version = 99")
            for command in (["worker"], ["serve", "--no-execute", "--port", "0"]):
                name, *options = command
                code, printed = here.call(name, "main:agents", *options)
                assert code != 0
                assert "serves" not in printed
                assert "has a queue of version 99, and this version of Andon knows 1; it was left as it is" in printed
            assert connection.execute("SELECT version FROM andon_queue_meta").fetchone() == (99,)
            here.close()
            names: Any = "andon_queue_meta, andon_waiting, andon_limits, andon_workers"
            connection.execute(f"DROP TABLE {names}")
        server = here.serve("--no-execute")
        here.worker("beta")
        assert server.state("helper", "kept")["content"] == "All is well."
        server.start("helper", "next", session_id="kept")
        assert server.follow("helper", "next")[-1] == "RunCompleted"
        here.close()

# SPDX-License-Identifier: Apache-2.0
"""The commands on a database, with runs in other processes, or in none any more."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from andon import RunStatus
from andon.cli.database import DatabaseSource
from andon.core.receipt import CancelRequest
from andon.core.selection import Selection
from andon.store.sql import SQLStore
from tests.cli.terminal import CTRL_C, Andon, alone, at_terminal, interrupted
from tests.store.making import PAST, record

DOCS = Path(__file__).parents[2] / "docs" / "cli.md"

DB = ("--db", "sqlite:///andon.db")


@pytest.fixture
def begin(here: Path, andon: Andon) -> Andon:
    """A run, here and now, on the database."""
    return lambda name, *more: andon("run", f"program:{name}", "Hi", *DB, *more)


def listed(andon: Andon, *more: str) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = json.loads(andon("ps", "--json", *more)[1])
    return lines


def test_a_run_elsewhere_is_listed_followed_and_cancelled(here: Path, andon: Andon) -> None:
    with at_terminal(here, "run", "program:stall", "Hi", "--session", "s1", "--user", "ada", *DB) as other:
        other.until("One ")
        (line,) = listed(andon)
        assert (line["agent_id"], line["session_id"], line["user_id"]) == ("stall", "s1", "ada")
        run_id = line["run_id"]
        with at_terminal(here, "watch", run_id[:6]) as watcher:
            watcher.until("One ")
            code, out, _ = andon("cancel", run_id[:6], "--wait", "--reason", "enough")
            assert code == 0
            assert re.search(r"reason +enough\n", out)
            assert watcher.end() == 3
            assert "cancelling (enough)" in watcher.screen
        assert other.end() == 3
        assert "enough" in other.screen
    assert listed(andon) == []
    code, out, _ = andon("watch", run_id, "--json")
    assert code == 3
    *events, last = [json.loads(line) for line in out.splitlines()]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert last["result"]["receipt"]["reason"] == "enough"
    assert andon("cancel", run_id)[0] == 0, "it is cancelled"


def test_many_at_once(here: Path, andon: Andon) -> None:
    with (
        at_terminal(here, "run", "program:stall", "Hi", "--session", "s1", *DB) as one,
        at_terminal(here, "run", "program:stall", "Hi", "--session", "s2", *DB) as two,
    ):
        one.until("One ")
        two.until("One ")
        code, out, _ = andon("cancel", "--session", "s2", "--wait", "--json")
        assert (code, len(json.loads(out))) == (0, 1)
        assert two.end() == 3
        assert len(listed(andon)) == 1
        assert andon("cancel", "--all")[0] == 0
        assert one.end() == 3
    code, out, err = andon("cancel", "--all")
    assert (code, out) == (1, "")
    assert "nothing to cancel at sqlite:///andon.db" in err


def test_a_question_is_answered_in_another_process(here: Path, andon: Andon, begin: Andon) -> None:
    code, _, err = begin("asker", "--session", "s1")
    assert code == 4
    (run_id,) = re.findall(r"to go on: andon continue (\w+) program:asker --db sqlite:///andon.db", err)
    code, _, err = andon("watch", run_id)
    assert code == 4
    assert f"andon continue {run_id} module:agent" in err
    code, _, err = andon("continue", run_id, "--answer", "d-1=true")
    assert code == 2
    assert "name the agent" in err
    ended = alone(here, "continue", run_id, "program:asker", "--answer", "d-1=true")
    assert (ended.returncode, ended.stdout) == (0, "deleted a.txt\n")
    assert "going on" in ended.stderr
    assert "wants to run" not in ended.stderr
    code, _, err = andon("continue", run_id, "program:asker")
    assert code == 1
    assert "completed" in err


def test_a_question_is_answered_at_another_terminal(here: Path, andon: Andon, begin: Andon) -> None:
    assert begin("painter")[0] == 4
    (line,) = listed(andon)
    with at_terminal(here, "continue", line["run_id"], "program:painter") as person:
        person.until("Answer (text, or JSON)")
        person.type("blue\n")
        assert person.end() == 0
        assert "painted it 'blue'" in person.screen


def test_a_paused_run_without_a_holder_is_cancelled(andon: Andon, begin: Andon) -> None:
    assert begin("asker")[0] == 4
    (line,) = listed(andon)
    code, out, _ = andon("cancel", line["run_id"], "--wait", "--json")
    (told,) = json.loads(out)
    assert (code, told["status"]) == (0, "CANCELLED")
    assert [each["outcome"] for each in told["receipt"]["tools"]] == ["not_started"]


def test_a_run_without_a_holder_is_cancelled_also_if_this_machine_s_clock_is_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def leave(store: SQLStore) -> None:
        await store.enter(record("r1"), "me", PAST, "queue")
        await store.close()

    url = f"sqlite:///{tmp_path / 'left.db'}"
    asyncio.run(leave(SQLStore(url)))
    monkeypatch.setattr("time.time", lambda: 0.0)
    with contextlib.closing(DatabaseSource(url)) as place:
        (cancelled,) = place.cancel(Selection("r1"), CancelRequest.make())
    assert cancelled.status is RunStatus.cancelled


@interrupted
def test_a_run_that_was_cut_goes_on(here: Path, andon: Andon, begin: Andon) -> None:
    assert begin("stall", "--timeout", "2", "--session", "s1")[0] == 3
    (line,) = listed(andon, "--all")
    with at_terminal(here, "continue", line["run_id"], "program:hello", *DB) as wrong:
        assert wrong.end() == 1
        assert "has no run" in wrong.screen
    how = ("continue", line["run_id"], "program:stall", "--run-id", "again", *DB)
    with at_terminal(here, *how) as other:
        other.until("One ")
        other.type(CTRL_C)
        assert other.end() == 3
    code, _, err = andon(*how)
    assert (code, "'again' is taken" in err) == (1, True)
    runs = {each["run_id"]: each["session_id"] for each in listed(andon, "--all")}
    assert runs == {line["run_id"]: "s1", "again": "s1"}


def test_the_conversation_is_kept(begin: Andon) -> None:
    for count in (1, 2):
        assert begin("counting", "--session", "s1", "-q") == (0, f"{count} prompts\n", "")


def test_a_busy_session_is_refused(begin: Andon) -> None:
    assert begin("asker", "--session", "s1")[0] == 4
    code, out, err = begin("asker", "--session", "s1")
    assert (code, out) == (1, "")
    assert err.startswith("andon: ")


def test_new_runs_are_refused_until_someone_unblocks_them(andon: Andon, begin: Andon) -> None:
    assert begin("hello", "--user", "ada")[0] == 0
    code, out, err = andon("cancel", "--user", "ada", "--block", "--reason", "spam")
    assert (code, out) == (0, ""), "there was nothing to cancel, but that was not all"
    assert "andon unblock --user ada" in err
    code, out, err = begin("hello", "--user", "ada")
    assert (code, out) == (1, "")
    assert "ada" in err
    assert begin("hello", "--user", "bob")[0] == 0
    assert andon("unblock", "--user", "ada", "--json")[1] == '{"kind":"user","id":"ada","unblocked":true}\n'
    assert begin("hello", "--user", "ada")[0] == 0
    code, _, err = andon("unblock", "--user", "ada")
    assert code == 1
    assert "not blocked" in err


def test_what_is_old_is_forgotten(andon: Andon, begin: Andon) -> None:
    assert begin("hello")[0] == 0
    assert begin("asker")[0] == 4
    assert andon("prune") == (0, "forgot 0 sessions, 0 runs, 0 events\n", "")
    _, would, _ = andon("prune", "--keep-days", "0", "--dry-run")
    assert re.fullmatch(r"would forget 1 sessions, 1 runs, \d events\n", would)
    code, out, _ = andon("prune", "--keep-days", "0", "--json")
    counts = json.loads(out)
    assert (code, counts["sessions"], counts["runs"], counts["dry_run"]) == (0, 1, 1, False)
    assert f"{counts['events']} events" in would
    (documented,) = re.findall(r"^\| `prune` \| (.*) \|$", DOCS.read_text("utf-8"), re.MULTILINE)
    assert list(counts) == re.findall(r"`(\w+)`", documented)
    assert [line["status"] for line in listed(andon, "--all")] == ["PAUSED"]


@pytest.mark.parametrize("command", [["ps"], ["watch", "x"], ["cancel", "--all"], ["continue", "x", "a:b"], ["prune"]])
@pytest.mark.parametrize("kind", ["missing", "broken"])
def test_databases_that_are_none(andon: Andon, tmp_path: Path, command: list[str], kind: str) -> None:
    (tmp_path / "broken.db").write_text("this is no database, but a file of some length that says so")
    code, out, err = andon(*command, "--db", f"sqlite:///{kind}.db")
    assert (code, out) == (5, "")
    assert f"{kind}.db" in err
    assert not (tmp_path / "missing.db").exists()


def test_a_database_that_can_not_be_reached(andon: Andon) -> None:
    code, out, err = andon("ps", "--db", "postgresql://ada:s3cret@127.0.0.1:1/andon?connect_timeout=1")
    assert (code, out) == (5, "")
    assert "s3cret" not in err


def test_nothing_to_prune_here(andon: Andon) -> None:
    code, _, err = andon("prune")
    assert code == 5
    assert "--db" in err


@pytest.mark.parametrize("name", ["elsewhere.db", "andon.db"])
def test_the_environment_names_the_database_of_every_command(
    here: Path, andon: Andon, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANDON_DB", f"sqlite:///{name}")
    assert andon("run", "program:asker", "Hi", "--no-input")[0] == 4
    (paused,) = listed(andon)
    run_id = paused["run_id"]
    assert andon("watch", run_id)[0] == 4
    code, out, _ = andon("continue", run_id, "program:asker", "--answer", "d-1=true")
    assert (code, "deleted a.txt" in out) == (0, True)
    assert "1 sessions" in andon("prune", "--keep-days", "0", "--dry-run")[1]
    assert [each.name for each in here.glob("*.db")] == [name]


def test_options_win_over_the_environment(here: Path, andon: Andon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANDON_DB", "sqlite:///elsewhere.db")
    assert andon("run", "program:hello", "Hi", "--db", "sqlite:///here.db")[0] == 0
    assert [each.name for each in here.glob("*.db")] == ["here.db"]
    assert len(listed(andon, "--all", "--db", "sqlite:///here.db")) == 1
    code, _, told = andon("ps")
    assert (code, "elsewhere.db" in told) == (5, True)
    monkeypatch.setenv("ANDON_URL", "http://127.0.0.1:1")
    assert "127.0.0.1:1" in andon("ps")[2]

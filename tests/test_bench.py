# SPDX-License-Identifier: Apache-2.0
"""The benchmarks run, and say what they measured. How fast that was is not a test's business."""

from __future__ import annotations

import json
import math
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from bench import page, stolen
from bench.__main__ import METHODS
from bench.chaos.figure import ZERO
from bench.chaos.servers import Database
from bench.gauges import Cpu, written
from bench.report import Figure, Goal, Row

ROOT = Path(__file__).parent.parent
HANG = 300

# With --quick: streaming and chaos have more of them without it.
ROWS = {
    "latency": 9,
    "throughput": 4,
    "readers": 5,
    "streaming": 27,
    "idle": 4,
    "growth": 4,
    "startup": 4,
    "telemetry": 2,
    "http": 3,
    "boards": 3,
    "across": 6,
    "store": 18,
    "neighbour": 4,
    "processes": 8,
    "chaos": 1,
    "events": 12,
    "queue": 8,
}
# Little fits into pages that are there.
MAY_BE_ZERO = {
    "others_percent",
    "boards_percent",
    "cpu_percent",
    "without_percent",
    "long_tasks",
    "watching_percent",
    "table_kb_per_1000",
    "all_tables_kb_per_1000",
    "postgres_ms_per_1000",
    "lost_runs",
    "requests_per_s",
    "cancels",
    "survivors",
    *ZERO,
}


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench", *arguments]
    # Not measured for coverage: it starts many processes, and each would take twice as long.
    plain = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    return subprocess.run(command, cwd=ROOT, env=plain, capture_output=True, text=True, timeout=HANG, check=False)


def check_row(row: dict[str, Any]) -> None:
    assert row["name"]
    assert row["values"]
    for name, value in row["values"].items():
        assert math.isfinite(value), name
        assert value > 0 or (value == 0 and name in MAY_BE_ZERO), name
    for goal in row["goals"]:
        assert goal["of"] in row["values"]
        assert isinstance(goal["reached"], bool)
        assert goal.keys() - {"of", "reached"} in ({"at_most"}, {"at_least"})


@pytest.mark.timeout(2 * HANG)  # on a machine that does much else
@pytest.mark.parametrize("figure", ROWS)
def test_each_figure_is_measured(figure: str) -> None:
    done = bench(figure, "--quick", "--json")
    assert done.returncode == 0, done.stderr
    assert f"{figure} 1/" in done.stderr, "no progress was shown"
    (answer,) = json.loads(done.stdout)["figures"]
    assert answer["figure"] == figure
    assert answer["title"]
    assert len({row["name"] for row in answer["rows"]}) == len(answer["rows"]) == ROWS[figure]
    for row in answer["rows"]:
        check_row(row)
    assert any(row["goals"] for row in answer["rows"])
    assert answer["stolen"] is None or 0 <= answer["stolen"] <= 1


def test_without_json_it_is_a_table_with_its_goals() -> None:
    done = bench("throughput", "--quick")
    assert done.returncode == 0, done.stderr
    title, header, *rows = done.stdout.rstrip().splitlines()
    assert title.startswith("throughput: ")
    assert header.split()[-1] == "goal"
    assert len(rows) == ROWS["throughput"]
    assert [row.split()[-1] in ("reached", "MISSED") for row in rows] == [False, False, True, True]
    assert str(ROOT) not in done.stdout


def test_an_unknown_figure_is_refused_by_name() -> None:
    done = bench("speed")
    assert done.returncode == 2
    assert "there is no figure 'speed'" in done.stderr
    assert all(figure in done.stderr for figure in ROWS)


def test_the_page_and_the_readme_say_what_was_recorded() -> None:
    runs = page.read_runs()
    assert all(ROWS.keys() == run["figures"].keys() for run in runs[-1:])
    assert page.PAGE.read_text("utf-8") == page.page_of(runs, METHODS), "make bench writes both"
    readme = page.README.read_text("utf-8")
    assert readme == page.with_table(readme, runs)


def test_the_page_shows_each_run_and_what_missed_its_goal() -> None:
    goal = Goal("p50_us", 5)
    runs = [page.new_run([Figure("a", "title", [Row("row", {"p50_us": value}, [goal])])]) for value in (4, 6, 5)]
    shown = page.page_of(runs, {"a": "How."})
    assert (
        "## a\n\nTitle.\n\nHow.\n\n|  | p50 µs | goal |\n|---|---|---|\n| row | 4, **6**, 5 | p50 µs ≤ 5 |\n" in shown
    )


def test_small_numbers_are_not_recorded() -> None:
    done = bench("latency", "--quick", "--record")
    assert done.returncode == 2
    assert "--record is for real numbers" in done.stderr


def test_figures_that_are_taken_alone_replace_theirs_and_say_so() -> None:
    def figure(name: str, value: float) -> Figure:
        return Figure(name, "title", [Row("row", {"p50_us": value})])

    runs = [page.new_run([figure("a", value), figure("b", value)]) for value in (4, 6)]
    shown = page.page_of(page.with_figures(runs, [figure("b", 5), figure("c", 7)]), {"a": "", "b": "", "c": ""})
    a, b, c = (shown.partition(f"## {name}\n")[2].partition("\n## ")[0] for name in "abc")
    assert "| row | 4, 6 |" in a
    assert "alone" not in a
    assert "| row | 5 |" in b
    assert "Taken alone, with newer code than the last run" in b
    assert "| row | 7 |" in c


STAT = "cpu  {user} 10 50 {idle} 20 5 5 {steal} 0 0\ncpu0 1 2\n"


def test_what_others_had_of_the_processor_time_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stat = tmp_path / "stat"
    monkeypatch.setattr(stolen, "PATH", stat)
    stat.write_text(STAT.format(user=100, idle=900, steal=10))
    since = stolen.Stolen()
    stat.write_text(STAT.format(user=160, idle=990, steal=50))
    assert since.share() == pytest.approx(0.4), "of the 100 ticks that were wanted"
    stat.write_text(STAT.format(user=160, idle=990, steal=0))
    assert since.share() == 0, "it has begun to count anew"
    figure = Figure("a", "b", [Row("c", {"d": 1})])
    assert figure.as_table().startswith("a: b\n")
    figure.stolen = 0.4
    assert figure.as_table().startswith("a: b (others had 40.0% of the time wanted)\n")


@pytest.mark.parametrize("text", [None, "", "cpu 1 2 3 4\n", "intr 1 2 3 4 5 6 7 8\n", "cpu a b c d e f g h\n", STAT])
def test_a_system_that_does_not_tell_is_no_error(
    text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stolen, "PATH", tmp_path / "stat")
    if text is not None:
        (tmp_path / "stat").write_text(text.format(user=0, idle=0, steal=0))
    assert stolen.Stolen().share() is None


def test_the_processor_time_of_another_process_is_known() -> None:
    work = "import time\nwhile time.process_time() < 0.2: pass\nprint(time.process_time(), flush=True)\ninput()"
    command = [sys.executable, "-c", work]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        cpu = Cpu(process.pid)
        assert process.stdout is not None
        said = float(process.stdout.readline()) * 1000
        used, percent = cpu.ms, cpu.percent
        process.communicate("")
    assert said - 100 < used < said + 100, "it had some before, and has some since"
    assert 0 < percent < 105, "it has one thread"


def test_what_is_written_to_a_file_is_told(tmp_path: Path) -> None:
    """Also if the log was begun anew meanwhile, which a checkpoint does that finds nobody in its way."""
    path, rows, size = tmp_path / "a.db", 50, 100_000
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode=wal")
        connection.execute("CREATE TABLE andon_meta (data BLOB)")
        connection.execute("CREATE TABLE andon_events (data BLOB)")
        with written(Database(f"sqlite:///{path}", tmp_path)) as sizes:
            for _ in range(rows):
                connection.execute("INSERT INTO andon_events VALUES (zeroblob(?))", (size,))
                connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
    assert rows * size < sizes.table == sizes.tables < rows * size * 1.1
    assert rows * size < sizes.log < rows * size * 1.2

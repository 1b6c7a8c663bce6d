# SPDX-License-Identifier: Apache-2.0
"""The comparison with other frameworks works, without one of them: with Andon, and with one that is bad on purpose.

How fast something was is not a test's business.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.peers import __main__ as program
from bench.peers import better, environments, over_http, page, readme, tables
from bench.peers.dialects import DIALECTS
from bench.peers.environments import ROOT, SYSTEMS, System
from bench.peers.lines import PeerError
from bench.peers.parts import Size, Step, one_cancel, randomly, situation
from bench.peers.record import Records
from bench.peers.situations import BY_NAME
from bench.peers.trial import staged

pytestmark = [pytest.mark.no_cover, pytest.mark.timeout(300)]  # many processes, on a machine that does much else

ONCE = Size(attempts=1, cancels=3)
CARELESS = System("careless", str(ROOT / "tests" / "support" / "careless_peer"), "andon", "nothing")
ANDON = SYSTEMS[0]


def silent(done: int, of: int) -> None:
    """No progress is shown."""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both systems are run by this Python. Not by a link to it, by which it would not find its packages."""
    for system in (ANDON, CARELESS):
        python = tmp_path / system.name / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n', "utf-8")
        python.chmod(0o755)
    monkeypatch.setattr(environments, "ENVIRONMENTS", tmp_path)


def only(system: System, name: str) -> dict[str, Any]:
    """The one attempt of a situation."""
    measured = situation(system, BY_NAME[name], ONCE, silent)
    assert not measured["failures"]
    (attempt,) = measured["attempts"]
    answer: dict[str, Any] = attempt
    return answer


# -- Andon ------------------------------------------------------------------------------------------------------------


def test_a_run_that_is_cut_mid_stream() -> None:
    seen = only(ANDON, "streaming")
    assert seen["told"] == "cancelled"
    assert seen["text_kept"]
    assert seen["prompt_kept"]
    assert seen["hung_up"]
    assert seen["usage"] > 0
    assert (seen["next"], seen["rejected"]) == ("completed", False)


def test_a_run_that_is_cut_in_a_tool() -> None:
    seen = only(ANDON, "two tools")
    assert seen["told"] == "cancelled"
    assert seen["result_kept"]
    assert (seen["started_after"], seen["not_cut"], seen["running"]) == (0, 0, 0)
    assert (seen["next"], seen["rejected"]) == ("completed", False)


@pytest.mark.parametrize("name", ["child tool", "thinking"])
def test_a_child_and_another_provider(name: str) -> None:
    seen = only(ANDON, name)
    assert seen["told"] == "cancelled"
    assert not seen["rejected"]


def test_a_cancel_that_is_early_or_late() -> None:
    assert only(ANDON, "before")["requests"] == 0
    late = only(ANDON, "late")
    assert (late["told"], late["next"]) == ("completed", "completed")


def test_random_cancels_of_andon_leave_nothing() -> None:
    counted = randomly(ANDON, ONCE, silent)
    assert counted["cancels"] == ONCE.cancels
    assert not any(counted[name] for name in ("rejected", "started_after", "like_success", "failed"))


def test_the_cancel_route() -> None:
    answer = over_http.measure(DIALECTS[0], "cancel", False, ONCE, silent)
    assert [each["last"] for name in over_http.MOMENTS for each in answer[name]] == ["RunCancelled"] * 5
    assert (answer["of an ended run"], answer["of an unknown run"]) == (409, 404)


# -- a system that is bad on purpose ----------------------------------------------------------------------------------


def test_what_is_bad_is_seen() -> None:
    seen = only(CARELESS, "three tools")
    assert seen["told"] == "completed"
    assert seen["started_after"] == 2
    assert seen["not_cut"] == 3
    assert seen["rejected"], "its conversation has calls without results"
    assert seen["next"] == "failed"
    assert seen["left"] is None


def test_an_end_that_looks_like_a_success_is_counted() -> None:
    counts = dict.fromkeys(tables.COUNTS, 0)
    taken: list[float] = []
    with staged(CARELESS) as stage:
        stage.warm_up()
        stage.open("mixed", ["slow", "quick"])
        one_cancel(stage, 0.05, counts, taken)
    assert counts["like_success"] == 1
    assert len(taken) == 1


def test_a_system_that_does_not_even_start_is_told(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("raise RuntimeError('not with this Python')", "utf-8")
    with pytest.raises(PeerError, match="not with this Python"):
        situation(System("careless", str(broken.with_suffix("")), "andon", "nothing"), BY_NAME["silent"], ONCE, silent)


# -- records ----------------------------------------------------------------------------------------------------------


def test_what_was_broken_off_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[str] = []

    def measure(system: System, size: Size, step: Step) -> dict[str, Any]:
        measured.append(system.name)
        if len(measured) == 2:
            raise KeyboardInterrupt
        return {"value": len(measured)}

    monkeypatch.setattr(program, "pieces", lambda system: [program.Piece("fast", system, "all", measure)])
    monkeypatch.setattr(System, "version", lambda self: "1")
    monkeypatch.setattr(System, "versions", lambda self: {})
    monkeypatch.setattr(System, "distributions", lambda self: 1)
    path = tmp_path / "peers.json"

    def run() -> None:
        program.run([ANDON, CARELESS], None, Records(path), ONCE, None, again=False)

    with pytest.raises(KeyboardInterrupt):
        run()
    run()
    run()
    assert measured == ["andon", "careless", "careless"]
    assert Records(path).values("fast", "careless", "all") == {"value": 3}


def test_a_system_that_could_not_be_installed_is_shown(tmp_path: Path) -> None:
    (tmp_path / "agno").mkdir()
    (tmp_path / "agno" / "failed").write_text("ERROR: no such version\n", "utf-8")
    records = Records(tmp_path / "peers.json")
    program.run([each for each in SYSTEMS if each.name == "agno"], None, records, ONCE, None, again=False)
    assert "| agno | – |" in (shown := page.page_of(records))
    assert "could not be installed: ERROR: no such version" in shown


def test_where_another_one_is_better_is_found(tmp_path: Path) -> None:
    records = Records(tmp_path / "peers.json")
    for name, speed, memory in (("andon", 100.0, 50.0), ("agno", 200.0, 49.0)):
        values = {"tokens_per_s": [speed], "cpu_ms_per_1000": [1.0], "peak_mb": [memory], "import_s": [1.0]}
        records.add("fast", name, "all", "1", values)
    lines = better.lines(records, ["andon", "agno"])
    assert lines.startswith("- tokens per second: agno 200.0; Andon 100.0.")
    assert lines.count("\n") == 1, "a memory that is less by a fiftieth is not better"


def test_the_page_says_what_was_recorded() -> None:
    records = Records()
    assert page.PAGE.read_text("utf-8") == page.page_of(records), "python -m bench.peers --page writes it"
    text = readme.README.read_text("utf-8")
    assert text == readme.with_table(text, records)
    parts = {(part, system) for part, system, _, record in records.all() if "failure" not in record["values"]}
    assert {("situation", system.name) for system in SYSTEMS} <= parts


def test_the_readme_quotes_five_figures_between_its_marks() -> None:
    before = f"# Andon\n\n{readme.BEGIN}old\n{readme.END}\nEnd.\n"
    after = readme.with_table(before, Records())
    assert after.startswith(f"# Andon\n\n{readme.BEGIN}|  | andon ")
    assert after.endswith(f". [All of it](docs/peers.md).\n{readme.END}\nEnd.\n")
    assert after.count("\n| ") == 5 + 2, "with the head and its line"
    assert readme.with_table("# No marks\n", Records()) == "# No marks\n"


def test_the_driver_needs_nothing_but_python() -> None:
    """So a system is measured in an environment that has nothing else in it."""
    tree = ast.parse((ROOT / "bench" / "peers" / "driver.py").read_text("utf-8"))
    modules = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    modules += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    assert {str(module).partition(".")[0] for module in modules} <= sys.stdlib_module_names

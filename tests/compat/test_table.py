# SPDX-License-Identifier: Apache-2.0
"""The table in docs/compatibility.md, and the list of tests that don't suit a loop: what they name exists."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support import loops

ROOT = Path(__file__).parent.parent.parent
TEST = re.compile(r"`(tests/[\w/]+\.py::\w+)`")


def rows() -> dict[str, str]:
    """The rows of the table, by their first column."""
    lines = (ROOT / "docs/compatibility.md").read_text("utf-8").splitlines()
    table = [line for line in lines if line.startswith("|")][2:]  # without its head
    return {line.split("|")[1].strip(): line for line in table}


def exists(test: str) -> bool:
    path, name = test.split("::")
    tree = ast.parse((ROOT / path).read_text("utf-8")) if (ROOT / path).is_file() else ast.Module([], [])
    return any(isinstance(each, ast.FunctionDef) and each.name == name for each in tree.body)


def test_each_row_names_tests_that_exist() -> None:
    assert len(rows()) >= 8
    for name, row in rows().items():
        tests = TEST.findall(row.split("|")[4])
        assert tests, f"{name}: no test is named"
        assert [test for test in tests if not exists(test)] == []
        assert all(test.startswith("tests/compat/") for test in tests)


def test_each_proof_is_in_the_table() -> None:
    """A test here that no row names is one that the table has forgotten."""
    named = set(TEST.findall((ROOT / "docs/compatibility.md").read_text("utf-8")))
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        if path.name != Path(__file__).name:
            tests = {each.name for each in ast.parse(path.read_text("utf-8")).body if isinstance(each, ast.FunctionDef)}
            proofs = {f"tests/compat/{path.name}::{test}" for test in tests if test.startswith("test_")}
            assert proofs <= named


def test_the_pythons_are_those_that_are_tested() -> None:
    row = next(name for name in rows() if name.startswith("Python"))
    versions = re.findall(r"3\.\d+", row)
    probed = re.search(r"\$\{1:-([\d. ]+)\}", (ROOT / "scripts/pythons").read_text("utf-8"))
    assert probed is not None
    assert versions == probed[1].split()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    listed = [each.rsplit(" ", 1)[1] for each in project["classifiers"] if "Python :: 3." in each]
    assert versions == listed
    assert f"{sys.version_info[0]}.{sys.version_info[1]}" in versions


def test_what_does_not_suit_a_loop_exists() -> None:
    named = [test for tests in loops.UNSUITED.values() for test in tests]
    assert [test for test in named if not exists(test)] == []


@pytest.mark.parametrize(
    ("name", "says"), [("epoll", "it can be eager or uvloop"), ("eager", r"needs Python 3\.12 or newer; this is ")]
)
def test_a_loop_that_makes_no_sense_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, says: str) -> None:
    monkeypatch.setenv(loops.VARIABLE, name)
    monkeypatch.setattr(sys, "version_info", (3, 11, 7))
    with pytest.raises(pytest.UsageError, match=says):
        loops.install()

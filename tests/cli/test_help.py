# SPDX-License-Identifier: Apache-2.0
"""What the command says of itself, how quickly, and how it looks."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path

import pytest

from andon.cli import MODULES, make_parser
from andon.cli.command_error import Exit
from andon.cli.options import Help
from andon.cli.terminal import Column, age, cells, fit, milliseconds, table, usage_of
from andon.messages import Usage
from tests.cli.terminal import Andon, environment
from tests.support import HANG

DOCS = Path(__file__).parents[2] / "docs" / "cli.md"
NAMES = ["serve", "worker", "drain", "run", "ps", "top", "watch", "cancel", "unblock", "continue", "prune", "mcp"]


def test_every_command_is_explained(andon: Andon) -> None:
    code, out, _ = andon("--help")
    assert code == 0
    assert list(MODULES) == NAMES
    for name in NAMES:
        assert re.search(rf"^ +{name} +\w", out, re.MULTILINE)
    for command in set(NAMES) - {"serve"}:
        code, out, _ = andon(command, "--help")
        assert code == 0
        assert "examples:" in out


def test_the_documentation_has_every_command_option_and_exit_code() -> None:
    text = DOCS.read_text()
    commands = next(action for action in make_parser()._actions if isinstance(action.choices, dict))
    assert isinstance(commands.choices, dict)
    for name, parser in commands.choices.items():
        section = re.search(rf"^## `andon {name}\b.*?(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
        assert section, name
        if name == "serve":  # which has pages of its own
            assert "`--demo`" in section[0]
            continue
        for action in parser._actions:
            for option in [each for each in action.option_strings if each.startswith("--") and each != "--help"]:
                assert f"`{option}" in text, (name, option)
    for each in Exit:
        assert re.search(rf"^\| {each.value} \|", text, re.MULTILINE), each


def loaded_by(arguments: list[str], code: int = 0) -> set[str]:
    """What a command that ends with this code has loaded."""
    program = f"""
import sys
from andon.cli import main
try:
    code = main({arguments})
except SystemExit as exit:
    code = exit.code
print(*sys.modules, file=sys.stderr)
sys.exit(code)
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], env=environment(), capture_output=True, text=True, timeout=HANG, check=False
    )
    assert ended.returncode == code
    return set(ended.stderr.split())


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["ps", "--help"]])
def test_nothing_is_loaded_that_is_not_needed(arguments: list[str]) -> None:
    heavy = {"fastapi", "uvicorn", "sqlalchemy", "pydantic", "http.client", "andon.cli.demo_agents"}
    assert not heavy & loaded_by(arguments)


@pytest.mark.parametrize("arguments", [["ps"], ["watch", "r"], ["cancel", "r"], ["unblock", "--user", "u"]])
def test_a_command_to_a_server_loads_no_agent_and_no_loop(arguments: list[str]) -> None:
    loaded = loaded_by([*arguments, "--url", "http://127.0.0.1:1"], Exit.unreachable)
    assert not {"asyncio", "andon.surface", "andon.agent.agent", "andon.core.runtime"} & loaded
    assert not {f"andon.cli.{name}" for name in MODULES.values() if name not in {arguments[0], "ps"}} & loaded


def test_help_is_filled_to_the_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    text = Help("andon")._fill_text(f"{'word ' * 30}\n\nlist:\n  as it is{' ' * 60}", 40, "  ")
    filled, listed = text.split("\n\n")
    assert max(map(len, filled.splitlines())) <= 40
    assert listed.startswith("list:\n  as it is    ")


# -- tables -----------------------------------------------------------------------------------------------------------


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("width", range(20, 60))
def test_a_table_keeps_to_the_width(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("NO_COLOR", "1")
    columns = [Column("RUN", 6, 3), Column("WHAT", 4, 2), Column("WHERE", 5, 1)]
    rows = [["a" * 32, "b", "日本語" * 4], ["c", "d\ne\x1b[31m", "ü"]]
    lines = table(columns, rows, Screen()).splitlines()
    assert len(lines) == 3
    assert max(map(cells, lines)) <= width
    assert lines[0].startswith("RUN")
    assert "\x1b" not in lines[2]


def test_without_a_terminal_nothing_is_cut() -> None:
    rows = [["a" * 300, "b"]]
    assert table([Column("A", 1), Column("B", 1)], rows, io.StringIO()).splitlines()[1] == f"{'a' * 300}  b"


def test_small_things() -> None:
    assert [fit(text, 4) for text in ("ab", "abcd", "abcde", "日本語")] == ["ab  ", "abcd", "abc…", "日… "]
    assert cells("e\u0301") == 1
    assert [milliseconds(0.0012), milliseconds(2.5)] == ["1.2 ms", "2.5 s"]
    assert usage_of(Usage(None, 5, estimated=True)) == "? in, 5 out tokens (estimated)"
    assert [age(1e12), age(0)[-1]] == ["0s", "d"]

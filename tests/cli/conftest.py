# SPDX-License-Identifier: Apache-2.0
"""The command in this process, for tests that need neither a terminal nor a process of its own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from andon.cli import main
from tests.cli.terminal import PROGRAM, Andon


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder with a program in it."""
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path


@pytest.fixture
def andon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Andon:
    monkeypatch.chdir(tmp_path)
    for name in ("ANDON_URL", "ANDON_DB", "ANDON_TOKEN"):
        monkeypatch.delenv(name, raising=False)

    monkeypatch.setattr(sys, "path", sys.path.copy())

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.delitem(sys.modules, "program", raising=False)  # as fresh as in a process of its own
        try:
            code: Any = main(arguments)
        except SystemExit as error:  # argparse's own
            code = error.code
        told = capsys.readouterr()
        assert "Traceback" not in told.err
        return int(code), told.out, told.err

    return call

# SPDX-License-Identifier: Apache-2.0
"""Programs that need an interpreter of their own: because they change all of it, or because they start others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support import HANG


def run_program(name: str, *arguments: str) -> str:
    """Run one to its end, with warnings as errors; returns what it prints."""
    program = Path(__file__).parent / name
    command = [sys.executable, "-W", "error", str(program), *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    return ended.stdout

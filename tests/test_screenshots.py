# SPDX-License-Identifier: Apache-2.0
"""The script that takes the pictures of the board still takes them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bench.network import network_at_rest
from tests.support import HANG

ROOT = Path(__file__).parent.parent


@pytest.mark.no_cover
def test_it_takes_the_pictures_that_the_docs_show(tmp_path: Path) -> None:
    if shutil.which("chromium") is None:
        pytest.skip("there is no chromium: `make browser` installs it")
    script = ROOT / "scripts" / "screenshots.py"
    with network_at_rest():
        subprocess.run([sys.executable, str(script), str(tmp_path)], cwd=tmp_path, check=True, timeout=1.5 * HANG)
    taken = {path.name for path in tmp_path.glob("*.png")}
    assert taken == {path.name for path in (ROOT / "docs" / "img").glob("*.png")}
    for path in tmp_path.glob("*.png"):
        assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"

# SPDX-License-Identifier: Apache-2.0
"""The documentation explains every member of a probe. The page's program shows how they behave."""

from __future__ import annotations

import re
from pathlib import Path

from andon.testing import RunProbe

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"


def test_the_page_explains_each_member() -> None:
    section = PAGE.read_text("utf-8").split("\n## Inside a run\n")[1].split("\n## ")[0]
    cells = [row.split(" | ")[0] for row in section.splitlines() if row.startswith("| `")]
    explained = [name for cell in cells for name in re.findall(r"`(?:await )?(\w+)", cell)]
    assert sorted(explained) == sorted(name for name in vars(RunProbe) if not name.startswith("_"))

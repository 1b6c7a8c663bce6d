# SPDX-License-Identifier: Apache-2.0
"""The first commands of docs/serving.md do what the page says. Only the port is another one."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sysconfig
from pathlib import Path

import pytest

pytestmark = pytest.mark.no_cover  # the pages show what other tests cover

ROOT = Path(__file__).parents[2]
HANG = 60


def blocks(language: str) -> list[str]:
    text = (ROOT / "docs" / "serving.md").read_text("utf-8").partition("\n## First steps\n")[2].partition("\n## ")[0]
    found = re.findall(rf"^```{language}[^\n]*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert found, f"docs/serving.md: no {language} in its first section"
    return found


def test_the_lines_do_what_the_page_says(tmp_path: Path) -> None:
    (program,) = blocks("python")
    serve, start, cancel = blocks("sh")
    (tmp_path / "main.py").write_text(program)
    environment = {**os.environ, "PATH": f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}"}

    def popen(line: str) -> subprocess.Popen[str]:
        shell = ["sh", "-ec", f"exec {line.strip()}"]
        return subprocess.Popen(shell, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)

    with popen(f"{serve.strip()} --port 0") as server:
        try:
            assert server.stdout is not None
            found = re.search(r"http://(127.0.0.1:\d+)$", server.stdout.readline())
            assert found is not None
            start, cancel = (
                each.replace("localhost:7777", found[1]).replace("curl", "curl -sS") for each in (start, cancel)
            )
            with popen(start) as reading:
                assert reading.stdout is not None
                told = iter(reading.stdout.readline, "")
                while not next(told).startswith("event: RunContent"):
                    pass
                with popen(cancel) as cancelling:
                    answer = json.loads(cancelling.communicate(timeout=HANG)[0])
                *_, last = [line for line in told if line.startswith("data:")]
            event = json.loads(last.removeprefix("data: "))
            assert reading.returncode == cancelling.returncode == 0
        finally:
            server.send_signal(signal.SIGTERM)
        assert server.wait(HANG) == 0
    assert (event["event"], event["run_id"], event["status"]) == ("RunCancelled", "sea", "CANCELLED")
    assert (answer["outcome"], answer["status"]) == ("requested", "CANCELLED")
    assert answer["receipt"] == event["receipt"]

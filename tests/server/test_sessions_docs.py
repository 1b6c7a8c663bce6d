# SPDX-License-Identifier: Apache-2.0
"""The curl lines that the documentation shows for sessions, as they stand there."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

from andon import Agent
from andon.models.scripted import ScriptedModel
from tests.server.live import serving
from tests.support import HANG

PAGE = Path(__file__).parents[2] / "docs" / "serving.md"


def test_the_lines_do_what_the_page_says() -> None:
    section = PAGE.read_text("utf-8").partition("\n## By session\n")[2].partition("\n## ")[0]
    start, cancel = re.findall(r"^```sh\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    with serving(Agent("Storyteller", ScriptedModel.story(pace=0.005))) as live:

        def line(shown: str) -> list[str]:
            return ["sh", "-ec", shown.replace("localhost:7777", f"127.0.0.1:{live.port}").replace("curl", "curl -sS")]

        with subprocess.Popen(line(start), stdout=subprocess.PIPE, text=True) as reading:
            assert reading.stdout is not None
            told = iter(reading.stdout.readline, "")
            while '"partial":true' not in next(told):
                pass
            cancelled = subprocess.run(line(cancel), capture_output=True, text=True, timeout=HANG, check=True)
            answer = json.loads(cancelled.stdout)
            *_, end = [text for text in told if text.startswith("data:")]
        event = json.loads(end.removeprefix("data: "))
        assert answer == {"session_id": "s1", "cancelled": [event["invocationId"]]}
        assert (event["errorCode"], event["errorMessage"]) == ("INVOCATION_ABORTED", "Cancelled by user")
        assert reading.returncode == 0

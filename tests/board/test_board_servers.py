# SPDX-License-Identifier: Apache-2.0
"""Two servers on one database, and the board of each in a real browser."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.board.hands import press, row, shows
from tests.board.test_board_away import begin, free_port, program
from tests.support.browser import MS, opened

pytestmark = pytest.mark.no_cover  # the page shows what other tests cover

PROGRAM = """
import asyncio
from andon import Agent, tool
from andon.models.scripted import Call, ScriptedModel

@tool
async def slow() -> str:
    await asyncio.Event().wait()

writer = Agent("Writer", ScriptedModel(then=Call("slow", id="s")), tools=[slow])
teller = Agent("Teller", ScriptedModel(then=Call("slow", id="s")), tools=[slow])
"""


def test_a_run_of_another_server_says_where_it_is_and_is_stopped(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    ports = free_port(), free_port()
    here, there = (f"http://127.0.0.1:{port}" for port in ports)
    with (
        program(tmp_path, ports[0]) as server,
        program(tmp_path, ports[1]),
        opened(browser, here) as near,
        opened(browser, there) as far,
    ):
        begin(here, "teller", "r1")
        for page in (near, far):
            shows(row(page, "r1"), "in slow")
        expect(row(near, "r1")).not_to_contain_text(f":{server.pid}")
        expect(row(far, "r1")).to_contain_text(f":{server.pid}")
        row(far, "r1").get_by_role("link").click()
        shows(far.locator("header"), re.compile(r": in slow"))
        press(far, "Stop call slow")  # the other server does it, and the model calls the tool once more
        expect(far.locator(".calls .words").first).to_have_text(re.compile("cut$"), timeout=MS)
        press(far, "Stop")
        shows(far, "Receipt")
        shows(row(near, "r1"), re.compile("stopped in .* cut slow"))
        expect(near.get_by_role("button", name="Stop run r1 of teller")).to_be_hidden(timeout=MS)

# SPDX-License-Identifier: Apache-2.0
"""The board when the network or the server is away, and when it is back."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.board.hands import board, open_run, row, said, shows, start
from tests.support import HANG, eventually
from tests.support.browser import MS, Wire, opened

pytestmark = pytest.mark.no_cover  # the page shows what other tests cover

PROGRAM = """
from andon import Agent
from andon.models.scripted import Say, ScriptedModel, Stall

writer = Agent("Writer", ScriptedModel(then=Say("word " * 20_000, pace=0.02)))
teller = Agent("Teller", ScriptedModel(then=["Once upon a time. ", Stall()]))
"""


@contextmanager
def program(folder: Path, port: int, *options: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "andon", "serve", "program:writer", "program:teller", "--port", str(port)]
    with subprocess.Popen(
        [*command, "--drain", "0", *options], cwd=folder, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        assert "http://" in server.stdout.readline()
        try:
            yield server
        finally:
            server.terminate()


def away(page: Page) -> None:
    expect(page.get_by_role("status")).to_contain_text("The server can't be reached", timeout=MS)


def back(page: Page) -> None:
    expect(page.get_by_role("status")).not_to_contain_text("can't be reached", timeout=MS)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def post(url: str, path: str, **fields: object) -> None:
    assert httpx.post(f"{url}{path}", json=fields, verify=False, timeout=HANG).status_code < 300


def begin(url: str, agent: str, run_id: str) -> None:
    post(url, f"/agents/{agent}/runs", message="Hi", run_id=run_id, background=True, stream=False)


def rows(page: Page) -> int:
    return page.get_by_role("link", name=re.compile(r"(teller|writer|novelist) r\d")).count()


@pytest.mark.parametrize("killed", [signal.SIGTERM, signal.SIGKILL])
def test_a_server_that_is_started_again(browser: Browser, tmp_path: Path, killed: signal.Signals) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with program(tmp_path, port) as server:
        begin(url, "teller", "r1")
        begin(url, "writer", "r2")
        with opened(browser, url) as page, opened(browser, f"{url}/?run=writer/r2") as reading:
            shows(page, "2 runs now")
            shows(reading, re.compile("word word"))
            os.kill(server.pid, killed)
            server.wait(HANG)
            for each in (page, reading):
                away(each)
            assert rows(page) == 2, "what was known is still there"
            with program(tmp_path, port):
                for each in (page, reading):
                    back(each)
                begin(url, "teller", "r3")
                shows(row(page, "r3"), "writing")
                for run_id in ("r1", "r2"):
                    shows(row(page, run_id), re.compile("stopped"))
                shows(reading, "Receipt")
                if killed is signal.SIGTERM:
                    eventually(lambda: said(reading) == content_of(url, "writer", "r2"))
                else:  # all that the page has read is still there, also what the database had not got yet
                    assert re.fullmatch("(word )+", said(reading))
                assert rows(page) == 3, "no line is there twice"
                post(url, "/runs/cancel?wait=30", all=True)


def test_a_server_that_has_forgotten_all_its_runs(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with program(tmp_path, port, "--db", "memory://") as server:
        begin(url, "teller", "r1")
        with opened(browser, url) as page, opened(browser, f"{url}/?run=teller/r1") as reading:
            shows(row(page, "r1"), "writing")
            shows(reading, "Once upon a time.")
            server.kill()
            server.wait(HANG)
            for each in (page, reading):
                away(each)
            with program(tmp_path, port, "--db", "memory://"):
                begin(url, "teller", "r2")
                shows(row(page, "r2"), "writing")
                assert rows(page) == 1, "what is not known any more is not shown as if it went on"
                shows(page, "1 run now")
                shows(reading, "Gone")
                expect(reading.get_by_role("button", name="Stop", exact=True)).to_be_hidden(timeout=MS)
                assert said(reading) == "Once upon a time. ", "what was read is still there"
                post(url, "/runs/cancel?wait=30", all=True)


def content_of(url: str, agent: str, run_id: str) -> str:
    return str(httpx.get(f"{url}/agents/{agent}/runs/{run_id}", verify=False).json()["content"])


def test_a_network_that_is_cut(browser: Browser) -> None:
    with board(browser) as (live, _), Wire(live.port) as wire:
        start(live, "novelist", "r1")
        start(live, "teller", "r2")
        with opened(browser, f"{wire.url}/?run=novelist/r1") as reading, opened(browser, wire.url) as page:
            for _ in range(2):
                seen = len(said(reading))
                eventually(lambda seen=seen: len(said(reading)) > seen)  # type: ignore[misc]
                wire.cut()
                for each in (page, reading):
                    away(each)
                wire.mend()
                for each in (page, reading):
                    back(each)
            post(live.url, "/agents/novelist/runs/r1/cancel?wait=30")
            shows(reading, "Receipt")
            eventually(lambda: said(reading) == content_of(live.url, "novelist", "r1"), every=0.05)
            shows(row(page, "r2"), "writing")
            assert rows(page) == 2


def test_a_stop_that_finds_no_server_says_so(browser: Browser) -> None:
    with board(browser) as (live, _), Wire(live.port) as wire:
        start(live, "teller", "r1")
        with opened(browser, wire.url) as page:
            open_run(page, live, "teller", "r1")
            page.goto(f"{wire.url}/?run=teller/r1")
            shows(page, "Once")
            wire.cut()
            page.get_by_role("button", name="Stop", exact=True).click()
            expect(page.locator("#announcer")).to_contain_text("can't be reached", timeout=MS)
            wire.mend()
            back(page)
            page.get_by_role("button", name="Stop", exact=True).click()
            shows(page, "Receipt")

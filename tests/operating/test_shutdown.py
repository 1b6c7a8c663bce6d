# SPDX-License-Identifier: Apache-2.0
"""Servers and workers end within their time, whatever their tools and their database do."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from andon.cli import closing, serve
from tests.operating.processes import eventually, site
from tests.support import HANG

PROGRAM = """
import asyncio
import pathlib
import time

from andon import Agent, tool
from andon.models.scripted import Call, ScriptedModel


@tool
async def stay() -> str:
    pathlib.Path("stays").touch()
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass


@tool
async def block() -> str:
    pathlib.Path("blocks").touch()
    time.sleep(600)
    return ""


agents = [Agent(each.name, ScriptedModel(Call(each.name, {})), tools=[each]) for each in (stay, block)]
"""


def test_tools_that_can_not_be_stopped_hold_up_no_worker(tmp_path: Path, postgres_url: str) -> None:
    with site(tmp_path, postgres_url, PROGRAM) as here:
        server = here.serve("--no-execute")
        alpha = here.worker("alpha", "--drain", "0")
        server.start("stay", "stay")
        eventually((tmp_path / "stays").exists)
        assert alpha.stop() == 0
        assert "andon: still running at the end: " in alpha.printed[-1]
        assert server.follow("stay", "stay")[-1] == "RunCancelled"
        assert server.state("stay", "stay")["receipt"]["leftovers"] == ["tool stay (call_1)"]
        beta = here.worker("beta", "--drain", "60")
        server.start("block", "block")
        eventually((tmp_path / "blocks").exists)

        def is_ended() -> bool:
            """After the second signal that it has noticed: those that come too quickly are one signal for Python."""
            beta.popen.send_signal(signal.SIGTERM)
            return beta.popen.poll() is not None

        eventually(is_ended)
        assert beta.ended() == -signal.SIGTERM, "though its loop is blocked"


class Silent:
    """A runtime whose database does not answer."""

    def __init__(self) -> None:
        self.answers = asyncio.Event()

    async def close(self) -> None:
        try:
            await self.answers.wait()
        finally:  # a cancel makes it no quicker
            await self.answers.wait()


LEFT = "calls of the database, which does not answer"


def test_a_database_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closing, "CLOSE_SECONDS", 0.05)

    async def main() -> None:
        silent: Any = Silent()
        ends = asyncio.ensure_future(closing.close_in_time(silent))
        done, _ = await asyncio.wait([ends], timeout=HANG)
        silent.answers.set()
        assert done
        assert ends.result() == [LEFT]
        assert await closing.close_in_time(silent) == [], "it answers"

    asyncio.run(main())


def test_a_server_ends_at_once_then(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Otherwise the end of its event loop would wait for the database. But an error has to be shown first."""
    monkeypatch.setattr(closing, "CLOSE_SECONDS", 0.05)

    class Slow:
        async def close(self) -> None:
            await asyncio.Event().wait()

    class LeftError(Exception):
        pass

    def leave(code: int) -> None:
        raise LeftError(code)

    monkeypatch.setattr(os, "_exit", leave)
    slow: Any = Slow()
    with pytest.raises(LeftError, match="0"):
        serve._close(slow)
    assert capsys.readouterr().err == f"andon: still running at the end: {LEFT}\n"

    def fail() -> None:
        try:
            raise ZeroDivisionError
        finally:
            serve._close(slow)

    with pytest.raises(ZeroDivisionError):
        fail()

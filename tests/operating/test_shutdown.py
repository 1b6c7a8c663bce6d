# SPDX-License-Identifier: Apache-2.0
"""A worker process ends within its time, whatever its tools and its database do."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

from andon.cli import worker
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


def test_a_database_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "CLOSE_SECONDS", 0.05)

    async def main() -> None:
        answers = asyncio.Event()

        class Silent:
            async def close(self) -> None:
                try:
                    await answers.wait()
                finally:  # a cancel makes it no quicker
                    await answers.wait()

        silent: Any = Silent()
        closing = asyncio.ensure_future(worker._close(silent))
        done, _ = await asyncio.wait([closing], timeout=HANG)
        answers.set()
        assert done
        assert closing.result() == ["calls of the database, which does not answer"]
        assert await worker._close(silent) == [], "it answers"

    asyncio.run(main())

# SPDX-License-Identifier: Apache-2.0
"""What a server that goes down says that it waits for, in virtual time."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from andon.server.drain_report import report_drain
from andon.testing import virtual_run


def at_work(run_id: str, *, paused: bool = False, parent: str | None = None) -> Any:
    return SimpleNamespace(run_id=run_id, agent_id="teller", is_paused=paused, parent_run_id=parent)


def test_it_says_what_it_waits_for_as_time_goes_by() -> None:
    async def main() -> None:
        told: list[str] = []
        runs = [at_work("sea"), at_work("map"), at_work("asks", paused=True), at_work("child", parent="sea")]
        host: Any = SimpleNamespace(settings=SimpleNamespace(drain=12.0), live=runs)
        telling = report_drain(host, told.append)
        assert telling is not None
        await asyncio.sleep(1)
        runs.pop(1)
        await telling
        assert told == [
            "shutting down: waiting up to 12 s for 2 runs: sea (teller), map (teller). "
            "Another SIGTERM or Ctrl-C ends the server at once",
            "waiting for 1 run: sea (teller), 7 s left",
            "waiting for 1 run: sea (teller), 2 s left",
            "time is up: cancelling 1 run: sea (teller)",
        ]
        runs.clear()
        assert report_drain(host, told.append) is None

    virtual_run(main())

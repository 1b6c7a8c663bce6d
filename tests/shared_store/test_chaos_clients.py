# SPDX-License-Identifier: Apache-2.0
"""What the clients of `bench.chaos` take an answer for: only what a server has said is held against it."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from bench.chaos.clients import Clients
from bench.chaos.servers import Server
from tests.support import play

SERVERS = cast("list[Server]", [SimpleNamespace(url="http://localhost")])


class Lucky(Random):
    """Cancels the session's runs, and then its own."""

    def random(self) -> float:
        return 0.0


async def told(status: int, said: dict[str, Any], *, many: bool = False) -> Clients:
    """One who cancels a run, or `many` at once, is answered this."""

    def answer(request: httpx.Request) -> httpx.Response:
        is_many = request.url.path == "/runs/cancel"
        if is_many is not many:
            return httpx.Response(404, json={})
        return httpx.Response(status, json={"cancelled": [{"run_id": "r", **said}]} if many else said)

    clients = Clients(1, "test", Lucky(1))
    await clients.close()
    clients._http = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    clients.servers = SERVERS
    await clients._cancel_later("r", "s")
    await clients.close()
    return clients


@pytest.mark.parametrize(
    ("outcome", "status", "is_acknowledged", "ends"),
    [
        ("requested", "CANCELLING", True, set()),
        ("already_requested", "CANCELLING", True, set()),
        ("already_finished", "CANCELLED", False, {"CANCELLED"}),
        ("already_finished", "COMPLETED", False, {"COMPLETED"}),
        ("already_finished", "ERROR", False, {"ERROR"}),
        ("already_finished", "RUNNING", False, set()),
        ("already_finished", None, False, set()),
    ],
)
def test_of_many_runs_each_is_as_it_was_said_of_it(
    outcome: str, status: str | None, is_acknowledged: bool, ends: set[str]
) -> None:
    async def main() -> None:
        clients = await told(200, {"outcome": outcome, "status": status}, many=True)
        assert ("r" in clients.ledger.acknowledged) is is_acknowledged
        assert clients.ledger.ends["r"] == ends

    play(main)


@pytest.mark.parametrize(
    ("answered", "said", "is_acknowledged", "ends"),
    [
        (200, {"outcome": "requested", "status": "CANCELLING"}, True, set()),
        (202, {"outcome": "requested", "status": "CANCELLING", "stored": False}, True, set()),
        (200, {"outcome": "already_finished", "status": "CANCELLED"}, False, {"CANCELLED"}),
        (409, {"outcome": "already_finished", "status": "COMPLETED"}, False, {"COMPLETED"}),
        (503, {"detail": "the database can't be asked"}, False, set()),
        (404, {"detail": "no run 'r'"}, False, set()),
    ],
)
def test_of_one_run_the_status_of_the_answer_says_it(
    answered: int, said: dict[str, Any], is_acknowledged: bool, ends: set[str]
) -> None:
    async def main() -> None:
        clients = await told(answered, said)
        assert ("r" in clients.ledger.acknowledged) is is_acknowledged
        assert clients.ledger.ends["r"] == ends
        assert bool(clients.ledger.counts["cancels acknowledged that were not stored yet"]) is (answered == 202)

    play(main)

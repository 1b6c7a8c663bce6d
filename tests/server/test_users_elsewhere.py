# SPDX-License-Identifier: Apache-2.0
"""One user's token and another user's run, which another server of the same database holds."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from andon import Agent, Runtime
from andon.models.scripted import ScriptedModel, Stall
from andon.store.sql import SQLStore
from tests.server.people import client_of, guarded

RUNS = "/agents/helper/runs"
SAID = "what-bob-was-told"


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[httpx.Client, httpx.Client]]:
    """Bob at the first one, where his run `held` is going, and Ada at the second one."""
    runtimes = [Runtime(SQLStore(f"sqlite:///{tmp_path}/andon.db")) for _ in range(2)]
    first, second = (Agent("Helper", ScriptedModel([SAID, Stall()], then="OK."), runtime=each) for each in runtimes)
    with (
        guarded(first) as here,
        guarded(second) as there,
        client_of(here, "bob") as bob,
        client_of(there, "ada") as ada,
    ):
        wanted = {"message": "Hi", "background": True, "stream": False, "run_id": "held", "session_id": "s1"}
        assert bob.post(RUNS, json=wanted).status_code == 202
        yield bob, ada
        bob.post(f"{RUNS}/held/cancel?wait=30")
    for runtime in runtimes:
        asyncio.run(runtime.close())


def test_a_cancel_of_someone_elses_run_finds_none(servers: tuple[httpx.Client, httpx.Client]) -> None:
    bob, ada = servers
    answer = ada.post(f"{RUNS}/held/cancel")
    assert answer.status_code == 404
    assert answer.json()["detail"] == ada.post(f"{RUNS}/nowhere/cancel").json()["detail"].replace("nowhere", "held")
    assert bob.get(f"{RUNS}/held").json()["status"] == "RUNNING"


@pytest.mark.parametrize("stream", [False, True])
def test_a_key_that_came_with_the_id_of_someone_elses_run_shows_nothing_of_it(
    servers: tuple[httpx.Client, httpx.Client], stream: bool
) -> None:
    _, ada = servers
    wanted = {"message": "Hi", "stream": stream, "run_id": "held"}
    first, again = (ada.post(RUNS, json=wanted, headers={"idempotency-key": "k1"}) for _ in range(2))
    assert first.status_code == again.status_code == 409
    assert first.text == again.text
    assert "bob" not in again.text

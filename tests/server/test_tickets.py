# SPDX-License-Identifier: Apache-2.0
"""Tickets for a browser's `EventSource`: good for the events of one run, for a while, and for nothing else."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import HTTPConnection

from andon import Agent
from andon.errors import StoreError
from andon.models.scripted import Call, ScriptedModel
from andon.server import create_app
from andon.server.access import Principal
from tests.server.live import Live, frames, serving, serving_app, serving_on
from tests.server.people import TOKENS, client_of, guarded
from tests.support import Flag, Hold, eventually

RUNS = "/agents/helper/runs"


@pytest.fixture
def live() -> Iterator[Live]:
    agents = [Agent("Helper", ScriptedModel(then=["One ", "two ", "three."])), Agent("Other", ScriptedModel())]
    with guarded(*agents) as live:
        for name, run_id in (("ada", "r1"), ("ada", "r2"), ("bob", "b1")):
            with client_of(live, name) as client:
                client.post(RUNS, data={"message": "Hi", "run_id": run_id, "stream": "false"})
        yield live


def ticket_of(live: Live, name: str, run_id: str, **fields: Any) -> Any:
    with client_of(live, name) as client:
        answer = client.post(f"{RUNS}/{run_id}/ticket", json=fields)
        assert answer.status_code == 200, answer.text
        return answer.json()


class EventSource:
    """What a browser's does: it GETs one URL, without any header of the page's, and again with the last id it read."""

    def __init__(self, live: Live, url: str) -> None:
        self._live, self._url, self.last = live, url, ""

    def read(self, count: int | None = None) -> list[str]:
        """So many events; then the connection breaks."""
        read = []
        headers = {"accept": "text/event-stream", **({"last-event-id": self.last} if self.last else {})}
        with (
            self._live.another_client() as client,
            client.stream("GET", self._url, headers=headers) as response,
        ):
            if response.status_code != 200:
                return [str(response.status_code)]
            for frame in frames(response.iter_lines()):
                read.append(frame.event)
                self.last = str(frame.id)
                if len(read) == count:
                    break
        return read


def test_a_ticket_opens_the_events_and_reconnects_go_on(live: Live) -> None:
    ticket = ticket_of(live, "ada", "r1")
    assert ticket["url"] == f"{RUNS}/r1/events?ticket={ticket['ticket']}"
    assert time.time() + 200 < ticket["expires_at"] < time.time() + 301
    source = EventSource(live, ticket["url"])
    assert source.read(2) == ["RunStarted", "RunContent"]
    assert source.read(1) == ["RunContent"]
    assert source.read() == ["RunContent", "RunCompleted"]
    assert source.read() == ["204"]  # which tells it to ask no more


def test_a_run_that_goes_on_is_watched(live: Live) -> None:
    goes_on = Flag()
    agent = Agent("Helper", ScriptedModel(then=["One ", Hold(goes_on), "two."]))
    with guarded(agent) as live, client_of(live, "ada") as client:
        run_id = client.post(RUNS, data={"message": "Hi", "background": "true", "stream": "false"}).json()["run_id"]
        source = EventSource(live, ticket_of(live, "ada", run_id)["url"])
        assert source.read(2) == ["RunStarted", "RunContent"]
        goes_on.set()
        assert source.read()[-1] == "RunCompleted"


def test_it_opens_nothing_else(live: Live) -> None:
    ticket = ticket_of(live, "ada", "r1")["ticket"]
    query = {"ticket": ticket}
    for path in (
        f"{RUNS}/r2/events",
        f"{RUNS}/b1/events",
        "/agents/other/runs/r1/events",
        "/agents/none/runs/r1/events",
    ):
        refused = live.client.get(path, params=query)
        assert (refused.status_code, "POST …/ticket" in refused.json()["detail"]) == (401, True)
    for path in ("/runs", RUNS, f"{RUNS}/r1", "/agents", f"{RUNS}/r1/events/"):
        assert live.client.get(path, params=query).status_code == 401
    for path in (f"{RUNS}/r1/events", f"{RUNS}/r1/cancel", f"{RUNS}/r1/ticket", RUNS):
        assert live.client.post(path, params=query).status_code == 401


def test_no_user_gets_one_for_the_run_of_another(live: Live) -> None:
    with client_of(live, "ada") as client:
        for path in (f"{RUNS}/b1/ticket", f"{RUNS}/none/ticket", "/agents/none/runs/r1/ticket"):
            assert client.post(path).status_code == 404
    assert live.client.post(f"{RUNS}/r1/ticket").status_code == 401
    assert EventSource(live, ticket_of(live, "root", "b1")["url"]).read()[-1] == "RunCompleted"


def test_it_is_for_the_user_who_asked(live: Live) -> None:
    """Once a run is forgotten, another user's may get its id: here it is as if `b1` had been one of ada's before."""
    agent = live.app.state.andon.agent("helper")
    make = live.app.state.tickets.make(agent, "b1", Principal("ada"), int(time.time()) + 60)
    assert live.client.get(f"{RUNS}/b1/events", params={"ticket": asyncio.run(make)}).status_code == 404


def test_it_expires(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    ticket = ticket_of(live, "ada", "r1", seconds=60)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 58)
    assert EventSource(live, ticket["url"]).read(1) == ["RunStarted"]
    monkeypatch.setattr(time, "time", lambda: now + 62)
    assert EventSource(live, ticket["url"]).read(1) == ["401"]


@pytest.mark.parametrize("seconds", [0, -1, 3601, "soon"])
def test_for_how_long_has_bounds(live: Live, seconds: Any) -> None:
    with client_of(live, "ada") as client:
        assert client.post(f"{RUNS}/r1/ticket", json={"seconds": seconds}).status_code == 422


def test_a_made_up_ticket_is_refused(live: Live) -> None:
    ticket: str = ticket_of(live, "ada", "r1")["ticket"]
    claim, _, seal = ticket.partition(".")
    forged = base64.urlsafe_b64encode(json.dumps([int(time.time()) + 9999, "ada", True]).encode()).decode().rstrip("=")
    odd = [
        "",
        ".",
        "é.é",
        claim,
        f"{claim}.",
        f".{seal}",
        f"{forged}.{seal}",
        f"{claim}.{seal[:-1]}",
        f"{ticket}x",
        "AAAA." + seal,
        base64.urlsafe_b64encode(b'[9999999999,"ada",true,' + b"[" * 45_000).decode().rstrip("=") + "." + seal,
    ]
    for each in odd:
        assert live.client.get(f"{RUNS}/r1/events", params={"ticket": each}).status_code == 401, each[:99]


def test_it_is_not_logged_nor_kept_by_a_cache(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "andon"), client_of(live, "ada") as client:
        made = client.post(f"{RUNS}/r1/ticket")
        assert made.headers["cache-control"] == "no-store"
        ticket = made.json()["ticket"]
        EventSource(live, made.json()["url"]).read()
        eventually(lambda: f"GET {RUNS}/r1/events 200" in caplog.text)
    assert ticket[:8] not in caplog.text


def test_with_a_function_of_ones_own_and_under_a_prefix() -> None:
    async def by_header(connection: HTTPConnection) -> str | None:
        return connection.headers.get("user")

    app = create_app(Agent("Helper", ScriptedModel()), authenticate=by_header)
    with serving_app(app, root_path="/api") as live:
        live.client.headers["user"] = "ada"
        live.client.post(RUNS, data={"message": "Hi", "run_id": "r1", "stream": "false"})
        ticket = live.client.post(f"{RUNS}/r1/ticket").json()
        assert ticket["url"].startswith(f"/api{RUNS}/r1/events?")
        assert EventSource(live, ticket["url"].removeprefix("/api")).read()[-1] == "RunCompleted"


def test_the_run_of_a_sub_agent_is_watched_too() -> None:
    below = Agent("Below", ScriptedModel("Done."))
    agent = Agent("Helper", ScriptedModel(Call("below", {"prompt": "Go"})), tools=[below.as_tool()])
    with guarded(agent) as live, client_of(live, "ada") as ada, client_of(live, "bob") as bob:
        ada.post(RUNS, data={"message": "Hi", "run_id": "r1", "stream": "false"})
        (path,) = [f"/agents/below/runs/{each['run_id']}" for each in ada.get("/agents/below/runs").json()]
        assert bob.post(f"{path}/ticket").status_code == 404
        url = ada.post(f"{path}/ticket").json()["url"]
        assert EventSource(live, url).read()[-1] == "RunCompleted"
        assert EventSource(live, url.replace("/agents/below/", "/agents/helper/")).read() == ["401"]


def test_a_server_that_is_open_gives_them_too() -> None:
    with serving(Agent("Helper", ScriptedModel())) as live:
        live.client.post(RUNS, data={"message": "Hi", "run_id": "r1", "stream": "false"})
        assert EventSource(live, live.client.post(f"{RUNS}/r1/ticket").json()["url"]).read()[-1] == "RunCompleted"


def on(url: str) -> Any:
    return serving_on(url, Agent("Helper", ScriptedModel()), tokens=TOKENS)


def test_every_server_of_a_database_takes_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/andon.db"
    with on(url) as one, on(url) as other:
        with client_of(one, "ada") as client:
            client.post(RUNS, data={"message": "Hi", "run_id": "r1", "stream": "false"})
        assert EventSource(other, ticket_of(one, "ada", "r1")["url"]).read()[-1] == "RunCompleted"
        assert EventSource(one, ticket_of(other, "ada", "r1")["url"]).read()[-1] == "RunCompleted"


def test_a_database_that_can_not_be_asked_is_a_503(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with on(f"sqlite:///{tmp_path}/andon.db") as live:
        store = live.app.state.andon.agents["helper"].runtime.store

        async def away(name: str) -> str:
            raise StoreError("the database at geheim.example is away")

        monkeypatch.setattr(store, "secret", away)
        claim = base64.urlsafe_b64encode(json.dumps([int(time.time()) + 9, "ada", False]).encode()).decode()
        answer: httpx.Response = live.client.get(f"{RUNS}/r1/events", params={"ticket": f"{claim}.x"})
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert "geheim" not in answer.text

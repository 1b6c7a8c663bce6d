# SPDX-License-Identifier: Apache-2.0
"""Web pages elsewhere: names that were made to point here, foreign origins, and those that were allowed to ask."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from fastapi import FastAPI

from andon import Agent, ConfigurationError
from andon.models.scripted import ScriptedModel
from andon.server import create_app
from tests.server.live import Live, serving, serving_app
from tests.server.people import ROUTES, at, bearer, guarded, refusal_of

RUNS = "/agents/helper/runs"
PAGE = "https://page.example"
TALK = {"app_name": "helper", "user_id": "ada", "session_id": "s1"}


@contextmanager
def plain(**settings: Any) -> Iterator[Live]:
    with serving(Agent("Helper", ScriptedModel()), **settings) as live:
        yield live


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with plain(hosts=["Agents.example"]) as live:
        yield live


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_a_name_that_is_not_ours_reaches_nothing(live: Live, method: str, path: str) -> None:
    response = live.client.request(method, at(path), headers={"host": f"evil.example:{live.port}"})
    assert response.status_code == 403
    if method != "HEAD":
        assert "--allow-host" in response.json()["detail"]


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_a_page_of_another_origin_reaches_nothing(live: Live, method: str, path: str) -> None:
    response = live.client.request(method, at(path), headers={"origin": PAGE})
    assert response.status_code == 403
    assert "access-control-allow-origin" not in response.headers
    if method != "HEAD":
        assert "--cors-origin" in response.json()["detail"]


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "localhost:80",
        "LOCALHOST",
        "app.localhost",
        "127.0.0.1",
        "127.8.8.8:7777",
        "[::1]:7777",
        "agents.example",
    ],
)
def test_our_own_names_are_known(live: Live, host: str) -> None:
    assert live.client.get("/agents", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "",
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "evil.example#localhost",
        "localhost@evil.example",
        "evil.example@localhost",
        "x.agents.example",
        "192.0.2.1",
        "[::1",
        "2130706433",
        "0x7f.1",
    ],
)
def test_other_names_are_not(live: Live, host: str) -> None:
    assert live.client.get("/agents", headers={"host": host}).status_code == 403


def test_a_request_with_two_names_or_none_is_refused(live: Live) -> None:
    for head in (b"host: localhost\r\nhost: evil.example\r\n", b""):
        with live.connect() as bare:
            bare.sendall(b"GET /agents HTTP/1.1\r\n" + head + b"connection: close\r\n\r\n")
            assert bare.recv(1000).split()[1] in (b"403", b"400")


@pytest.mark.parametrize("origin", [PAGE, "null", "http://localhost:1", "http://[", "file://", "{url}.evil.example"])
def test_other_origins_are_foreign(live: Live, origin: str) -> None:
    origin = origin.format(url=live.url)
    for method, path in (("GET", "/runs"), ("POST", RUNS), ("OPTIONS", RUNS)):
        assert live.client.request(method, path, headers={"origin": origin}).status_code == 403
    code, detail = refusal_of(live, headers={"Origin": origin}, **TALK)
    assert code == 403
    assert "origin" in detail


def test_a_live_connection_by_another_name_is_refused(live: Live) -> None:
    code, detail = refusal_of(live, headers={"Host": "evil.example", "Origin": "http://evil.example"}, **TALK)
    assert code == 403
    assert "evil.example" in detail


def test_our_own_pages_may_ask(live: Live) -> None:
    for origin, host in ((live.url, f"127.0.0.1:{live.port}"), ("https://agents.example", "agents.example:443")):
        answer = live.client.post(RUNS, data={"message": "Hi"}, headers={"origin": origin, "host": host})
        assert answer.status_code == 200


def test_with_a_token_the_name_is_a_proxys_to_choose_and_pages_are_still_checked() -> None:
    with guarded(Agent("Helper", ScriptedModel())) as live:
        mine = {**bearer("ada"), "host": "agents.example"}
        form = {"message": "Hi", "stream": "false"}
        assert live.client.post(RUNS, data=form, headers=mine).status_code == 200
        assert live.client.post(RUNS, data=form, headers={**mine, "origin": PAGE}).status_code == 403
        assert (
            live.client.post(RUNS, data=form, headers={**mine, "origin": "https://agents.example"}).status_code == 200
        )
        assert live.client.get("/runs", headers={**mine, "origin": PAGE}).status_code == 200  # unreadable without CORS
        assert refusal_of(live, headers={**bearer("ada"), "Origin": PAGE}, **TALK)[0] == 403


def test_a_page_that_was_allowed_may_ask_and_read() -> None:
    with guarded(Agent("Helper", ScriptedModel("One ", then="Two ")), cors_origins=[PAGE]) as live:
        asked = {
            "origin": PAGE,
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization,content-type,idempotency-key,last-event-id",
        }
        preflight = live.client.options(RUNS, headers=asked)
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] == PAGE
        assert "POST" in preflight.headers["access-control-allow-methods"]
        allowed = preflight.headers["access-control-allow-headers"].lower()
        assert all(name in allowed for name in ("authorization", "idempotency-key", "last-event-id", "content-type"))
        assert live.client.options(RUNS, headers={**asked, "origin": "https://other.example"}).status_code == 400

        page = {**bearer("ada"), "origin": PAGE}
        for _ in range(2):  # what one response was given must not pile up in the next
            with live.client.stream("POST", RUNS, data={"message": "Hi"}, headers=page) as stream:
                assert stream.headers["content-type"].startswith("text/event-stream")
                assert stream.headers.get_list("access-control-allow-origin") == [PAGE]
                assert "RunCompleted" in stream.read().decode()
        refused = live.client.get("/runs", headers={"origin": PAGE})
        assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, PAGE)


def test_any_page_may_ask_where_there_are_tokens() -> None:
    with guarded(Agent("Helper", ScriptedModel()), cors_origins=["*"]) as live:
        answer = live.client.post(RUNS, data={"message": "Hi"}, headers={**bearer("ada"), "origin": PAGE})
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, "*")
        assert live.client.post(RUNS, data={"message": "Hi"}, headers={"origin": PAGE}).status_code == 401


def test_mounted_it_is_the_same() -> None:
    outer = FastAPI()
    outer.mount("/inner", create_app(Agent("Helper", ScriptedModel())))
    with serving_app(outer) as live:
        assert live.client.get("/inner/agents").status_code == 200
        assert live.client.get("/inner/agents", headers={"host": "evil.example"}).status_code == 403
        assert live.client.get("/inner/agents", headers={"origin": PAGE}).status_code == 403
        assert live.client.get("/inner/agents", headers={"origin": live.url}).status_code == 200


def test_every_name_can_be_allowed() -> None:
    with plain(hosts=["*"]) as live:
        assert live.client.get("/agents", headers={"host": "agents.example"}).status_code == 200
        assert (
            live.client.get("/agents", headers={"host": "a.example", "origin": "http://b.example"}).status_code == 403
        )


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"cors_origins": ["*"]}, "give tokens"),
        ({"cors_origins": ["page.example"]}, "no origin"),
        ({"cors_origins": ["https://page.example/"]}, "no path"),
        ({"cors_origins": ["https://me@page.example"]}, "no origin"),
        ({"cors_origins": ["null"]}, "no origin"),
        ({"cors_origins": ["http://["]}, "no origin"),
        ({"cors_origins": PAGE}, "lists"),
        ({"hosts": "agents.example"}, "lists"),
    ],
)
def test_what_means_nothing_is_refused_at_once(settings: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        create_app(Agent("Helper", ScriptedModel()), **settings)

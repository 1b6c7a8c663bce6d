# SPDX-License-Identifier: Apache-2.0
"""What no client sends by accident: numbers beyond a database's, JSON without a bottom. A clear 4xx each, on any store.

And what goes wrong with the database is told to users without a word of the database.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from andon import Agent, Runtime
from andon.models.scripted import ScriptedModel
from andon.server.body import MAX_DEPTH, _is_deep, _outside_strings
from andon.store import open_store
from andon.store.sql import SQLStore
from tests.server.live import Live, serving
from tests.store.conftest import any_url, own_server, postgres_url, server, sqlite_url
from tests.store.server import Server
from tests.support import HANG, Silence

__all__ = ["any_url", "own_server", "postgres_url", "server", "sqlite_url"]

RUNS = "/agents/helper/runs"
SESSIONS = "/apps/helper/users/ada/sessions"
JSON = {"content-type": "application/json"}


@pytest.fixture
def live(any_url: str) -> Iterator[Live]:
    """A server, and on it a run that only its store knows any more."""
    runtime = Runtime(open_store(any_url))
    agent = Agent("Helper", ScriptedModel(then="OK."), runtime=runtime)
    agent.runtime.keep_ended(seconds=0)
    with serving(agent) as live:
        for name in ("r1", "r2"):  # with the second one, the first has left the memory
            fields = {"message": "Hi", "run_id": name, "session_id": "s1", "user_id": "ada", "stream": "false"}
            assert live.post(RUNS, **fields).status_code == 200
        yield live
    asyncio.run(runtime.close())


def refused(answer: httpx.Response) -> str:
    assert 400 <= answer.status_code < 500, answer.text
    detail = answer.json()["detail"]
    assert isinstance(detail, str)
    return detail


FAR = ["9" * 30, str(2**31), str(2**63 - 1), str(2**63), str(2**64), "-5", "1.5", "１２", "1e99", "²", "1_0"]


def test_numbers_that_no_event_has(live: Live) -> None:
    for number in FAR:
        refused(live.client.post(f"{RUNS}/r1/resume", data={"last_event_index": number}))
        refused(live.client.get(f"{RUNS}/r1/events", params={"last_event_id": number}))
        if number.isascii():
            refused(live.client.get(f"{RUNS}/r1/events", headers={"last-event-id": number}))
    for value in (2**31, 2**63, 2**64, 10**40, -(10**40), 1.5, 1e300):
        refused(live.client.post(f"{RUNS}/r1/resume", json={"last_event_index": value}))
        refused(live.client.get("/cancels", params={"limit": str(value)}))


def nested(depth: int) -> str:
    return '{"a":' * depth + "1" + "}" * depth


BOTTOMLESS = [nested(101), nested(1000), "[" * 100_000, '[{"a":' * 500]


@pytest.fixture
def plain() -> Iterator[Live]:
    """A server in memory: it is refused before any store is asked."""
    with serving(Agent("Helper", ScriptedModel(then="OK."))) as live:
        fields = {"message": "Hi", "run_id": "r1", "session_id": "s1", "user_id": "ada", "stream": "false"}
        assert live.post(RUNS, **fields).status_code == 200
        yield live


def test_json_without_a_bottom(plain: Live) -> None:
    bodies = [
        ("POST", RUNS),
        ("POST", f"{RUNS}/r1/cancel"),
        ("POST", f"{RUNS}/r1/continue"),
        ("POST", f"{RUNS}/r1/resume"),
        ("POST", "/runs/cancel"),
        ("POST", "/unblock"),
        ("POST", "/run"),
        ("POST", "/run_sse"),
        ("POST", SESSIONS),
        ("POST", f"{SESSIONS}/s2"),
        ("PATCH", f"{SESSIONS}/s1"),
        ("POST", f"{SESSIONS}/s1:cancel"),
    ]
    for text in BOTTOMLESS:
        for method, path in bodies:
            for body in (text, f'{{"message": "Hi", "stateDelta": {text}, "state": {text}}}'):
                detail = refused(plain.client.request(method, path, content=body, headers=JSON))
                assert "nested too deeply" in detail or "not JSON" in detail or "has more than 200,000" in detail
        refused(plain.client.post(f"{RUNS}/r1/continue", data={"answers": text, "tools": text}))
    assert plain.client.get(f"{SESSIONS}/s2").status_code == 404


def test_state_as_deep_as_may_be_is_kept(live: Live) -> None:
    state = json.loads(nested(MAX_DEPTH))
    assert live.client.post(f"{SESSIONS}/deep", json=state).status_code == 200
    assert live.client.get(f"{SESSIONS}/deep").json()["state"] == state
    large = {"a": 10**30, "b": -(2**64), "c": 1e300}
    assert live.client.post(f"{SESSIONS}/large", json=large).status_code == 200
    assert live.client.get(f"{SESSIONS}/large").json()["state"] == large


@pytest.mark.parametrize("text", ["[" * 100_000, json.dumps({"state_delta": json.loads(nested(500))}), nested(99_999)])
def test_a_live_connection_that_sends_such_is_closed(plain: Live, text: str) -> None:
    url = f"ws://127.0.0.1:{plain.port}/run_live?app_name=helper&user_id=ada&session_id=s1"
    with connect(url, proxy=None) as socket, pytest.raises(ConnectionClosed) as caught:
        socket.send(text)
        socket.recv(timeout=HANG)
    assert caught.value.rcvd is not None
    assert (caught.value.rcvd.code, "deeply" in caught.value.rcvd.reason) == (1007, True)


def depth_of(value: Any) -> int:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inside is None else 1 + max(map(depth_of, inside), default=0)


TEXT = st.text(st.sampled_from('[]{}"\\, \n"é'))
VALUES = st.recursive(TEXT | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=9)


@settings(max_examples=200, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(VALUES, st.integers(95, 105), st.booleans())
def test_depth_is_counted_by_brackets_that_are_no_text(value: Any, more: int, ascii: bool) -> None:
    for _ in range(more):
        value = [value]
    assert _is_deep(_outside_strings(json.dumps(value, ensure_ascii=ascii).encode())) == (depth_of(value) > MAX_DEPTH)


# -- what users are told of the database ------------------------------------------------------------------------------


def test_a_database_that_is_gone_is_told_of_without_a_word_of_it(
    own_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    runtime = Runtime(SQLStore(own_server.url("postgres")), lease_seconds=1000, settle_seconds=0.1)
    silence = Silence()
    agent = Agent("Helper", ScriptedModel([silence], then="OK."), runtime=runtime)
    told = []
    with caplog.at_level(logging.WARNING), serving(agent) as live:
        live.post(RUNS, message="Hi", run_id="r1", session_id="s1", user_id="ada", background="true", stream="false")
        silence.reached.wait()
        with live.watch(f"{RUNS}/r1/events") as frames:
            assert next(frames).event == "RunStarted"
            own_server.stop()
            told.append(live.client.post(f"{RUNS}/r1/cancel").text)  # it is stopped, and its end can't be stored
            told.append(next(json.dumps(frame.data) for frame in frames if frame.event == "StoreWaiting"))
            for method, path in (
                ("POST", RUNS),
                ("GET", "/runs"),
                ("GET", f"{RUNS}/nope"),
                ("POST", f"{SESSIONS}/s2"),
                ("GET", f"{SESSIONS}/s1"),
                ("POST", "/runs/cancel"),
                ("GET", "/blocks"),
                ("GET", "/cancels"),
                ("GET", "/ready"),
            ):
                said = {"message": "Hi", "user_id": "ada"} if path == RUNS else {"user_id": "ada"}
                answer = live.client.request(method, path, json=said if path in (RUNS, "/runs/cancel") else None)
                assert answer.status_code == 503, (path, answer.text)
                told.append(answer.text)
            told.append(live.client.get(f"{RUNS}/r1").text)
            own_server.start()
    asyncio.run(runtime.close())
    assert "runs of this process were asked to stop: 1" in next(text for text in told if "asked to stop" in text)
    names = ("postgres", "socket", "host", "connection", "SELECT", "psycopg", str(own_server.data))
    for text in told:
        assert [name for name in names if name in text] == [], text
    assert "could not be asked" in caplog.text

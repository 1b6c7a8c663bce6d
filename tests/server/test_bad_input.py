# SPDX-License-Identifier: Apache-2.0
"""What clients get wrong: each gets a clear answer with `detail`, and no other run notices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from andon import Agent, ConfigurationError
from andon.core.run.handle import local_run
from andon.models.scripted import ScriptedModel, Stall
from andon.server import create_app
from tests.server.live import Live, serving
from tests.support import eventually

RUNS = "/agents/helper/runs"
FORM = {"content-type": "application/x-www-form-urlencoded"}
JSON = {"content-type": "application/json"}
PARTS = {"content-type": "multipart/form-data; boundary=b"}


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    """One server for all of them, with a run going on that must not notice any of it."""
    agent = Agent("Helper", ScriptedModel(then=Stall()))
    with serving(agent, max_body=2000) as live:
        answer = live.post(RUNS, message="Hi", run_id="held", session_id="held", background="true", stream="false")
        assert answer.status_code == 202
        yield live
        (run,) = agent.runtime.runs
        assert run.run_id == "held"
        assert not local_run(run).is_cancelling
        live.client.post(f"{RUNS}/held/cancel?wait=10")


def refused(response: Any, code: int, *words: str) -> None:
    assert response.status_code == code, response.text
    detail = response.json()["detail"]
    assert isinstance(detail, str)
    for word in words:
        assert word in detail


@pytest.mark.parametrize(
    ("headers", "body", "code", "words"),
    [
        (JSON, b"", 422, ["message"]),
        (JSON, b"{", 400, ["not JSON"]),
        (JSON, b"\xff\xfe", 400, ["not JSON"]),
        (JSON, b'{"message": "\\ud800"}', 400, ["not JSON"]),
        (JSON, b"[" * 1500, 400, ["nested too deeply"]),
        (JSON, b'{"message": "Hi", "more": %s1%s}' % (b"[" * 100, b"]" * 100), 400, ["nested too deeply"]),
        (JSON, b'{"message": "%s", "more": %s1%s, "stream": 5}' % (b"[" * 500, b"[" * 99, b"]" * 99), 422, ["stream"]),
        (JSON, b'{"message": "Hi", "timeout": %s}' % (b"1" * 1900), 422, ["timeout"]),
        (JSON, b'"Hi"', 422, ["object"]),
        (JSON, b'{"message": 5}', 422, ["message", "str"]),
        (JSON, b'{"message": null}', 422, ["message"]),
        (JSON, b'{"message": ""}', 422, ["empty"]),
        (JSON, b'{"message": "  "}', 422, ["empty"]),
        (JSON, b'{"message": "Hi", "stream": "perhaps"}', 422, ["stream"]),
        (JSON, b'{"message": "Hi", "timeout": "soon"}', 422, ["timeout"]),
        (JSON, b'{"message": "Hi", "timeout": -1}', 422, ["timeout"]),
        (JSON, b'{"message": "Hi", "timeout": "nan"}', 422, ["timeout"]),
        (JSON, b'{"message": "Hi", "session_id": 5}', 422, ["session_id"]),
        (JSON, b'{"message": "Hi", "session_id": "%s"}' % (b"s" * 300), 422, ["session_id"]),
        (JSON, b'{"message": "Hi", "run_id": "a/b"}', 422, ["run_id"]),
        (JSON, b'{"message": "Hi", "on_busy": "wait"}', 422, ["on_busy is 'wait'", "reject, queue, cancel"]),
        (JSON, b'{"message": "Hi", "on_disconnect": "stay"}', 422, ["on_disconnect", "cancel, continue"]),
        (JSON, b'{"message": "Hi", "events": "some"}', 422, ["events", "all, agentos"]),
        (FORM, b"message=", 422, ["message"]),
        (FORM, b"session_id=s1", 422, ["message"]),
        (FORM, b"message=%ff%fe", 400, ["form"]),
        (FORM, "message=Grüße".encode(), 400, ["form"]),
        (FORM, b"&".join(b"a%d=1" % n for n in range(1001))[:1999] + b"", 422, ["message"]),
        (PARTS, b"nonsense", 400, ["multipart"]),
        ({"content-type": "multipart/form-data"}, b"--b--", 400, ["multipart"]),
        (
            PARTS,
            b'--b\r\ncontent-disposition: form-data; name="message"\r\n\r\nHi\r\n'
            b'--b\r\ncontent-disposition: form-data; name="file"; filename="a.txt"\r\n\r\nAha\r\n--b--\r\n',
            422,
            ["'file'", "files"],
        ),
        ({"content-type": "text/plain"}, b"Hi", 415, ["text/plain"]),
    ],
)
def test_what_can_not_be_read_is_refused(
    live: Live, headers: dict[str, str], body: bytes, code: int, words: list[str]
) -> None:
    refused(live.client.post(RUNS, content=body, headers=headers), code, *words)


def test_a_large_body_is_refused_before_it_is_read(live: Live) -> None:
    refused(live.client.post(RUNS, json={"message": "x" * 3000}), 413, "2,000")
    with live.connect() as bare:  # announces much, and sends nothing
        bare.sendall(b"POST /agents/helper/runs HTTP/1.1\r\nhost: localhost\r\ncontent-length: 999999999\r\n\r\n")
        assert b" 413 " in bare.recv(1000)


def test_a_large_body_of_unknown_length_is_refused_while_it_is_read(live: Live) -> None:
    with live.connect() as bare:
        bare.sendall(b"POST /agents/helper/runs HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n")
        for _ in range(3):
            bare.sendall(b"3e8\r\n" + b"x" * 1000 + b"\r\n")
        assert b" 413 " in bare.recv(1000)  # though the body has not ended


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/agents/nobody/runs"),
        ("GET", "/agents/nobody"),
        ("GET", "/agents/nobody/runs"),
        ("GET", f"{RUNS}/nope"),
        ("GET", f"{RUNS}/nope/events"),
        ("POST", f"{RUNS}/nope/resume"),
        ("POST", f"{RUNS}/nope/cancel"),
        ("GET", "/nothing/here"),
    ],
)
def test_what_is_not_there_is_not_found(live: Live, method: str, path: str) -> None:
    refused(live.client.request(method, path), 404)


def test_a_wrong_method_is_refused(live: Live) -> None:
    refused(live.client.get(f"{RUNS}/held/cancel"), 405)


@pytest.mark.parametrize(
    ("path", "code", "word"),
    [
        ("cancel?mode=softly", 422, "mode"),
        ("cancel?grace=-1", 422, "grace"),
        ("cancel?grace=long", 422, "grace"),
        ("cancel?wait=-1", 422, "wait"),
        ("cancel?wait=nan", 422, "wait"),
        ("cancel?wait=1e9", 422, "wait"),
        ("resume?", 422, "last_event_index"),
    ],
)
def test_a_bad_wish_changes_nothing(live: Live, path: str, code: int, word: str) -> None:
    fields = {"last_event_index": "-5"} if path.startswith("resume") else {}
    refused(live.client.post(f"{RUNS}/held/{path}", data=fields), code, word)


@pytest.mark.parametrize("last", ["abc", "-1", "1.5", "99", "²"])
def test_a_place_that_is_not_there_is_refused(live: Live, last: str) -> None:
    refused(live.client.get(f"{RUNS}/held/events", params={"last_event_id": last}), 400)


def test_a_busy_session_names_its_holder(live: Live) -> None:
    answer = live.post(RUNS, message="Hi", session_id="held")
    refused(answer, 409, "held", "on_busy")
    assert answer.json()["run_id"] == "held"


def test_a_taken_run_id_is_refused(live: Live) -> None:
    refused(live.post(RUNS, message="Hi", run_id="held"), 409, "held")


def test_an_unknown_status_is_refused(live: Live) -> None:
    refused(live.client.get("/runs?status=sleeping"), 422, "RUNNING")


def test_too_many_runs_are_refused_and_room_is_made_again() -> None:
    agent = Agent("Helper", ScriptedModel(then=Stall()))
    with serving(agent, max_runs=2) as live:
        for number in (1, 2):
            live.post(RUNS, message="Hi", run_id=f"r{number}", background="true", stream="false")
        answer = live.post(RUNS, message="Hi")
        refused(answer, 429, "2 runs")
        assert answer.headers["retry-after"] == "1"
        live.client.post(f"{RUNS}/r1/cancel?wait=30")
        assert live.post(RUNS, message="Hi", background="true", stream="false").status_code == 202


def test_a_defect_is_answered_without_its_details() -> None:
    agent = Agent("Helper", ScriptedModel("Hello!"))
    with serving(agent) as live:

        def break_() -> None:
            raise RuntimeError("secret")

        live.app.state.andon.begin = break_
        answer = live.post(RUNS, message="Hi")
        refused(answer, 500)
        assert "secret" not in answer.text
        eventually(lambda: live.connections == 0)


@pytest.mark.parametrize(
    ("agents", "words"),
    [
        ([], "no agent"),
        (["Helper"], "'Helper'"),
        ([Agent("Helper")], "no model"),
        ([Agent("Helper", ScriptedModel()), Agent("Helper", ScriptedModel())], "'helper'"),
    ],
)
def test_what_can_not_be_served_is_refused_at_once(agents: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        create_app(agents)


def test_bounds_that_mean_nothing_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="max_runs"):
        create_app([Agent("Helper", ScriptedModel())], max_runs=-1)

# SPDX-License-Identifier: Apache-2.0
"""What there may be in one request: a body that is small in bytes can still be a lot of work to read."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec import Struct

from andon import Agent, MemoryStore
from andon.core.records import SessionKey
from andon.models.scripted import ScriptedModel
from andon.server import body, responses
from andon.server.problems import Problem
from andon.server.responses import to_json
from tests.server.live import Live, serving

JSON = {"content-type": "application/json"}
RUNS = "/agents/helper/runs"
ADA = "/apps/helper/users/ada/sessions"
NESTED = b"[" + b",".join([b"[" * 90 + b"]" * 90] * 22_000) + b"]"
FLAT = b"[" + b"[]," * 1_300_000 + b"[]]"
KEYS = b"{" + b",".join(b'"aB%d":0' % number for number in range(300_000)) + b"}"
NUMBERS = b"[" + b"1234567.12345678901234567891e-300," * 100_000 + b"0]"


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with serving(Agent("Helper", ScriptedModel(then="OK."))) as live:
        live.client.post(f"{ADA}/s1")
        yield live


def invocation(text: str = "Hi", **more: Any) -> dict[str, Any]:
    return {"userId": "ada", "sessionId": "s1", "newMessage": {"parts": [{"text": text}]}, **more}


@pytest.mark.parametrize("value", [NESTED, FLAT, KEYS, NUMBERS], ids=["nested", "flat", "keys", "numbers"])
@pytest.mark.parametrize(
    ("path", "name"), [(RUNS, "metadata"), (RUNS, "nonsense"), ("/run", "stateDelta"), ("/runs/cancel", "reason")]
)
def test_json_of_too_many_parts_is_refused_before_it_is_read(
    live: Live, path: str, name: str, value: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(text: bytes) -> Any:
        raise AssertionError(f"{len(text)} bytes were read")

    monkeypatch.setattr(body, "_decoded", read)
    refused = live.client.post(path, content=b'{"message": "Hi", "%b": %b}' % (name.encode(), value), headers=JSON)
    assert refused.status_code == 413
    assert "200,000" in refused.json()["detail"] or "250,000" in refused.json()["detail"]
    assert "send less at once, or large data as one text" in refused.json()["detail"]


def test_in_a_form_it_is_the_same(live: Live) -> None:
    for name in ("metadata", "messages", "budget", "output_schema"):
        refused = live.client.post(RUNS, data={"message": "Hi", name: "[" + "[]," * 150_000 + "[]]"})
        assert refused.status_code == 413
        assert refused.json()["detail"].startswith(f"{name} has more than 200,000 lists, objects, keys and values")


def test_a_large_form_is_not_read_on_the_loop(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    readers: list[int] = []
    of_form = body._parse_form

    def watched(text: bytes) -> dict[str, Any]:
        readers.append(threading.get_ident())
        return of_form(text)

    monkeypatch.setattr(body, "_parse_form", watched)
    for size in (10, 300_000):
        assert live.client.post(RUNS, data={"message": "%" * size, "stream": "false"}).status_code == 200
    assert readers[0] != readers[1]


@pytest.mark.parametrize("piece", ["[1, 2], ", '{"a": 1}, ', '\\"', "\\\\", '"', "é,", "1.25e-300 "])
def test_what_is_in_a_text_is_not_counted(live: Live, piece: str) -> None:
    text = (piece * 1_000_000)[:990_000]
    for ascii in (True, False):
        said = json.dumps({"message": text, "stream": False}, ensure_ascii=ascii).encode()
        answer = live.client.post(RUNS, content=said, headers=JSON)
        assert answer.status_code == 200, answer.text


def test_what_is_between_the_parts_is_not_counted() -> None:
    assert body.read_json(json.dumps([[1] * 50] * 500, indent=40).encode()) == [[1] * 50] * 500
    assert body.read_json(json.dumps([True, False, None] * 50_000).encode()) == [True, False, None] * 50_000


def test_as_many_parts_as_there_may_be() -> None:
    most = b'["' + b'","'.join([b"x,"] * body.MAX_PARTS) + b'"]'
    assert len(body.read_json(most)) == body.MAX_PARTS
    with pytest.raises(Problem, match="has more than 200,000"):
        body.read_json(most[:-1] + b',"x"]')


def test_without_a_key_nothing_is_digested(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Struct] = []
    digest = body.digest

    def watched(wanted: Struct, *more: str) -> str:
        asked.append(wanted)
        return digest(wanted, *more)

    monkeypatch.setattr(body, "digest", watched)
    assert live.post(RUNS, message="Hi", stream="false").status_code == 200
    assert not asked
    named = {"idempotency-key": "k1"}
    assert live.client.post(RUNS, json={"message": "Hi", "stream": False}, headers=named).status_code == 200
    assert len(asked) == 1


def test_fields_that_are_not_known_are_named_as_they_were_sent(live: Live) -> None:
    refused = live.client.post("/run", json=invocation(notAField=1))
    assert refused.status_code == 422
    assert "there is no field 'notAField'" in refused.json()["detail"]


def test_metadata_have_a_bound(live: Live) -> None:
    most = {"x": "y" * (body.MAX_METADATA - len('{"x":""}'))}
    large = {"x": most["x"] + "y"}
    detail = "65,537 bytes as JSON, and may take 65,536: keep large data elsewhere"
    for refused in (
        live.client.post(RUNS, json={"message": "Hi", "metadata": large}),
        live.post(RUNS, message="Hi", metadata=json.dumps(large)),
        live.client.post("/run", json=invocation(customMetadata=large)),
        live.client.post("/run_sse", json=invocation(customMetadata=large)),
    ):
        assert refused.status_code == 413
        assert detail in refused.json()["detail"]
    assert live.client.get(f"{ADA}/s1").json()["events"] == []
    assert live.client.post(RUNS, json={"message": "Hi", "metadata": most, "stream": False}).status_code == 200
    assert live.client.post("/run", json=invocation(customMetadata=most)).status_code == 200


def test_a_history_has_a_bound(live: Live) -> None:
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}] * 5_001
    for refused in (
        live.client.put("/agents/helper/sessions/s2", json={"messages": messages}),
        live.client.post(RUNS, json={"message": "Hi", "messages": messages}),
        live.post(RUNS, message="Hi", messages=json.dumps(messages)),
    ):
        assert refused.status_code == 413
        assert "there are 10,002 messages, and 10,000 are the most" in refused.json()["detail"]
    assert live.client.put("/agents/helper/sessions/s2", json={"messages": messages[:10_000]}).status_code == 200


def test_a_change_of_the_state_reads_no_events(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    live.client.post(f"{ADA}/patched")
    assert live.client.post("/run", json=invocation() | {"sessionId": "patched"}).status_code == 200

    async def history(self: MemoryStore, session: SessionKey) -> Any:
        raise AssertionError(f"{session} was read")

    with monkeypatch.context() as patched:
        patched.setattr(MemoryStore, "history", history)
        changed = live.client.patch(f"{ADA}/patched", json={"stateDelta": {"a": 1}})
    assert changed.status_code == 200
    assert changed.json()["state"] == {"a": 1}
    assert changed.json()["events"] == []
    assert len(live.client.get(f"{ADA}/patched").json()["events"]) == 2


def test_what_was_said_is_written_in_a_thread(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well \u2028"}]}
    put = live.client.put("/agents/helper/sessions/said?user_id=ada", json=said)
    writers: list[int] = []

    def watched(value: Any) -> bytes:
        writers.append(threading.get_ident())
        return to_json(value)

    monkeypatch.setattr(responses, "to_json", watched)
    assert live.client.get("/agents/helper/sessions/said?user_id=ada").json() == put.json()
    assert [each["content"][0]["text"] for each in put.json()["messages"]] == ["Hi", "Well \u2028"]
    assert len(live.client.get(f"{ADA}/said").json()["events"]) == 2
    written = len(writers)
    live.client.get("/list-apps")
    assert written == 6
    assert writers[-1] not in writers[:written], "what is small is written on the loop"


@pytest.mark.parametrize("route", ["/run", "/run_sse"])
def test_a_refused_state_leaves_the_session_as_it_was(live: Live, route: str) -> None:
    live.client.post(f"{ADA}/kept", json={"a": "b" * 200_000})
    before = live.client.get(f"{ADA}/kept").json()
    asked = invocation(stateDelta={"c": "d" * 100_000}) | {"sessionId": "kept"}
    refused = live.client.post(route, json=asked)
    assert refused.status_code == 413
    assert "and may take 262,144; it was left as it was" in refused.json()["detail"]
    assert live.client.get(f"{ADA}/kept").json() == before
    assert live.client.get("/runs?session_id=kept").json() == []


@pytest.mark.parametrize("route", ["/run", "/run_sse"])
def test_an_idempotency_key_is_refused_where_it_does_not_work(live: Live, route: str) -> None:
    refused = live.client.post(route, json=invocation(), headers={"idempotency-key": "k1"})
    assert refused.status_code == 422
    assert "Idempotency-Key does not work on this route" in refused.json()["detail"]
    assert "POST /agents/{agent_id}/runs" in refused.json()["detail"]

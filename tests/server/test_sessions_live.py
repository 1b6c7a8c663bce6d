# SPDX-License-Identifier: Apache-2.0
"""Talking to an agent over a WebSocket: turns of text, interruptions, and every way to hang up."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from andon import Agent, Runtime, tool
from andon.core.records import SessionKey, SessionRecord
from andon.core.states import CancelCause
from andon.errors import AndonError, BlockedError, SchemaError, StateTooLargeError, StoreError
from andon.models.scripted import Call, ScriptedModel
from andon.server import create_app
from andon.store.memory import MemoryStore
from andon.testing import probe, virtual_run
from tests.server.by_session import ABORTED, Client, Shape, served, texts
from tests.support import HANG, Silence, eventually


class Talk:
    """One end of a live connection."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    def say(self, text: str, **more: Any) -> None:
        self.send(content={"role": "user", "parts": [{"text": text}]}, **more)

    def send(self, **message: Any) -> None:
        self.socket.send(json.dumps(message))

    def hear(self) -> Shape:
        event: Shape = json.loads(self.socket.recv(timeout=HANG))
        return event

    def turn(self) -> list[Shape]:
        """The whole events up to the end of a turn."""
        events = [self.hear()]
        while not events[-1].get("turnComplete"):
            events.append(self.hear())
        return [event for event in events if not event.get("partial")]

    def closed(self) -> tuple[int, str]:
        """How the server hung up."""
        with pytest.raises(ConnectionClosed) as caught:
            self.socket.recv(timeout=HANG)
        assert caught.value.rcvd is not None
        return caught.value.rcvd.code, caught.value.rcvd.reason


@contextlib.contextmanager
def talking(client: Client, origin: str | None = None, **change: str | None) -> Iterator[Talk]:
    wanted = {"app_name": client.agent.id, "user_id": client.user, "session_id": "s1", "modalities": "TEXT"} | change
    query = urlencode({name: value for name, value in wanted.items() if value is not None})
    url = f"{client.url.replace('http', 'ws')}/run_live?{query}"
    headers = {} if origin is None else {"Origin": origin}
    with connect(url, additional_headers=headers, proxy=None) as socket:
        yield Talk(socket)


@pytest.fixture
def silence() -> Silence:
    return Silence()


@pytest.fixture
def client(silence: Silence) -> Iterator[Client]:
    """To an agent that stops in the middle of its first answer."""
    with served(Agent("Helper", ScriptedModel(["Once upon a time", silence], then="And on."))) as client:
        client.create()
        yield client


def cause_of(client: Client) -> CancelCause:
    """Why the only run that has ended was cancelled."""
    (run,) = client.agent.runtime.ended
    receipt = probe(run).result.receipt
    assert receipt is not None
    return receipt.cause


def test_turns_follow_each_other_in_one_conversation() -> None:
    with served(Agent("Helper", ScriptedModel("One.", "Two."))) as client:
        client.create()
        with talking(client) as talk:
            talk.say("First")
            piece, whole = talk.hear(), talk.hear()
            assert (piece["partial"], texts([piece])) == (True, ["One."])
            assert (whole["turnComplete"], texts([whole])) == (True, ["One."])
            talk.say("Second")
            assert texts(talk.turn()) == ["Two."]
        assert texts(client.get()["events"]) == ["First", "One.", "Second", "Two."]


def test_a_new_text_interrupts_the_answer_to_the_one_before(client: Client, silence: Silence) -> None:
    with talking(client) as talk:
        talk.say("Tell me a story")
        silence.reached.wait()
        talk.say("No, stop")
        said, end = talk.turn()
        assert texts([said]) == ["Once upon a time"]
        assert end["errorCode"] == ABORTED
        assert end["errorMessage"] == "Cancelled: superseded by a newer request"
        assert end["interrupted"] is True
        assert texts(talk.turn()) == ["And on."]
    assert silence.cuts == 1
    assert texts(client.get()["events"]) == ["Tell me a story", "Once upon a time", ABORTED, "No, stop", "And on."]


def test_a_turn_that_asks_a_person_is_complete_and_the_next_text_takes_its_place() -> None:
    @tool(approval=True)
    async def delete() -> str:
        """Delete all."""
        return "deleted"

    with served(Agent("Helper", ScriptedModel(Call("delete", id="c1"), then="Never mind."), tools=[delete])) as client:
        client.create()
        with talking(client) as talk:
            talk.say("Tidy up")
            assert talk.turn()[-1]["longRunningToolIds"] == ["c1"]
            talk.say("Rather not")
            assert texts(talk.turn()) == ["Never mind."]


def test_what_is_refused_interrupts_nothing(client: Client, silence: Silence) -> None:
    with talking(client) as talk:
        talk.say("Tell me a story")
        silence.reached.wait()
        talk.say(" ")
        talk.send(state_delta={"heard": True})  # what was said before this has been heard before it
        eventually(lambda: client.get()["state"] == {"heard": True})
        assert silence.cuts == 0
        client.cancel()
        assert texts(talk.turn()) == ["Once upon a time", ABORTED]
        assert "the prompt is empty" in talk.turn()[0]["errorMessage"]


def test_a_cancel_ends_the_turn_and_not_the_talk(client: Client, silence: Silence) -> None:
    with talking(client) as talk:
        talk.say("Tell me a story")
        silence.reached.wait()
        client.cancel()
        *_, end = talk.turn()
        assert end["errorMessage"] == "Cancelled by user"
        assert "interrupted" not in end
        talk.say("Go on")
        assert texts(talk.turn()) == ["And on."]


def test_what_others_run_in_the_session_is_left_alone(client: Client, silence: Silence) -> None:
    with client.stream() as stream, talking(client) as talk:
        silence.reached.wait()
        talk.say("Me too")
        (refusal,) = talk.turn()
        assert refusal["errorCode"] == "INVOCATION_REFUSED"
        assert "is busy" in refusal["errorMessage"]
        client.cancel()
        assert texts([event for event in stream if not event.get("partial")]) == ["Once upon a time", ABORTED]
        talk.say("And now?")
        assert texts(talk.turn()) == ["And on."]


@pytest.mark.parametrize("how", ["goodbye", "close", "vanish"])
def test_a_client_that_hangs_up_cancels_the_run(how: str, client: Client, silence: Silence) -> None:
    with talking(client) as talk:
        talk.say("Tell me a story")
        silence.reached.wait()
        if how == "goodbye":
            talk.send(close=True)
            with pytest.raises(ConnectionClosed) as caught:
                while True:
                    talk.hear()
            assert caught.value.rcvd is not None
            assert caught.value.rcvd.code == 1000
        elif how == "close":
            talk.socket.close()
        else:
            talk.socket.socket.shutdown(2)
        eventually(lambda: silence.cuts == 1)
    client.settled()
    assert cause_of(client) is CancelCause.disconnect
    assert texts(client.run("Go on")) == ["And on."]


def test_a_turn_may_come_in_pieces() -> None:
    with served(Agent("Helper", ScriptedModel("I see."))) as client:
        client.create()
        with talking(client) as talk:
            talk.say("First,", partial=True)
            talk.send(activity_start={})
            talk.send(activity_end={}, state_delta={"a": 1})
            talk.say("then.")
            assert texts(talk.turn()) == ["I see."]
        session = client.get()
        assert texts(session["events"]) == ["First,\nthen.", "I see."]
        assert session["state"] == {"a": 1}


@pytest.mark.parametrize("message", [{"state_delta": {"a": 1}}, {"content": {"parts": [{"text": "Go on"}]}}])
def test_a_talk_does_not_bring_a_deleted_session_back(message: dict[str, Any], client: Client) -> None:
    with talking(client) as talk:
        assert client.http.delete(client.path()).status_code == 200
        talk.send(**message)
        code, reason = talk.closed()
    assert (code, "has no session 's1'" in reason) == (1002, True)
    client.settled()
    assert client.http.get(client.path()).status_code == 404


def test_pieces_may_not_be_too_large_together() -> None:
    with served(Agent("Helper", ScriptedModel()), max_body=1000) as client:
        client.create()
        with talking(client) as talk:
            for _ in range(2):  # a turn's pieces don't count for the next one
                for _ in range(9):
                    talk.say("x" * 100, partial=True)
                talk.say("That's it.")
                assert texts(talk.turn()) == ["OK."]
            for _ in range(10):
                talk.say("x" * 100, partial=True)
            code, reason = talk.closed()
    assert (code, "larger than 1,000" in reason) == (1009, True)
    assert len(client.agent.runtime.ended) == 2


@pytest.mark.parametrize(
    ("error", "code", "word"),
    [
        (StateTooLargeError("the state would be too large"), 1009, "too large"),
        (StoreError("postgres://secret"), 1013, "try again later"),
        (SchemaError("postgres://secret"), 1013, "log says why"),
        (BlockedError("blocked"), 1008, "blocked"),
    ],
    ids=["too large", "away", "another version", "blocked"],
)
def test_what_the_store_refuses_is_told_and_is_no_failure_of_the_server(
    error: AndonError, code: int, word: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Refusing(MemoryStore):
        async def update_session(self, session: SessionKey, delta: dict[str, Any]) -> SessionRecord | None:
            raise error

    agent = Agent("Helper", ScriptedModel(then="OK."), runtime=Runtime(Refusing()))
    with served(agent) as client:
        client.create()
        with talking(client) as talk:
            talk.send(stateDelta={"a": 1})
            closed, reason = talk.closed()
    assert (closed, word in reason, "secret" in reason) == (code, True, False)
    assert not any(record.exc_info for record in caplog.records)


@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        ({"session_id": "s9"}, 1002, "has no session 's9'"),
        ({"user_id": "bob"}, 1002, "user 'bob' has no session 's1'"),
        ({"app_name": "nobody"}, 1002, "there is no agent 'nobody'"),
        ({"session_id": None}, 1007, "session_id"),
    ],
)
def test_a_connection_that_is_about_nothing_is_closed(
    change: dict[str, Any], code: int, said: str, client: Client
) -> None:
    with talking(client, **change) as talk:
        closed, reason = talk.closed()
    assert closed == code
    assert said in reason


@pytest.mark.parametrize("origin", ["https://elsewhere.example", "null"])
def test_a_page_of_another_origin_gets_no_connection(origin: str, client: Client) -> None:
    with pytest.raises(InvalidStatus) as caught, talking(client, origin=origin):
        pass
    assert caught.value.response.status_code == 403
    assert b"origin" in (caught.value.response.body or b"")


def test_a_page_of_the_same_origin_may_talk() -> None:
    with served(Agent("Helper", ScriptedModel())) as client:
        client.create()
        with talking(client, origin=client.url) as talk:
            talk.say("Hello")
            assert texts(talk.turn()) == ["OK."]


BLOB = {"mime_type": "audio/pcm", "data": "AAAA"}


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (json.dumps({"blob": BLOB}), 1003),
        (json.dumps({"content": {"parts": [{"function_call": {}}]}}), 1003),
        (b"\x00\x01", 1003),
        ("{", 1007),
        ("[]", 1007),
        (json.dumps({"content": "Hello"}), 1007),
        (json.dumps({"content": {"parts": "Hello"}}), 1007),
        (json.dumps({"content": {"parts": [{"text": "x" * 5_000_000}]}}), 1009),
    ],
)
def test_what_is_not_taken_closes_the_connection_and_its_run(
    message: str | bytes, code: int, client: Client, silence: Silence
) -> None:
    with talking(client) as talk:
        talk.say("Tell me a story")
        silence.reached.wait()
        talk.socket.send(message)
        with pytest.raises(ConnectionClosed) as caught:
            while True:
                talk.hear()
    assert caught.value.rcvd is not None
    assert caught.value.rcvd.code == code
    assert caught.value.rcvd.reason
    client.settled()
    assert cause_of(client) is CancelCause.disconnect
    assert texts(client.run("Go on")) == ["And on."]


def test_a_failure_of_the_server_closes_the_connection() -> None:
    class Broken(MemoryStore):
        async def update_session(self, session: SessionKey, delta: dict[str, Any]) -> SessionRecord | None:
            raise OSError("the disk is full")

    with served(Agent("Helper", ScriptedModel(), runtime=Runtime(Broken()))) as client:
        client.create()
        with talking(client) as talk:
            talk.send(state_delta={"a": 1})
            code, reason = talk.closed()
    assert code == 1011
    assert "disk" not in reason  # what went wrong inside is for the log


def test_an_empty_text_is_refused_and_the_talk_goes_on() -> None:
    with served(Agent("Helper", ScriptedModel())) as client:
        client.create()
        with talking(client) as talk:
            talk.say(" ")
            (refusal,) = talk.turn()
            assert "the prompt is empty" in refusal["errorMessage"]
            talk.say("Hello")
            assert texts(talk.turn()) == ["OK."]


PROGRAM = """
from andon import Agent
from andon.models.scripted import ScriptedModel, Stall

agent = Agent("Helper", ScriptedModel(["One ", Stall()]))
"""


def test_a_server_that_shuts_down_tells_connected_clients(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "andon", "serve", "program:agent", "--port", "0", "--drain", "0"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            path = process.stdout.readline().split("http://")[1].strip()
            httpx.post(f"http://{path}/apps/helper/users/ada/sessions/s1", timeout=HANG, verify=False)
            url = f"ws://{path}/run_live?app_name=helper&user_id=ada&session_id=s1"
            with connect(url, proxy=None) as socket, connect(url, proxy=None) as idle:
                talk = Talk(socket)
                talk.say("Hello")
                assert talk.hear()["partial"] is True
                process.terminate()
                *_, end = talk.turn()
                assert end["errorMessage"] == "Cancelled: the server was shut down"
                assert talk.closed()[0] == Talk(idle).closed()[0] == 1012  # the server restarts
            assert process.wait(HANG) == 0
            assert process.stderr.read() == ""
        finally:
            process.kill()


def test_a_client_that_never_reads_is_not_listened_to_for_ever() -> None:
    """What it says waits in its own buffers then, instead of in ours as runs."""
    agent = Agent("Helper", ScriptedModel(then="Yes."))
    prompt = json.dumps({"content": {"role": "user", "parts": [{"text": "Are you there?"}]}})
    said: list[str] = []

    async def receive() -> dict[str, Any]:
        said.append("connect" if not said else prompt)
        assert len(said) < 100, "it goes on listening"
        return {"type": "websocket.connect"} if len(said) == 1 else {"type": "websocket.receive", "text": prompt}

    async def send(message: Any) -> None:
        if message["type"] == "websocket.send":
            await asyncio.Future()  # all buffers are full

    async def talk() -> None:
        app = create_app(agent)
        assert isinstance(agent.runtime.store, MemoryStore)
        await agent.runtime.store.create_session(SessionKey("helper", "ada", "s1"), {})
        query = b"app_name=helper&user_id=ada&session_id=s1"
        scope = {"type": "websocket", "path": "/run_live", "query_string": query, "headers": [(b"host", b"localhost")]}
        async with asyncio.timeout(60):  # of virtual time
            await app(scope, receive, send)

    with pytest.raises(TimeoutError):  # it waits, for a client that reads
        virtual_run(talk())
    assert len(said) > 2, "it has listened at all"

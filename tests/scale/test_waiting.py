# SPDX-License-Identifier: Apache-2.0
"""Runs that wait for a worker: their cancels, their deadlines, and clients and servers that go."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from andon import SessionKey, tool
from andon.models.scripted import Call
from tests.scale import parts
from tests.scale.parts import accepting, cancel, eventually_forgotten, pair, rows, start, state, told, waiting, working
from tests.server.live import Live, reset
from tests.store.making import opened
from tests.support import Hold, Reach, Silence, Worker, asked, eventually
from tests.support.flags import Flag, forever

USAGE = ("input_tokens", "output_tokens")


@pytest.fixture
def live(shared_url: str) -> Iterator[Live]:
    """A server without a worker."""
    with accepting(shared_url, pair()[0]) as live:
        yield live


def conversation(live: Live, session: str, agent: str = "helper") -> list[tuple[str, str]]:
    found = live.client.get(f"/agents/{agent}/sessions/{session}").json()
    return [(message["role"], message["content"][0]["text"]) for message in found["messages"]]


def check_never_began(live: Live, run_id: str, cause: str, reason: str | None = None) -> None:
    found = state(live, run_id)
    assert (found["status"], found["stop_reason"], found["content"]) == ("CANCELLED", "cancelled", "")
    receipt = found["receipt"]
    assert (receipt["phase"], receipt["cause"], receipt["reason"]) == ("pending", cause, reason)
    assert [receipt["usage"][name] for name in USAGE] == [0, 0] == [found["usage"][name] for name in USAGE]
    assert receipt["tools"] == []
    events = told(live, run_id)
    assert [frame.event for frame in events] == ["RunStarted", "CancelRequested", "RunCancelled"]
    assert [frame.id for frame in events] == [1, 2, 3]


def test_a_run_that_waits_is_there_for_everyone_and_pending(live: Live, shared_url: str) -> None:
    answer = start(live, "p1")
    assert (answer.json()["status"], answer.headers["location"]) == ("PENDING", "/agents/helper/runs/p1")
    assert (state(live, "p1")["status"], waiting(shared_url, "p1")) == ("PENDING", "sent")
    assert rows(shared_url, "SELECT owner, status FROM andon_runs WHERE run_id = 'p1'") == [(None, "PENDING")]
    listed = live.client.get("/agents/helper/runs").json()
    assert [each["run_id"] for each in listed if each["status"] == "PENDING"] == ["p1"]
    with live.watch("/agents/helper/runs/p1/events") as stream:
        assert next(stream).event == "RunStarted"
        cancel(live, "p1")
        assert [frame.event for frame in stream] == ["CancelRequested", "RunCancelled"]


def test_a_cancel_of_a_run_that_waits_ends_it_at_once_and_it_never_begins(live: Live, shared_url: str) -> None:
    start(live, "c1", message="Do it", session_id="c")
    answer = cancel(live, "c1", reason="no need", by="ann")
    assert (answer["outcome"], answer["status"]) == ("requested", "CANCELLED")
    check_never_began(live, "c1", "user", "no need")
    assert conversation(live, "c") == [("user", "Do it"), ("assistant", "Cancelled by user")]
    assert cancel(live, "c1")["outcome"] == "already_finished"
    # The job that was sent comes late: it finds the run ended, and the next one begins.
    assert rows(shared_url, "SELECT count(*) FROM procrastinate_jobs WHERE args->>'run_id' = 'c1'") == [(1,)]
    _, agent = pair()
    with working(shared_url, agent):
        start(live, "c2", message="And this", session_id="c")
        assert parts.ended(live, "c2")["content"] == "OK."
        eventually_forgotten(shared_url)
    (request,) = asked(agent)
    assert [message.text for message in request.messages] == ["Do it", "Cancelled by user", "And this"]


def test_many_are_cancelled_at_once(live: Live, shared_url: str) -> None:
    for number in range(8):
        start(live, f"m{number}", user_id="ada", session_id=f"m{number % 4}", on_busy="queue")
    start(live, "m-bob", user_id="bob")
    answer = live.client.post("/runs/cancel?wait=30", json={"user_id": "ada", "reason": "all of it"}).json()
    assert {each["run_id"] for each in answer["cancelled"]} == {f"m{number}" for number in range(8)}, answer
    for number in range(8):
        check_never_began(live, f"m{number}", "user", "all of it")
    assert state(live, "m-bob")["status"] == "PENDING"
    cancel(live, "m-bob")


def test_a_kill_switch_ends_what_waits_and_refuses_what_comes(live: Live, shared_url: str) -> None:
    start(live, "k1", user_id="mallory")
    answer = live.client.post("/runs/cancel?wait=30", json={"user_id": "mallory", "block": True})
    assert answer.status_code == 200, answer.text
    check_never_began(live, "k1", "user")
    start(live, "k2", user_id="mallory", status=403)
    start(live, "k3", user_id="ada")
    assert live.client.post("/unblock", json={"user_id": "mallory"}).status_code == 200
    start(live, "k4", user_id="mallory")
    for run_id in ("k3", "k4"):
        cancel(live, run_id)


def test_a_timeout_is_over_while_no_worker_is_there(live: Live) -> None:
    start(live, "t1", timeout=0.2)
    assert [frame.event for frame in told(live, "t1")][-1] == "RunCancelled"
    check_never_began(live, "t1", "deadline", "it has waited in the queue for longer than its timeout")


def test_the_time_in_the_queue_counts(live: Live, shared_url: str) -> None:
    """It was claimed when most of its time was over: what is left of it is what the worker gives it."""
    start(live, "t2", timeout=30)
    rows_changed(shared_url, "UPDATE andon_waiting SET since = since - 26 WHERE run_id = 't2'")
    silence = Silence()
    with working(shared_url, pair([silence])[1]):
        silence.reached.wait()
        receipt = parts.ended(live, "t2")["receipt"]
        assert (receipt["cause"], receipt["phase"]) == ("deadline", "waiting")


def rows_changed(url: str, change: str) -> None:
    assert rows(url, f"{change} RETURNING 1") != []


def test_a_run_that_waits_keeps_its_prompt_if_its_session_is_deleted(live: Live, shared_url: str) -> None:
    start(live, "e1", message="One", session_id="e")
    cancel(live, "e1")
    start(live, "e2", message="Two", session_id="e")

    async def delete() -> bool:
        async with opened(shared_url) as store:
            return await store.delete_session(SessionKey("helper", None, "e"))

    assert asyncio.run(delete())
    _, agent = pair()
    with working(shared_url, agent):
        assert parts.ended(live, "e2")["content"] == "OK."
    (request,) = asked(agent)
    assert [message.text for message in request.messages] == ["Two"]
    assert live.client.get("/agents/helper/sessions/e").status_code == 404


@pytest.mark.parametrize("wanted", [{"stream": True}, {"stream": False}], ids=["stream", "plain"])
@pytest.mark.parametrize("running", [False, True], ids=["waiting", "running"])
def test_a_client_that_leaves_cancels_its_run(
    live: Live, shared_url: str, wanted: dict[str, bool], *, running: bool
) -> None:
    run_id = f"l-{running}-{wanted['stream']}"
    silence = Silence()
    with contextlib.ExitStack() as stack:
        if running:
            stack.enter_context(working(shared_url, pair(["One", silence])[1]))
        bare = live.connect()
        live.send(bare, "/agents/helper/runs", message="Hi", run_id=run_id, session_id=run_id, **wanted)
        if running:
            silence.reached.wait()
        eventually(lambda: live.client.get(f"/agents/helper/runs/{run_id}").status_code == 200)
        reset(bare)
        receipt = parts.ended(live, run_id)["receipt"]
        assert (receipt["cause"], receipt["phase"]) == ("disconnect", "streaming" if running else "pending")
        assert silence.cuts == int(running)


def test_a_client_that_leaves_and_says_so_does_not_cancel_its_run(live: Live, shared_url: str) -> None:
    silence, go = Silence(), Flag()
    bare = live.connect()
    live.send(bare, "/agents/helper/runs", message="Hi", run_id="s1", stream=True, on_disconnect="continue")
    with working(shared_url, pair(["One ", Reach(silence.reached), Hold(go), "two."])[1]):
        silence.reached.wait()
        reset(bare)
        eventually(lambda: live.connections == 0 or not live.server.server_state.tasks)
        go.set()
        assert parts.ended(live, "s1")["content"] == "One two."


def test_a_copy_of_a_request_that_leaves_cancels_nothing(live: Live, shared_url: str) -> None:
    start(live, "i1", stream=False)
    body = {"message": "Hi", "session_id": "i", "run_id": "i2", "stream": False}
    headers, answers = {"idempotency-key": "one"}, list[Any]()

    def ask() -> None:
        with live.another_client() as client:
            answers.append(client.post("/agents/helper/runs", json=body, headers=headers))

    first = Worker(ask)
    eventually(lambda: bool(answers) or live.client.get("/agents/helper/runs/i2").status_code == 200)
    assert not answers, answers[0].text
    copy = live.another_client()
    with copy.stream("POST", "/agents/helper/runs", json=body | {"stream": True}, headers=headers) as response:
        assert response.status_code == 200
        next(response.iter_lines())
    copy.close()
    with working(shared_url, pair()[1]):
        first.done()
        assert answers[0].json()["content"] == "OK."
        parts.ended(live, "i1")


def test_a_cancel_reaches_the_run_at_its_worker_and_what_it_does(live: Live, shared_url: str) -> None:
    reached = Flag()

    @tool
    async def slow() -> str:
        reached.set()
        await forever()

    _, worker = pair([Call("slow", id="s")], tools=[slow])
    with working(shared_url, worker):
        start(live, "w1", session_id="w")
        reached.wait()
        assert waiting(shared_url, "w1") == "taken"
        answer = cancel(live, "w1", reason="enough")
        assert (answer["outcome"], answer["status"]) == ("requested", "CANCELLED")
        receipt = state(live, "w1")["receipt"]
        assert (receipt["cause"], receipt["phase"], receipt["leftovers"]) == ("user", "tools", [])
        assert [(each["name"], each["outcome"]) for each in receipt["tools"]] == [("slow", "cut")]
        start(live, "w2", session_id="w")
        assert parts.ended(live, "w2")["status"] == "COMPLETED"
        eventually_forgotten(shared_url)


def test_an_answered_run_asks_no_more_while_it_waits_and_works(shared_url: str) -> None:
    reached = Flag()

    @tool(approval=True)
    async def slow() -> str:
        reached.set()
        await forever()

    server, agent = pair([Call("slow", id="s")], tools=[slow])

    def asks(live: Live, status: str) -> list[dict[str, Any]]:
        found = state(live, "a1")
        assert (found["status"], found["stop_reason"]) == (status, "interrupt" if status == "PAUSED" else None)
        questions: list[dict[str, Any]] = found["interrupts"]
        return questions

    with accepting(shared_url, server) as live:
        with working(shared_url, agent):
            start(live, "a1")
            assert told(live, "a1")[-1].event == "RunPaused"
        (question,) = asks(live, "PAUSED")
        body = {"answers": {question["id"]: True}, "background": True, "stream": False}
        assert live.client.post("/agents/helper/runs/a1/continue", json=body).status_code == 202
        assert asks(live, "PENDING") == []
        with working(shared_url, agent):
            reached.wait()
            assert asks(live, "RUNNING") == []
            cancel(live, "a1")

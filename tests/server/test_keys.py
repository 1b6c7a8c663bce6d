# SPDX-License-Identifier: Apache-2.0
"""Idempotency keys over HTTP: per user, over restarts, and with several servers of one database."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from andon import Agent, Runtime, tool
from andon.core.records import RequestKey
from andon.core.shared.store import Taken
from andon.models.scripted import Call, ScriptedModel
from andon.server import idempotency_keys
from andon.store.sql import SQLStore
from tests.server.live import Live, frames, serving
from tests.shared_store.test_given_back import Late
from tests.support import Flag, Silence, Worker, eventually

RUNS = "/agents/helper/runs"


@tool(approval=True)
async def pay(euros: int) -> str:
    return f"paid {euros}"


@contextlib.contextmanager
def server(url: str, *turns: Any, runtime: Runtime | None = None, **settings: Any) -> Iterator[tuple[Live, Agent]]:
    runtime = runtime or Runtime(SQLStore(url))
    agent = Agent("Helper", ScriptedModel(*turns, then="OK."), tools=[pay], runtime=runtime)
    try:
        with serving(agent, **settings) as live:
            yield live, agent
    finally:
        asyncio.run(runtime.close())


def ask(live: Live, key: str = "k1", path: str = RUNS, **fields: Any) -> httpx.Response:
    body = {"message": "Hi", "stream": False, **fields} if path == RUNS else {"stream": False, **fields}
    return live.client.post(path, json=body, headers={"idempotency-key": key})


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/andon.db"


def test_a_key_is_known_after_a_restart(url: str) -> None:
    with server(url, "One.") as (live, _):
        first = ask(live, user_id="ada").json()
        assert first["content"] == "One."
    with server(url, "Two.", "Three.") as (live, _):
        again = ask(live, user_id="ada").json()
        assert (again["run_id"], again["content"]) == (first["run_id"], "One.")
        other = ask(live, user_id="ada", message="Bye")
        assert (other.status_code, other.json()["run_id"]) == (422, first["run_id"])
        assert "'k1' was used for a different request" in other.json()["detail"]
        headers, body = {"idempotency-key": "k1"}, {"message": "Hi", "user_id": "ada"}
        with live.client.stream("POST", RUNS, json=body, headers=headers) as response:
            told = list(frames(response.iter_lines()))
        assert [told[0].event, told[-1].event] == ["RunStarted", "RunCompleted"]
        assert {frame.data["run_id"] for frame in told} == {first["run_id"]}
        assert ask(live, user_id="ada", background=True).status_code == 202
        assert ask(live, user_id="bob").json()["content"] == "Two."


def test_another_server_tells_of_the_run_that_goes_on_elsewhere(url: str) -> None:
    silence = Silence()
    with server(url, ["One.", silence]) as (here, _), server(url, "Two.") as (there, _):
        first = ask(here, background=True).json()["run_id"]
        silence.reached.wait()
        assert ask(there, background=True).json()["run_id"] == first
        answers: list[dict[str, Any]] = []
        waiting = Worker(lambda: answers.append(ask(there).json()))  # waits for its end
        here.client.post(f"{RUNS}/{first}/cancel?wait=30")
        waiting.done()
        assert [(each["run_id"], each["status"]) for each in answers] == [(first, "CANCELLED")]


def test_two_servers_that_are_asked_at_once_start_one_run(url: str) -> None:
    with server(url) as (here, one), server(url) as (there, other):
        for live in (here, there):
            # FastAPI builds an app's routes at its first request, and sets the filters of warnings meanwhile, which all
            # threads share. Two first requests at once would undo each other's filters.
            assert live.client.get("/nothing").status_code == 404
        asked, free, codes = [], Flag(), []
        for agent in (one, other):  # both have found that nobody knows the key, before either begins
            store: Any = agent.runtime.store
            enter, met = store.enter, Flag()
            asked.append(met)

            async def slowly(*arguments: Any, enter: Any = enter, met: Flag = met) -> Any:
                met.set()
                await free.arrived()
                return await enter(*arguments)

            store.enter = slowly

        def start(live: Live) -> None:
            answer = ask(live)
            codes.append((answer.status_code, answer.json()["run_id"]))

        workers = [Worker(lambda live=live: start(live)) for live in (here, there)]  # type: ignore[misc]
        for met in asked:
            met.wait()
        free.set()
        for worker in workers:
            worker.done()
        assert [code for code, _ in codes] == [200, 200]
        assert len({run_id for _, run_id in codes}) == 1
        assert len(here.client.get("/runs").json()) == 1


def test_an_answer_is_given_once_on_any_server(url: str) -> None:
    with server(url, Call("pay", {"euros": 5}, id="c1"), "Done.") as (here, _), server(url, "No.") as (there, _):
        paused = ask(here, "start", run_id="r", session_id="s").json()
        assert paused["status"] == "PAUSED"
        answers = {paused["interrupts"][0]["id"]: True}
        wrong = ask(there, "answer", f"{RUNS}/r/continue", answers={"nothing": True})
        assert wrong.status_code == 400  # and keeps no key
        first = ask(here, "answer", f"{RUNS}/r/continue", answers=answers)
        assert (first.status_code, first.json()["status"]) == (200, "COMPLETED")
        for live in (here, there):
            again = ask(live, "answer", f"{RUNS}/r/continue", answers=answers)
            assert (again.status_code, again.json()["content"]) == (200, first.json()["content"])
        assert ask(there, "answer", f"{RUNS}/r/continue", answers={"other": 1}).status_code == 422


@pytest.mark.parametrize("by", ["answers", "tools"])
def test_who_comes_second_with_an_answer_is_told_of_the_first(
    url: str, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has looked for the key before the other server took it, and finds a run that waits for nothing any more."""
    with server(url, Call("pay", {"euros": 5}, id="c1"), "Done.") as (here, _), server(url, "No.") as (there, _):
        paused = ask(here, "start", run_id="r", session_id="s").json()
        tools = [{"tool_call_id": "c1", "confirmed": True}]
        said: dict[str, Any] = {by: tools if by == "tools" else {paused["interrupts"][0]["id"]: True}}
        first = ask(here, "answer", f"{RUNS}/r/continue", **said)
        assert (first.status_code, first.json()["content"]) == (200, "Done.")
        not_yet_known(there, monkeypatch)
        second = ask(there, "answer", f"{RUNS}/r/continue", **said)
        assert (second.status_code, second.json()["content"]) == (200, "Done.")


def test_who_comes_second_into_a_session_is_told_of_the_first(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    silence = Silence()
    with server(url, ["One.", silence]) as (here, _), server(url, "Two.") as (there, _):
        first = ask(here, session_id="s", background=True).json()["run_id"]
        silence.reached.wait()
        not_yet_known(there, monkeypatch)
        second = ask(there, session_id="s", background=True)
        assert (second.status_code, second.json()["run_id"]) == (202, first)
        here.client.post(f"{RUNS}/{first}/cancel?wait=30")


def not_yet_known(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have this server look for a key once as if it had done so a moment before."""
    host = live.app.state.andon
    find = host.find_by_key

    async def too_early(*arguments: Any) -> None:
        monkeypatch.setattr(host, "find_by_key", find)

    monkeypatch.setattr(host, "find_by_key", too_early)


@pytest.mark.parametrize("between", ["nothing", "another's yes"])
def test_a_no_that_could_not_be_given_is_not_done(url: str, between: str) -> None:
    """The store has taken the run up, and its answer is lost: the run is given back, and waits on as it did."""
    store = Late(url)
    store.mute = True
    store.may_answer.set()
    with server(url, Call("pay", {"euros": 5}, id="c1")) as (before, _):
        question = ask(before, "start", run_id="r", session_id="s").json()["interrupts"][0]["id"]

    def answer(live: Live, key: str, said: bool) -> tuple[int, str | None]:
        told = ask(live, key, f"{RUNS}/r/continue", answers={question: said})
        return told.status_code, told.json().get("status")

    with server(url, "Done.", runtime=Runtime(store)) as (live, _):
        code, _ = answer(live, "no", False)
        assert code == 503
        if between == "nothing":
            assert answer(live, "no", False) == (200, "COMPLETED")
            assert answer(live, "no", False) == (200, "COMPLETED"), "and it is known by its key"
        else:
            assert answer(live, "yes", True) == (200, "COMPLETED")
            code, status = answer(live, "no", False)
            assert (code, status) == (409, None), "it was not the no that was done"


def test_an_answer_that_may_not_have_been_given_is_not_told_as_done(url: str) -> None:
    """The store's answer is lost, and the run is not given back for a long time: what the store knows of the key then
    says nothing.
    """
    giving, may_give = Flag(), Flag()

    class Slow(Late):
        async def take_up(self, run_id: str, owner: str, seconds: float, *more: Any) -> Taken | None:
            if self.taken.is_set() and not may_give.is_set():
                giving.set()
                await may_give.arrived()
            return await super().take_up(run_id, owner, seconds, *more)

    store = Slow(url)
    store.mute = True
    store.may_answer.set()
    with server(url, Call("pay", {"euros": 5}, id="c1")) as (before, _):
        question = ask(before, "start", run_id="r", session_id="s").json()["interrupts"][0]["id"]
    with server(url, "Done.", runtime=Runtime(store, settle_seconds=0.01)) as (live, _):
        fields: dict[str, Any] = {"path": f"{RUNS}/r/continue", "answers": {question: True}}
        assert ask(live, "yes", **fields, background=True).status_code == 503
        giving.wait()
        may_give.set()
        eventually(lambda: live.client.get(f"{RUNS}/r").json()["status"] == "PAUSED")
        done = ask(live, "yes", **fields)
        assert (done.status_code, done.json()["status"]) == (200, "COMPLETED")


def test_a_refused_request_keeps_no_key(url: str) -> None:
    silence = Silence()
    with server(url, silence, "Two.") as (live, _):
        live.post(RUNS, message="Hi", run_id="r1", session_id="s", background="true", stream="false")
        silence.reached.wait()
        assert ask(live, session_id="s").status_code == 409
        live.client.post(f"{RUNS}/r1/cancel?wait=30")
        assert ask(live, session_id="s").json()["content"] == "Two."


# -- in memory --------------------------------------------------------------------------------------------------------


def test_in_memory_no_user_pushes_out_another_users_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idempotency_keys, "KEYS_OF_A_USER", 3)
    agent = Agent("Helper", ScriptedModel(then="OK."))
    with serving(agent) as live:
        mine = ask(live, "mine", user_id="ada").json()["run_id"]
        for number in range(5):
            assert ask(live, f"k{number}", user_id="bob").status_code == 200
        assert ask(live, "mine", user_id="ada").json()["run_id"] == mine
        assert len(live.app.state.andon.idempotency_keys) == 1 + 3


def test_in_memory_a_refused_request_keeps_no_key() -> None:
    silence = Silence()
    agent = Agent("Helper", ScriptedModel(silence, then="OK."))
    with serving(agent, max_message=10) as live:
        live.post(RUNS, message="Hi", run_id="r1", session_id="s", background="true", stream="false")
        silence.reached.wait()
        assert ask(live, session_id="s").status_code == 409
        assert ask(live, "long", message="x" * 11).status_code == 413
        assert len(live.app.state.andon.idempotency_keys) == 0
        live.client.post(f"{RUNS}/r1/cancel?wait=30")
        eventually(lambda: not agent.runtime.runs)
        assert ask(live, session_id="s").status_code == 200


def test_in_memory_keys_leave_with_age(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("andon.server.idempotency_keys.time.monotonic", lambda: now)
    kept = idempotency_keys.IdempotencyKeys()
    for number in range(10):
        kept.keep("helper", f"user {number}", RequestKey("k1", "x"), f"r{number}", 0)
    kept.keep("helper", "user 1", RequestKey("k2", "x"), "r", 0)
    now = idempotency_keys.SECONDS_KEPT / 2
    kept.keep("helper", "user 0", RequestKey("k2", "x"), "r", 0)
    assert len(kept) == 12
    now = idempotency_keys.SECONDS_KEPT + 1
    assert kept.find("helper", "user 9", "k1") is None
    assert kept.find("helper", "user 0", "k2") is not None
    kept.keep("helper", "user 5", RequestKey("k3", "x"), "r", 0)
    assert kept.find("helper", "user 5", "k3") is not None
    assert len(kept) == 3  # a user who is still there keeps the rest until its own next key

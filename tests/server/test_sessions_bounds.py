# SPDX-License-Identifier: Apache-2.0
"""Sessions over HTTP have bounds: the size of a state, how many a user has, and how many a list shows at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from andon import Agent, MemoryStore, Runtime
from andon.models.scripted import ScriptedModel, Stall
from andon.server import quotas
from andon.store.sql import SQLStore
from tests.server.live import Live, serving
from tests.server.test_room import BEHIND, at_once

ADA = "/apps/helper/users/ada/sessions"
OURS = "/agents/helper/sessions"
RUNS = "/agents/helper/runs"


@pytest.fixture(params=["memory", "sqlite"])
def runtime(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Runtime]:
    runtime = Runtime(SQLStore(f"sqlite:///{tmp_path}/andon.db") if request.param == "sqlite" else MemoryStore())
    yield runtime
    asyncio.run(runtime.close())


def helper(runtime: Runtime, *turns: Any) -> Agent:
    return Agent("Helper", ScriptedModel(*turns, then="OK."), runtime=runtime)


def pages(live: Live, path: str) -> list[list[dict[str, Any]]]:
    """All pages of a list, each by the link of the one before."""
    found = []
    while True:
        answer = live.client.get(path)
        assert answer.status_code == 200, answer.text
        found.append(answer.json())
        if (link := answer.headers.get("link")) is None:
            return found
        target, _, rel = link.partition(">; ")
        assert rel == 'rel="next"'
        path = target.removeprefix("<")


def test_a_state_that_is_too_large_is_a_413(runtime: Runtime) -> None:
    with serving(helper(runtime), max_state=1000) as live:
        large = {"x": "y" * 1000}
        for refused in (
            live.client.post(ADA, json={"sessionId": "s1", "state": large}),
            live.client.post(f"{ADA}/s1", json=large),
        ):
            assert refused.status_code == 413
            assert "and may take 1,000" in refused.json()["detail"]
        assert live.client.get(f"{ADA}/s1").status_code == 404
        assert live.client.post(f"{ADA}/s1", json={"a": "b" * 800}).status_code == 200
        assert live.client.patch(f"{ADA}/s1", json={"stateDelta": {"c": "d" * 300}}).status_code == 413
        body = {"userId": "ada", "sessionId": "s1", "newMessage": {"parts": [{"text": "Hi"}]}}
        assert live.client.post("/run", json={**body, "stateDelta": {"c": "d" * 300}}).status_code == 413
        assert live.client.get(f"{ADA}/s1").json()["state"] == {"a": "b" * 800}


def test_without_a_limit_of_its_own_a_server_keeps_to_the_stores(runtime: Runtime) -> None:
    with serving(helper(runtime)) as live:
        assert live.client.post(f"{ADA}/s1", json={"x": "y" * 300_000}).status_code == 413
        assert live.client.post(f"{ADA}/s1", json={"x": "y" * 200_000}).status_code == 200


def test_a_user_has_so_many_sessions(runtime: Runtime) -> None:
    with serving(helper(runtime), max_user_sessions=3) as live:

        def run(user: str | None = "ada", **more: str) -> Any:
            named = {} if user is None else {"user_id": user}
            return live.post(RUNS, message="Hi", stream="false", **named, **more)

        assert live.client.post(f"{ADA}/s1").status_code == 200
        assert run(session_id="s2").status_code == 200
        assert run().status_code == 200
        for refused in (run(), run(session_id="s4"), live.client.post(ADA), live.client.post(f"{ADA}/s4")):
            assert refused.status_code == 429
            assert "this user has 3 sessions with 'helper'" in refused.json()["detail"]
            assert "delete some first" in refused.json()["detail"]
        assert [run(session_id=name).status_code for name in ("s1", "s2")] == [200, 200]  # those are there
        said = {"messages": [{"role": "user", "content": "Hi"}], "user_id": "ada"}
        assert live.client.put(f"{OURS}/s1", json=said).status_code == 200
        for name in ("s4", "s5"):
            assert live.client.put(f"{OURS}/{name}", json=said).status_code == 429
            fork = {"session_id": name, "user_id": "ada"}
            assert live.client.post(f"{OURS}/s1/fork", json=fork).status_code == 429
        assert live.client.post(f"{OURS}/s1/fork", json={"user_id": "ada"}).status_code == 429
        assert run("bob").status_code == 200
        assert [run(None).status_code for _ in range(5)] == [200] * 5  # nobody in particular
        assert live.client.delete(f"{ADA}/s2").status_code == 200
        assert run().status_code == 200


SAID = {"messages": [{"role": "user", "content": "Hi"}], "user_id": "ada"}
WAYS: dict[str, Callable[[httpx.Client, int], httpx.Response]] = {
    "run": lambda client, _: client.post(RUNS, data={"message": "Hi", "stream": "false", "user_id": "ada"}),
    "work": lambda client, _: client.post(RUNS, json={**BEHIND, "message": "Hi", "user_id": "ada"}),
    "create": lambda client, _: client.post(ADA, json={}),
    "put": lambda client, number: client.put(f"{OURS}/p{number}", json=SAID),
    "fork": lambda client, _: client.post(f"{OURS}/s1/fork", json={"user_id": "ada"}),
}


@pytest.mark.parametrize("way", WAYS)
def test_many_at_once_make_no_more_sessions_than_one_may_have(runtime: Runtime, way: str) -> None:
    turns = [Stall()] * 4 if way == "work" else []
    with serving(helper(runtime, *turns), max_user_sessions=5) as live:
        assert live.client.put(f"{OURS}/s1", json=SAID).status_code == 200
        codes = at_once(live, 12, lambda client, number: WAYS[way](client, number).status_code)
        assert sum(code < 300 for code in codes) == 4
        assert codes.count(429) == 8
        assert len(live.client.get(ADA).json()) == 5
        assert live.post(RUNS, message="Hi", stream="false", user_id="ada", session_id="s1").status_code == 200


def test_of_those_who_are_counted_only_some_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "KEPT", 2)
    counted: list[str] = []
    limits = quotas.Quotas()

    async def take(who: str) -> bool:
        async def count() -> int:
            counted.append(who)
            return 0

        async with limits.reserve(who, 10, count) as taken:
            return taken

    async def main() -> None:
        for who in ("ada", "bob", "ada", "eve", "ada", "bob"):
            assert await take(who)

    asyncio.run(main())
    assert counted == ["ada", "bob", "eve", "bob"]


def test_sessions_are_listed_page_by_page(runtime: Runtime) -> None:
    with serving(helper(runtime, Stall())) as live:
        names = [f"s{number}" for number in range(5)]
        for name in names:
            live.client.post(f"{ADA}/{name}", json={"large": "x" * 1000})
        live.post(RUNS, message="Hi", user_id="ada", session_id="live", background="true", stream="false")
        first, second, third = pages(live, f"{ADA}?limit=2")
        assert [each["id"] for each in [*first, *second, *third]] == [*names, "live"]
        assert all(each["state"] == {} and each["events"] == [] for each in first)
        assert len(pages(live, ADA)) == 1
        for wrong in ("limit=0", "limit=1001", "limit=x", "cursor=x", "cursor=nan,x", "cursor=1,"):
            assert live.client.get(f"{ADA}?{wrong}").status_code == 422, wrong


def test_runs_are_listed_page_by_page(runtime: Runtime) -> None:
    agent = helper(runtime)
    agent.runtime.keep_ended(seconds=600)
    with serving(agent, Agent("Other", ScriptedModel(then="OK."), runtime=runtime)) as live:
        ids = []
        for number in range(5):
            for name in ("helper", "other"):
                answer = live.post(f"/agents/{name}/runs", message="Hi", stream="false", run_id=f"{name}-{number}")
                ids.append(answer.json()["run_id"])
        newest_first = [*reversed(ids)]
        found = pages(live, "/runs?limit=3")
        assert [len(page) for page in found] == [3, 3, 3, 1]
        assert [each["run_id"] for page in found for each in page] == newest_first
        mine = pages(live, f"{RUNS}?limit=2&status=completed")
        assert [each["run_id"] for page in mine for each in page] == newest_first[1::2]


def test_runs_that_have_left_memory_are_listed_page_by_page(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/andon.db"
    for _ in range(2):  # by a server that has nothing in memory of what the first one did
        runtime = Runtime(SQLStore(url))
        with serving(helper(runtime)) as live:
            if not (found := [each["run_id"] for page in pages(live, "/runs?limit=2") for each in page]):
                for number in range(5):
                    live.post(RUNS, message="Hi", stream="false", run_id=f"r{number}")
        asyncio.run(runtime.close())
    assert found == ["r4", "r3", "r2", "r1", "r0"]


def test_sessions_that_are_put_or_forked_count_too(runtime: Runtime) -> None:
    with serving(helper(runtime), max_user_sessions=2) as live:
        sessions, ada = "/agents/helper/sessions", {"user_id": "ada"}
        for session in ("s1", "s2", "s1"):  # one that is there may be replaced at any time
            put = live.client.put(f"{sessions}/{session}", params=ada, json={"messages": []})
            assert put.status_code == 200, put.text
        for refused in (
            live.client.put(f"{sessions}/s3", params=ada, json={"messages": []}),
            live.client.post(f"{sessions}/s1/fork", params=ada),
            live.client.post(f"{sessions}/s1/fork", params=ada, json={"session_id": "s3"}),
        ):
            assert refused.status_code == 429
            assert "this user has 2 sessions" in refused.json()["detail"]
        assert live.client.put(f"{sessions}/s3", params={"user_id": "bob"}, json={"messages": []}).status_code == 200

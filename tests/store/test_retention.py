# SPDX-License-Identifier: Apache-2.0
"""In memory nothing grows for ever, and nothing is forgotten that anybody uses."""

from __future__ import annotations

import gc
from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from andon import Agent, RunStatus, Runtime
from andon.core.records import RunRecord, SessionKey
from andon.errors import ConfigurationError
from andon.models.scripted import Call, ScriptedModel
from andon.store import MemoryStore, memory, open_store, retention
from andon.store.retention import Touched
from tests.store.making import record, said
from tests.support import Silence, play
from tests.support.till import DELETE, Till

DAY = 86400.0


def key(name: str) -> SessionKey:
    return SessionKey("helper", "ada", name)


def helper(store: MemoryStore, *items: object) -> Agent:
    return Agent("Helper", ScriptedModel(*items), runtime=Runtime(store))  # type: ignore[arg-type]


async def sessions(store: MemoryStore) -> list[str]:
    return [each.key.session_id for each in await store.list_sessions("helper", "ada")]


def test_those_that_were_touched_least_recently_leave_when_there_are_too_many() -> None:
    async def go() -> None:
        store = MemoryStore(keep_sessions=3)
        for number in range(3):
            await store.create_session(key(f"s{number}"), {})
        await store.update_session(key("s0"), {"colour": "blue"})
        await store.create_session(key("s3"), {})
        assert await sessions(store) == ["s0", "s2", "s3"]
        assert await store.find_session(key("s2")) is not None
        await store.save(record("r1", RunStatus.completed, key("s4")), said("Hi"))
        assert sorted(await sessions(store)) == ["s2", "s3", "s4"]
        assert await store.load(key("s4")) == said("Hi")

    play(go)


def test_those_that_are_not_used_for_days_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> None:
        now = [0.0]
        monkeypatch.setattr(retention, "monotonic", lambda: now[0])
        store = MemoryStore(keep_days=2)
        for name in ("old", "used"):
            await store.create_session(key(name), {})
        now[0] = 1.5 * DAY
        await store.load(key("used"))
        now[0] = 2.5 * DAY
        await store.create_session(key("new"), {})
        assert await sessions(store) == ["used", "new"]

    play(go)


def test_a_crowd_of_sessions_is_never_much_more_than_the_limit() -> None:
    async def go() -> None:
        store = MemoryStore(keep_sessions=100)
        for number in range(1000):
            await store.save(record(f"r{number}", RunStatus.completed, key(f"s{number}")), said("Hi"))
            assert len(store._sessions) <= 100
        assert len(store.retention._touched) == 100

    play(go)


def test_a_user_who_makes_very_many_pushes_out_none_but_their_own() -> None:
    async def go() -> None:
        store = MemoryStore(keep_sessions=100)
        for number in range(5):
            await store.create_session(SessionKey("helper", "bob", f"b{number}"), {})
            await store.create_session(SessionKey("helper", f"user {number}", "mine"), {})
        for number in range(1000):
            await store.create_session(key(f"s{number}"), {})
            assert len(store._sessions) <= 100
        assert await store.count_sessions("helper", "bob") == 5
        assert [await store.count_sessions("helper", f"user {number}") for number in range(5)] == [1] * 5
        assert await sessions(store) == [f"s{number}" for number in range(910, 1000)], "their oldest leave"

    play(go)


def test_if_all_of_theirs_are_in_use_others_leave_and_it_stays_bounded() -> None:
    async def go() -> None:
        store = MemoryStore(keep_sessions=20)
        for number in range(15):
            await store.save(record(f"p{number}", RunStatus.paused, key(f"s{number}")), said("Hi"))
        for number in range(200):
            await store.create_session(SessionKey("helper", f"user {number}", "mine"), {})
            assert len(store._sessions) <= 23, "a few looks later"
        assert len(await sessions(store)) == 15
        kept = [number for number in range(200) if await store.count_sessions("helper", f"user {number}")]
        assert kept == [*range(195, 200)]

    play(go)


def test_of_users_who_have_as_many_the_one_who_was_there_least_recently_loses_one() -> None:
    async def go() -> None:
        store = MemoryStore(keep_sessions=3)
        users = [SessionKey("helper", name, "mine") for name in ("ada", "bob", "cyd", "dan")]
        for each in users[:3]:
            await store.create_session(each, {})
        await store.find_session(users[0])
        await store.create_session(users[3], {})
        assert [await store.find_session(each) is not None for each in users] == [True, False, True, True]

    play(go)


@settings(database=None, derandomize=True, deadline=None, max_examples=200)
@given(st.lists(st.tuples(st.sampled_from(["touch", "drop"]), st.sampled_from("abc"), st.integers(0, 3)), max_size=60))
def test_the_user_who_has_the_most_is_known_at_every_moment(steps: list[tuple[str, str, int]]) -> None:
    touched, mine = Touched(), dict[SessionKey, None]()
    for what, user, number in steps:
        each = SessionKey("helper", user, f"s{number}")
        mine.pop(each, None)
        if what == "touch":
            touched.touch(each)
            mine[each] = None
        else:
            touched.drop(each)
        assert list(touched.times) == list(mine)
        if mine:
            counts = Counter(one.user_id for one in mine)
            found = touched.oldest_of_most()
            assert counts[found.user_id] == max(counts.values())
            assert found == next(one for one in mine if one.user_id == found.user_id)
            assert touched.oldest() == next(iter(mine))


def test_what_sub_agents_say_pushes_no_conversation_out() -> None:
    """One prompt may call any number of them, each in a session of its own."""

    async def go() -> None:
        store = MemoryStore(keep_sessions=3)
        young = Agent("Young", ScriptedModel(then="I see."))
        calls = [Call("young", {"prompt": "look"}) for _ in range(20)]
        old = Agent(
            "Helper",
            ScriptedModel(calls, then="So."),
            tools=[young.as_tool()],
            runtime=Runtime(store),
            parallel_tools=False,
        )
        await store.create_session(key("idle"), {})
        result = await old.invoke_async("go", session_id="s", user_id="ada")
        assert [each.status for each in result.messages[2].tool_results] == ["ok"] * 20
        assert await sessions(store) == ["idle", "s"]
        assert await store.count_sessions("young", "ada") == 3, "and of those there are no more either"

    play(go)


def test_what_has_a_run_stays_whether_it_goes_on_or_is_paused() -> None:
    async def go() -> None:
        store, silence, till = MemoryStore(keep_sessions=1), Silence(), Till()
        waiting = Agent("Helper", ScriptedModel(DELETE, then="Done."), tools=[till.delete], runtime=Runtime(store))
        await waiting.invoke_async("Before", session_id="paused", user_id="ada")
        busy = helper(store, "One", ["Two", silence])
        await busy.invoke_async("Before", session_id="busy", user_id="ada")
        async with busy.start("Go on", session_id="busy", user_id="ada") as run:
            await silence.reached.arrived()
            for number in range(10):
                await store.create_session(key(f"s{number}"), {})
            assert await sessions(store) == ["paused", "busy"]
            await run.cancel_and_wait()
        assert len(await store.load(key("busy"))) == 4

    play(go)


def test_the_session_of_a_paused_run_is_kept_beyond_the_limit() -> None:
    async def go() -> None:
        store = MemoryStore(keep_sessions=1)
        await store.save(record("r1", RunStatus.paused, key("paused")), said("Hi"))
        for number in range(10):
            await store.create_session(key(f"s{number}"), {})
        assert "paused" in await sessions(store)

    play(go)


def test_an_agents_own_conversation_stays_as_long_as_the_agent() -> None:
    async def go() -> None:
        store = MemoryStore(keep_sessions=2)
        agent = helper(store)
        await agent.invoke_async("Remember me")
        for number in range(10):
            await agent.invoke_async("Hi", session_id=f"s{number}", user_id="ada")
        await agent.invoke_async("Still here?")
        own = SessionKey("helper", None, agent.session_id)
        assert [each.text for each in await store.load(own)][::2] == ["Remember me", "Still here?"]
        assert len(await sessions(store)) <= 2
        del agent
        gc.collect()
        for number in range(10):
            await store.create_session(SessionKey("helper", None, f"t{number}"), {})
        assert await store.find_session(own) is None

    play(go)


@pytest.mark.parametrize(("url", "days", "most"), [("memory://", 7, 10_000), ("memory://?keep_days=0.5", 0.5, 10_000)])
def test_the_bounds_can_be_set(url: str, days: float, most: int) -> None:
    store = open_store(url)
    assert isinstance(store, MemoryStore)
    assert (store.retention.keep_days, store.retention.keep_sessions) == (days, most)


@pytest.mark.parametrize("query", ["keep_days=soon", "keep_sessions=1.5", "keep_days=-1", "keep=1", "keep_days=nan"])
def test_nonsense_is_refused(query: str) -> None:
    with pytest.raises(ConfigurationError):
        open_store(f"memory://?{query}")


def large_record(number: int, session: str) -> RunRecord:
    large = {"note": "x" * 1000}
    return msgspec.structs.replace(record(f"r{number}", RunStatus.completed, key(session)), metadata=large)


def test_the_records_of_ended_runs_are_bounded_by_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> None:
        monkeypatch.setattr(memory, "RECORDS_BYTES", 10_000)
        store = MemoryStore()
        for number in range(30):
            await store.save(large_record(number, f"s{number % 2}"), said("Hi"))
            assert sum(len(msgspec.json.encode(each)) for each in store._records.values()) <= 10_000
        assert await store.find("r0") is None
        assert (await store.find("r29")) == large_record(29, "s1")
        for session in ("s0", "s1"):
            assert await store.load(key(session)) == said("Hi") * 15, "what was said stays"
            noted = [each.run_id for each, _ in await store.history(key(session)) if each.metadata]
            assert 1 <= len(noted) <= 5, "and what a run brought along goes with its record"
        await store.delete_session(key("s0"))
        for number in range(30, 60):
            await store.save(large_record(number, "s1"), said("Hi"))
        assert store._held == sum(size for _, size in store._ended) <= 10_000

    play(go)

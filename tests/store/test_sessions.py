# SPDX-License-Identifier: Apache-2.0
"""What every store promises of sessions."""

from __future__ import annotations

from andon import Agent, RunStatus, Runtime, SessionKey
from andon.messages import user
from andon.models.scripted import ScriptedModel
from andon.testing import probe
from tests.store.making import KEY, opened_any
from tests.support import Silence, play


def test_a_session_is_there_from_its_creation_to_its_deletion(any_url: str) -> None:
    async def main() -> None:
        async with opened_any(any_url) as store:
            assert await store.find_session(KEY) is None
            made = await store.create_session(KEY, {"a": 1})
            assert made is not None
            assert (made.key, made.state) == (KEY, {"a": 1})
            assert made.created_at == made.updated_at
            assert await store.find_session(KEY) == made
            assert await store.create_session(KEY, {"b": 2}) is None
            assert await store.history(KEY) == []
            assert await store.load(KEY) == []
            assert await store.delete_session(KEY)
            assert await store.find_session(KEY) is None
            assert not await store.delete_session(KEY)

    play(main)


def test_a_state_is_changed_by_its_owner_only(any_url: str) -> None:
    async def main() -> None:
        async with opened_any(any_url) as store:
            state = {"a": 1}
            made = await store.create_session(KEY, state)
            assert made is not None
            state["a"] = made.state["a"] = 99
            changed = await store.update_session(KEY, {"b": None})
            assert changed is not None
            assert changed.state == {"a": 1, "b": None}
            assert changed.updated_at >= made.updated_at
            assert await store.find_session(KEY) == changed
            assert await store.update_session(SessionKey("helper", "bob", "s1"), {"b": 2}) is None

    play(main)


def test_sessions_are_listed_for_one_user_of_one_agent(any_url: str) -> None:
    async def main() -> None:
        async with opened_any(any_url) as store:
            for key in (
                KEY,
                SessionKey("helper", "ada", "s2"),
                SessionKey("helper", "bob", "s1"),
                SessionKey("x", "ada", "s1"),
            ):
                await store.create_session(key, {})
            assert [each.key.session_id for each in await store.list_sessions("helper", "ada")] == ["s1", "s2"]
            assert await store.list_sessions("helper", None) == []

    play(main)


def test_a_history_has_the_records_and_the_messages_of_each_run(any_url: str) -> None:
    async def main() -> None:
        async with opened_any(any_url) as store:
            silence = Silence()
            runtime = Runtime(store)
            agent = Agent("Helper", ScriptedModel(silence, "Yes."), runtime=runtime)
            async with agent.start("First", session_id="s1", user_id="ada", run_id="r1") as run:
                await silence.reached.arrived()
                assert probe(run).own_messages == [user("First")]
                await run.cancel_and_wait()
            await agent.invoke_async("Second", session_id="s1", user_id="ada", run_id="r2")
            history = await store.history(KEY)
            assert [(record.run_id, record.status) for record, _ in history] == [
                ("r1", RunStatus.cancelled),
                ("r2", RunStatus.completed),
            ]
            assert [message for _, messages in history for message in messages] == await store.load(KEY)
            assert probe(run).own_messages == history[0][1]
            session = await store.find_session(KEY)
            assert session is not None
            assert session.created_at == history[0][0].created_at < session.updated_at
            await store.delete_session(KEY)
            assert await store.history(KEY) == []
            assert await store.load(KEY) == []
            assert await store.find("r1") is not None
            await runtime.close()

    play(main)


def test_a_run_that_waits_for_its_turn_has_added_nothing() -> None:
    async def main() -> None:
        silence = Silence()
        agent = Agent("Helper", ScriptedModel(silence))
        async with agent.start("First") as first:
            await silence.reached.arrived()
            async with agent.start("Second", on_busy="queue") as second:
                assert probe(second).own_messages == []
                assert probe(first).own_messages == [user("First")]
                second.cancel()
                await second.result()
                assert [message.text for message in probe(second).own_messages] == ["Second", "Cancelled by user"]

    play(main)

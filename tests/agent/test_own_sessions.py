# SPDX-License-Identifier: Apache-2.0
"""An agent's sessions, read, replaced, forked and deleted, in memory and on a database."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from andon import (
    Agent,
    ConfigurationError,
    HistoryError,
    RunStatus,
    Runtime,
    SessionBusyError,
    SessionExistsError,
    UnknownSessionError,
)
from andon.messages import Text, assistant, user
from andon.models.scripted import Call, ScriptedModel
from andon.store import open_store
from andon.testing.validators import next_prompt_accepted
from tests.agent.test_deps import sell
from tests.support import Silence, all_with, paused, play

SAID = [user("Who are you?"), assistant(Text("A lamp."))]


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/andon.db"


@contextlib.asynccontextmanager
async def helper(url: str, *turns: Any, **options: Any) -> AsyncIterator[tuple[ScriptedModel, Agent]]:
    runtime, model = Runtime(open_store(url)), ScriptedModel(*turns, then="Yes.")
    try:
        yield model, Agent("Helper", model, runtime=runtime, **options)
    finally:
        await runtime.close()


def test_a_session_is_read(url: str) -> None:
    async def main() -> None:
        async with helper(url) as (_, agent):
            assert await agent.sessions.get("s1", user_id="ann") is None
            result = await agent.invoke_async("Hello", session_id="s1", user_id="ann")
            session = await agent.sessions.get("s1", user_id="ann")
            assert session is not None
            assert (session.agent_id, session.user_id, session.session_id) == ("helper", "ann", "s1")
            assert session.messages == result.messages
            assert session.state == {}
            assert session.created_at <= session.updated_at
            assert await agent.sessions.get("s1") is None
            await agent.invoke_async("Hello")
            own = await agent.sessions.get(agent.session_id)
            assert own is not None
            assert own.messages == agent.messages

    play(main)


def test_of_a_run_at_work_what_is_complete_is_read_but_not_forked(url: str) -> None:
    async def main() -> None:
        silence = Silence()
        async with helper(url, "One.", ["Half ", silence]) as (_, agent):
            first = await agent.invoke_async("first", session_id="s1")
            async with agent.start("second", session_id="s1") as run:
                await silence.reached.arrived()
                session = await agent.sessions.get("s1")
                assert session is not None
                assert session.messages == [*first.messages, user("second")]
                forked = await agent.sessions.fork("s1", "s2")
                assert forked.messages == first.messages
                fresh = Silence()
                agent.model = ScriptedModel([fresh])
                async with agent.start("new", session_id="s3"):
                    await fresh.reached.arrived()
                    session = await agent.sessions.get("s3")
                    assert session is not None
                    assert session.messages == [user("new")]
                    assert (await agent.sessions.fork("s3")).messages == []
                    with pytest.raises(SessionExistsError):
                        await agent.sessions.fork("s1", "s3")
                run.cancel()

    play(main)


def test_a_session_is_replaced(url: str) -> None:
    async def main() -> None:
        async with helper(url) as (model, agent):
            await agent.invoke_async("Hello", session_id="s1")
            plain: list[Any] = [{"role": "user", "content": "Who are you?"}, SAID[1]]
            replaced = await agent.sessions.replace("s1", plain)
            assert replaced == await agent.sessions.get("s1")
            assert replaced.messages == SAID
            await agent.invoke_async("Really?", session_id="s1")
            assert model.requests[-1].messages == [*SAID, user("Really?")]
            made = await agent.sessions.replace("new", [user("Only a question")], user_id="ann")
            assert next_prompt_accepted(made.messages) == []
            with pytest.raises(HistoryError, match=r"messages\[0\]"):
                await agent.sessions.replace("s1", [{"role": "nobody"}])

    play(main)


def test_the_agent_s_own_conversation_can_be_replaced_and_deleted(url: str) -> None:
    async def main() -> None:
        async with helper(url) as (model, agent):
            await agent.invoke_async("Hello")
            await agent.sessions.replace(agent.session_id, SAID)
            assert agent.messages == SAID
            await agent.invoke_async("Really?")
            assert model.requests[-1].messages == [*SAID, user("Really?")]
            assert await agent.sessions.delete(agent.session_id)
            assert agent.messages == []
            await agent.invoke_async("Anew.")
            assert model.requests[-1].messages == [user("Anew.")]

    play(main)


def test_a_fork_goes_its_own_way(url: str) -> None:
    async def main() -> None:
        async with helper(url) as (model, agent):
            first = await agent.invoke_async("Hello", session_id="s1", user_id="ann")
            forked = await agent.sessions.fork("s1", "s2", user_id="ann")
            assert (forked.session_id, forked.user_id, forked.messages) == ("s2", "ann", first.messages)
            await agent.invoke_async("There", session_id="s2", user_id="ann")
            assert model.requests[-1].messages == [*first.messages, user("There")]
            await agent.invoke_async("Here", session_id="s1", user_id="ann")
            assert model.requests[-1].messages == [*first.messages, user("Here")]
            again = await agent.sessions.fork("s2", user_id="ann")
            assert [message.text for message in again.messages] == ["Hello", "Yes.", "There", "Yes."]
            with pytest.raises(SessionExistsError, match="session 's2' exists already"):
                await agent.sessions.fork("s1", "s2", user_id="ann")
            with pytest.raises(UnknownSessionError, match="has no session 's1'"):
                await agent.sessions.fork("s1", "s3")

    play(main)


def test_a_fork_has_a_copy_of_the_state(url: str) -> None:
    async def main() -> None:
        async with helper(url) as (_, agent):
            await agent.invoke_async("Hello", session_id="s1")
            store = agent.runtime.store
            found = await agent.sessions.get("s1")
            assert found is not None
            await store.update_session(agent.sessions._key("s1", None), {"a": 1})  # type: ignore[union-attr]
            assert (await agent.sessions.fork("s1", "s2")).state == {"a": 1}

    play(main)


def test_a_session_is_deleted(url: str) -> None:
    async def main() -> None:
        async with helper(url) as (model, agent):
            await agent.invoke_async("Hello", session_id="s1")
            assert not await agent.sessions.delete("s1", user_id="ann")
            assert await agent.sessions.delete("s1")
            assert not await agent.sessions.delete("s1")
            assert await agent.sessions.get("s1") is None
            await agent.invoke_async("Hello", session_id="s1")
            assert model.requests[-1].messages == [user("Hello")]

    play(main)


def test_nothing_is_changed_while_a_run_is_there(url: str) -> None:
    async def main() -> None:
        silence = Silence()
        async with helper(url, ["Half ", silence], Call("sell"), tools=[sell]) as (_, agent):
            async with agent.start("go", session_id="s1") as run:
                await silence.reached.arrived()
                for change in (agent.sessions.replace("s1", SAID), agent.sessions.delete("s1")):
                    with pytest.raises(SessionBusyError) as caught:
                        await change
                    assert caught.value.run_id == run.run_id
                    assert "is running in it. Wait for it, or cancel it." in str(caught.value)
                run.cancel(mode="after_turn")
                for change in (agent.sessions.replace("s1", SAID), agent.sessions.delete("s1")):
                    with pytest.raises(SessionBusyError, match=r"is being cancelled\. Wait for its end\.$") as caught:
                        await change
                    assert caught.value.run_id == run.run_id
                run.cancel()
            await agent.sessions.replace("s1", SAID)
            waiting, asked = await paused(agent, session_id="s1")
            for change in (agent.sessions.replace("s1", []), agent.sessions.delete("s1")):
                with pytest.raises(SessionBusyError) as caught:
                    await change
                assert caught.value.run_id == waiting.run_id
            forked = await agent.sessions.fork("s1", "s2")
            assert forked.messages == SAID, "its call has no result yet"
            result = await agent.continue_run(waiting.run_id, all_with(True, asked))
            assert result.status is RunStatus.completed
            assert result.messages[:2] == SAID

    play(main)


def test_ids_that_are_none_are_refused() -> None:
    async def main() -> None:
        agent = Agent("Helper")
        with pytest.raises(ConfigurationError, match="session_id is empty"):
            await agent.sessions.get("")
        with pytest.raises(ConfigurationError, match="user_id is empty"):
            await agent.sessions.delete("s1", user_id="")
        with pytest.raises(ConfigurationError, match="new_session_id must be text, not int"):
            await agent.sessions.fork("s1", 7)  # type: ignore[arg-type]

    play(main)

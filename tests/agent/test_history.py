# SPDX-License-Identifier: Apache-2.0
"""A history of one's own: checked, mended, and put in place of what was said in the session."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from andon import Agent, ConfigurationError, HistoryError, Message, RunStatus, Runtime, SessionKey, StopReason
from andon.agent.history import read_history
from andon.core.records import RunRecord
from andon.messages import Block, Reasoning, Text, ToolCall, ToolResult, assistant, user
from andon.models.scripted import Call, ScriptedModel
from andon.store import open_store
from andon.testing.validators import next_prompt_accepted, validate
from tests.support import HANG, Silence, cut, play

SAID = [user("Who are you?"), assistant(Text("A lamp."))]
PLAIN = [{"role": "user", "content": "Who are you?"}, {"role": "assistant", "content": "A lamp."}]


def helper(*turns: Any) -> tuple[ScriptedModel, Agent]:
    model = ScriptedModel(*turns, then="Yes.")
    return model, Agent("Helper", model)


# -- in a run ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("history", [SAID, PLAIN, tuple(PLAIN), [SAID[0], PLAIN[1]]])
def test_a_run_begins_with_the_messages_that_it_is_given(history: Any) -> None:
    async def main() -> None:
        model, agent = helper()
        result = await agent.invoke_async("Really?", messages=history)
        assert model.requests[0].messages == [*SAID, user("Really?")]
        assert result.messages == [*SAID, user("Really?"), assistant(Text("Yes."))]
        assert agent.messages == result.messages
        await agent.invoke_async("Sure?")
        assert model.requests[1].messages == [*result.messages, user("Sure?")]

    play(main)


def test_they_take_the_place_of_what_was_said() -> None:
    async def main() -> None:
        model, agent = helper()
        first = await agent.invoke_async("Hello", session_id="s1")
        await agent.invoke_async("Really?", session_id="s1", messages=SAID)
        await agent.invoke_async("Really?", session_id="s1", messages=SAID)
        assert model.requests[2].messages == [*SAID, user("Really?")]
        await agent.invoke_async("Anew.", session_id="s1", messages=[])
        assert model.requests[3].messages == [user("Anew.")]
        assert await agent.runtime.store.added(first.run_id) is None  # type: ignore[union-attr]

    play(main)


def test_a_run_that_is_taken_back_leaves_the_history_that_it_brought() -> None:
    async def main() -> None:
        _, agent = helper()
        run = await agent.invoke_async("Really?", messages=SAID)
        await agent.rollback_run(run.run_id)
        assert agent.messages == SAID

    play(main)


def test_a_cut_run_with_a_history_goes_on() -> None:
    async def main() -> None:
        silence = Silence()
        _, agent = helper(["Half ", silence])
        ended = await cut(agent, silence.reached, messages=SAID)
        assert ended.result.messages[:3] == [*SAID, user("go")]
        assert next_prompt_accepted(ended.result.messages) == []
        more = await agent.continue_run(ended.run.run_id)
        assert more.messages[:3] == [*SAID, user("go")]
        assert more.status is RunStatus.completed

    play(main)


def test_a_run_that_is_cancelled_before_its_turn_replaces_nothing() -> None:
    async def main() -> None:
        silence = Silence()
        _, agent = helper([silence])
        async with agent.start("first", session_id="s1") as holder:
            await silence.reached.arrived()
            async with agent.start("second", session_id="s1", messages=SAID, on_busy="queue") as queued:
                queued.cancel()
                await queued.result()
            holder.cancel()
        session = await agent.sessions.get("s1")
        assert session is not None
        assert [message.text for message in session.messages] == [
            "first",
            "Cancelled by user",
            "second",
            "Cancelled by user",
        ]

    play(main)


def test_hooks_are_told_of_what_the_run_adds_and_not_of_the_history() -> None:
    async def main() -> None:
        told: list[str] = []

        class Hook:
            def message_added(self, event: Any) -> None:
                told.append(event.message.text)

        agent = Agent("Helper", ScriptedModel(then="Yes."), hooks=[Hook()])
        await agent.invoke_async("Really?", messages=SAID)
        assert told == ["Really?", "Yes."]

    play(main)


def test_on_a_database_the_history_is_kept(tmp_path: Path) -> None:
    async def main() -> None:
        url = f"sqlite:///{tmp_path}/andon.db"
        first, second = Runtime(open_store(url)), Runtime(open_store(url))
        try:
            silence = Silence()
            agent = Agent("Helper", ScriptedModel("Hi.", ["Half ", silence], then="Yes."), runtime=first)
            await agent.invoke_async("Hello", session_id="s1")
            ended = await cut(agent, silence.reached, session_id="s1", messages=SAID)
            elsewhere = Agent("Helper", model := ScriptedModel(then="Yes."), runtime=second)
            more = await elsewhere.continue_run(ended.run.run_id)
            assert model.requests[0].messages[:3] == [*SAID, user("go")]
            assert more.messages[:3] == [*SAID, user("go")]
            await elsewhere.invoke_async("And?", session_id="s1")
            assert model.requests[1].messages == [*more.messages, user("And?")]
            own = await agent.invoke_async("Own.", messages=SAID)
            assert agent.messages == own.messages == [*SAID, user("Own."), assistant(Text("Yes."))]
        finally:
            await first.close()
            await second.close()

    play(main)


def test_a_paused_run_with_a_history_goes_on_in_another_process(tmp_path: Path) -> None:
    async def main() -> None:
        from tests.agent.test_deps import sell

        url = f"sqlite:///{tmp_path}/andon.db"
        first, second = Runtime(open_store(url)), Runtime(open_store(url))
        model = ScriptedModel(Call("sell"), then="Done.")
        try:
            agent = Agent("Helper", model, tools=[sell], runtime=first)
            asked = await agent.invoke_async("go", messages=SAID, session_id="s1")
            assert asked.stop_reason is StopReason.interrupt
            elsewhere = Agent("Helper", model, tools=[sell], runtime=second)
            more = await elsewhere.continue_run(asked.run_id, {each.id: True for each in asked.interrupts})
            assert more.messages[:3] == [*SAID, user("go")]
        finally:
            await first.close()
            await second.close()

    play(main)


def test_a_store_without_sessions_can_take_no_history() -> None:
    class Plain:
        """Keeps nothing, and knows no sessions."""

        async def load(self, session: SessionKey) -> list[Message]:
            return []

        async def save(self, record: RunRecord, messages: Any) -> None: ...

        async def find(self, run_id: str) -> RunRecord | None:
            return None

        async def added(self, run_id: str) -> list[Message] | None:
            return None

        async def rollback(self, run_id: str) -> None: ...

    agent = Agent("Helper", ScriptedModel(then="Yes."), runtime=Runtime(Plain()))
    with pytest.raises(ConfigurationError, match="the store keeps runs and no sessions"):
        agent.start("go", messages=[])


def test_what_goes_on_takes_no_history() -> None:
    async def main() -> None:
        _, agent = helper()
        with pytest.raises(TypeError, match="there is no option messages to go on with"):
            await agent.continue_run("r1", messages=SAID)  # type: ignore[call-overload]

    play(main)


# -- mending ----------------------------------------------------------------------------------------------------------

CALL = ToolCall("c1", "look", {"at": "it"})
RESULT = ToolResult("c1", "look", "a lamp")
UNKNOWN = "This call was cancelled while it was running. Its outcome is unknown."
ASK = {"role": "assistant", "tool_calls": [{"id": "c1", "function": {"name": "look", "arguments": '{"at": "it"}'}}]}


@pytest.mark.parametrize(
    ("messages", "mended"),
    [
        ([], []),
        ([user("a"), user("b")], [Message("user", [Text("a"), Text("b")]), assistant(Text("(no answer)"))]),
        (
            [user("a"), assistant(Text("b")), assistant(Text("c"))],
            [user("a"), assistant(Text("b"), Text("c"))],
        ),
        ([assistant(Text("Hi!"))], [user("(the conversation begins)"), assistant(Text("Hi!"))]),
        ([user("a"), assistant()], [user("a"), assistant(Text("(no answer)"))]),
        (
            [user("a"), assistant(Text("b"), Reasoning("hm", "sig"))],
            [user("a"), assistant(Text("b"), Reasoning("hm", "sig"), Text("(no answer)"))],
        ),
        (
            [user("a"), assistant(CALL), user("b"), assistant(Text("c"))],
            [
                user("a"),
                assistant(CALL),
                Message("tool", [ToolResult("c1", "look", UNKNOWN, "error")]),
                assistant(Text("(no answer)")),
                user("b"),
                assistant(Text("c")),
            ],
        ),
        (
            [{"role": "user", "content": "a"}, ASK, {"role": "tool", "tool_call_id": "c1", "content": "a lamp"}],
            [user("a"), assistant(CALL), Message("tool", [RESULT]), assistant(Text("(no answer)"))],
        ),
        (
            [user("a"), assistant(CALL), Message("tool", [ToolResult("c1", "", " ")])],
            [
                user("a"),
                assistant(CALL),
                Message("tool", [ToolResult("c1", "look", "(no output)")]),
                assistant(Text("(no answer)")),
            ],
        ),
        (
            [{"role": "user", "content": [{"type": "text", "text": "a"}, "b", " "]}],
            [Message("user", [Text("a"), Text("b")]), assistant(Text("(no answer)"))],
        ),
        ([{"role": "user", "content": "\ud83d"}], [user("?"), assistant(Text("(no answer)"))]),
    ],
)
def test_what_can_be_mended_is(messages: Any, mended: list[Message]) -> None:
    assert read_history(messages) == mended
    assert next_prompt_accepted(mended) == []
    assert read_history(mended) == mended


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ("hello", "messages must be a list of messages, not str"),
        (PLAIN[0], "messages must be a list of messages, not dict"),
        (7, "messages must be a list of messages, not int"),
        ([user("a"), "b"], r"messages\[1\] is str; a message is a Message, or"),
        ([{"role": "system", "content": "Be kind."}], r"messages\[0\] has the role 'system': .* instructions"),
        ([user("a"), {"role": "model", "content": "b"}], r"messages\[1\] has the role 'model'; use user, assistant"),
        ([{"content": "a"}], r"messages\[0\] has the role None"),
        ([{"role": "user"}], r"messages\[0\] has no text"),
        ([{"role": "user", "content": 7}], r"messages\[0\] has int as its content"),
        (
            [{"role": "user", "content": [{"type": "image_url"}]}],
            r"messages\[0\] has a block that can't be read: .*image_url",
        ),
        ([Message("user", [CALL])], r"messages\[0\] has a tool_call block, which the role 'user' can't have"),
        ([Message("user", [Text(7)])], r"messages\[0\] has a block that can't be read"),  # type: ignore[arg-type]
        ([user("a"), assistant(ToolCall("c", "look!", {}))], r"messages\[1\] calls 'look!', which is no name"),
        ([user("a"), Message("tool", [RESULT])], r"messages\[1\] has a result for 'c1', which the answer before"),
        ([user("a"), assistant(CALL), Message("tool", [RESULT, RESULT])], r"messages\[2\] has a second result"),
        ([user("a"), assistant(CALL), assistant(CALL)], r"messages\[2\] uses the call id 'c1', which was used"),
        ([user("a"), {**ASK, "tool_calls": ["look"]}], r"messages\[1\] has a tool call that can't be read"),
        (
            [user("a"), {**ASK, "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{"}}]}],
            r"messages\[1\] has a tool call that can't be read",
        ),
        ([{"role": "tool", "tool_call_id": 7, "content": "x"}], r"messages\[0\] has a result that can't be read"),
        ([{"role": "tool", "content": None}], r"messages\[0\] has no result"),
    ],
)
def test_what_can_t_be_mended_is_refused_by_its_place(messages: Any, said: str) -> None:
    with pytest.raises(HistoryError, match=said):
        Agent("Helper", ScriptedModel(then="Yes.")).start("go", messages=messages)


_words = st.sampled_from(["", " ", "one", "two"])
_ids = st.sampled_from(["c1", "c2", "c3"])
_blocks: st.SearchStrategy[Block] = st.one_of(
    st.builds(Text, _words),
    st.builds(Reasoning, _words, st.sampled_from([None, "sig"])),
    st.builds(ToolCall, _ids, st.just("look"), st.just({})),
    st.builds(ToolResult, _ids, st.just("look"), _words, st.sampled_from(["ok", "error"])),
)
_messages = st.builds(Message, st.sampled_from(["user", "assistant", "tool"]), st.lists(_blocks, max_size=3))


@given(st.lists(_messages, max_size=6))
def test_whatever_is_brought_is_refused_or_accepted_by_every_provider(messages: list[Message]) -> None:
    try:
        mended = read_history(messages)
    except HistoryError:
        return
    assert validate(mended) == []
    assert next_prompt_accepted(mended) == []
    assert read_history(mended) == mended


def test_many_messages_of_one_role_become_one_without_much_work() -> None:
    """They are put together as they come: copied each time, so many would take minutes."""
    began = time.monotonic()
    (said, answer) = read_history([user("Hi")] * 250_000)
    assert time.monotonic() - began < HANG
    assert (said.role, len(said.content), answer.role) == ("user", 250_000, "assistant")

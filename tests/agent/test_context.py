# SPDX-License-Identifier: Apache-2.0
"""A conversation that outgrows its model: what is sent is shortened, what is kept stays whole."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from andon import (
    Agent,
    Budget,
    CancelCause,
    ContextError,
    ContextLengthError,
    ContextView,
    ContextWindow,
    Event,
    Message,
    RunEvent,
    RunStatus,
    Runtime,
    Summarise,
    Trim,
    Usage,
    tool,
)
from andon.agent import context
from andon.agent.context import STANDS_FOR
from andon.core.records import RunRecord, SessionKey, Shortened
from andon.errors import ModelError
from andon.messages import Text, assistant, estimate_tokens, user
from andon.models.scripted import Call, Fail, Item, Pause, ScriptedModel, Spend, Turn
from andon.store import open_store
from andon.store.memory import MemoryStore
from andon.testing import explore, reading
from andon.testing.validators import validate
from tests.support import (
    Flag,
    Silence,
    all_with,
    asked,
    check_cancelled,
    check_events,
    check_goes_on,
    cut,
    make,
    paused,
    play,
    record_of,
)

LONG = "word " * 80  # a hundred tokens
TOO_LONG = Fail(ContextLengthError("too long"))


def reduced(events: list[Event]) -> list[ContextView]:
    return [event.context for event in events if event.context is not None and event.event is RunEvent.context_reduced]


def talk(agent: Agent, prompts: int = 6) -> None:
    """Say so much that it does not fit any more."""
    for number in range(prompts):
        assert agent.run(f"{number} {LONG}").status is RunStatus.completed


def sent(agent: Agent) -> list[Message]:
    return asked(agent)[-1].messages


# -- trimming ---------------------------------------------------------------------------------------------------------


def test_what_is_sent_is_trimmed_and_what_is_kept_is_whole() -> None:
    agent = make(context=Trim(tokens=450))
    talk(agent)
    events = list(agent.run("And now?", stream=True))
    check_events(events)
    assert len(agent.messages) == 14
    assert len(sent(agent)) < 9
    assert sent(agent) == agent.messages[-1 - len(sent(agent)) : -1]
    assert validate(sent(agent)) == []
    (told,) = reduced(events)
    assert (told.messages_before, told.messages_after) == (13, len(sent(agent)))
    assert told.tokens_after <= 450 < told.tokens_before


def test_a_conversation_that_fits_is_sent_as_it_is() -> None:
    agent = make(context=Trim(tokens=10_000, messages=100))
    talk(agent)
    events = list(agent.run("And now?", stream=True))
    assert reduced(events) == []
    assert sent(agent) == agent.messages[:-1]


def test_in_a_long_run_it_is_told_when_it_changes() -> None:
    @tool
    async def look() -> str:
        """Look."""
        return LONG

    agent = make(*[Call("look")] * 12, tools=[look], context=Trim(tokens=600))
    events = list(agent.run("Go on until you find it.", stream=True))
    assert events[-1].status is RunStatus.completed
    for request in asked(agent):
        assert request.messages[0] == user("Go on until you find it.")
        assert validate(request.messages) == []
    left_out = [told.messages_before - told.messages_after for told in reduced(events)]
    assert left_out == sorted(set(left_out))
    assert 2 <= len(left_out) <= 10
    assert len(agent.messages) == 26


def test_the_providers_own_count_is_believed() -> None:
    """By its characters it would fit; by what the last call has cost it does not."""

    @tool
    async def look() -> str:
        """Look."""
        return "seen"

    agent = make(
        "OK.", [Call("look"), Spend(input_tokens=2_000, output_tokens=10)], tools=[look], context=Trim(tokens=500)
    )
    agent.run(LONG)
    agent.run(LONG)
    _, second, third = asked(agent)
    assert len(second.messages) == 3
    assert [message.role for message in third.messages] == ["user", "assistant", "tool"]


def test_hidden_reasoning_says_nothing_about_how_long_the_conversation_is() -> None:
    """A reasoning model counts thousands of tokens as its answer's, of which nothing is sent again."""

    @tool
    async def look() -> str:
        """Look."""
        return "seen"

    hidden = Spend(input_tokens=300, output_tokens=6_020, reasoning_tokens=6_000)
    agent = make(*["OK."] * 2, [Call("look"), hidden], tools=[look], context=Trim(tokens=500))
    talk(agent, 2)
    events = list(agent.run(LONG, stream=True))
    assert reduced(events) == []
    assert len(sent(agent)) == len(agent.messages) - 1


def test_a_server_that_does_not_count_is_not_believed() -> None:
    @tool
    async def look() -> str:
        """Look."""
        return LONG * 4

    said: list[int] = []

    def count(messages: list[Message], window: ContextWindow) -> list[Message]:
        said.append(window.tokens(messages))
        return messages

    make([Call("look"), Spend(input_tokens=0, output_tokens=0)], tools=[look], context=count).run(LONG)
    assert said[1] > 500


def test_hooks_are_told_of_what_is_really_sent() -> None:
    told: list[int] = []

    class Watch:
        def before_model(self, event: Any) -> None:
            told.append(len(event.request.messages))

    agent = make(context=Trim(messages=3), hooks=[Watch()])
    talk(agent, 3)
    assert told == [1, 3, 3]


# -- what a provider refuses ------------------------------------------------------------------------------------------


def test_what_the_provider_finds_too_long_is_tried_once_with_less() -> None:
    agent = make(*["OK."] * 6, TOO_LONG, "Better.", context=Trim(tokens=100_000))
    talk(agent)
    events = list(agent.run("And now?", stream=True))
    assert events[-1].content == "Better."
    whole, less = asked(agent)[-2:]
    assert len(whole.messages) == 13
    assert 1 <= len(less.messages) < 8
    (told,) = reduced(events)
    assert told.tokens_after <= told.tokens_before // 2


def test_it_is_tried_once_and_no_more() -> None:
    agent = make(*["OK."] * 6, TOO_LONG, TOO_LONG, context=Trim(tokens=100_000))
    talk(agent)
    result = agent.run("And now?")
    assert isinstance(result.error, ContextLengthError)
    assert len(asked(agent)) == 8
    assert result.usage == Usage()
    assert agent.run("and now?").status is RunStatus.completed


def test_with_nothing_to_leave_out_the_error_is_what_it_was() -> None:
    agent = make(TOO_LONG, context=Trim(tokens=100_000))
    assert agent.run("Hello").error is TOO_LONG.error
    assert len(asked(agent)) == 1


def test_without_a_policy_it_is_an_error() -> None:
    agent = make(*["OK."] * 6, TOO_LONG)
    talk(agent)
    assert agent.run("And now?").error is TOO_LONG.error


def test_what_was_shown_is_not_said_twice() -> None:
    agent = make(*["OK."] * 6, ["Well, ", TOO_LONG], context=Trim(tokens=100_000))
    talk(agent)
    result = agent.run("And now?")
    assert result.error is TOO_LONG.error
    assert result.content == "Well, "


# -- summaries --------------------------------------------------------------------------------------------------------


def scribe(*turns: Turn) -> ScriptedModel:
    return ScriptedModel(*turns, then=["They talked.", Spend(input_tokens=70, output_tokens=7)], id="scribe")


def test_a_summary_stands_for_the_beginning() -> None:
    writer = scribe()
    agent = make(context=Summarise(tokens=450, model=writer))
    for number in range(6):
        events = list(agent.run(f"{number} {LONG}", stream=True))
        check_events(events)
        assert "".join(event.content for event in events if event.event is RunEvent.run_content) == "OK."
    agent.run("And now?")
    assert sent(agent)[0].text.startswith(f"{STANDS_FOR}They talked.\n\n")
    assert sent(agent)[-1] == user("And now?")
    assert validate(sent(agent)) == []
    assert len(agent.messages) == 14
    assert "They talked." not in str(agent.messages)
    assert "user: 0 word" in writer.requests[0].messages[0].text
    assert writer.requests[0].tools == []


def test_its_tokens_are_counted() -> None:
    writer = scribe()
    answer: list[str | Item] = ["OK.", Spend(input_tokens=10, output_tokens=3)]
    agent = make(*[answer] * 6, context=Summarise(tokens=450, model=writer))
    for number in range(6):
        before = len(writer.requests)
        usage = agent.run(f"{number} {LONG}").usage
        made = len(writer.requests) - before
        assert (usage.input_tokens, usage.output_tokens) == (10 + 70 * made, 3 + 7 * made)
    assert writer.requests


def test_it_is_remembered_with_the_session() -> None:
    writer = scribe()
    agent = make(context=Summarise(tokens=450, model=writer))
    talk(agent)
    made = len(writer.requests)
    assert made >= 1
    agent.run("Short one.")
    assert len(writer.requests) == made
    assert STANDS_FOR in sent(agent)[0].text


def test_it_is_remembered_in_another_process(tmp_path: Path) -> None:
    async def main() -> None:
        url, writers = f"sqlite:///{tmp_path}/andon.db", (scribe(), scribe())
        for writer, prompts in zip(writers, (6, 1), strict=True):
            runtime = Runtime(open_store(url))
            agent = make(context=Summarise(tokens=450, model=writer), runtime=runtime)
            for number in range(prompts):
                await agent.invoke_async(f"{number} {LONG if prompts > 1 else ''}", session_id="s")
            assert STANDS_FOR in sent(agent)[0].text
            await runtime.close()
        assert len(writers[0].requests) >= 1
        assert len(writers[1].requests) == 0

    play(main)


def test_it_is_extended_and_not_made_anew() -> None:
    writer = scribe("First.", "Second.")
    agent = make(context=Summarise(tokens=450, model=writer))
    talk(agent, 9)
    second = writer.requests[1].messages[0].text
    assert second.startswith("The summary so far:\n\nFirst.\n\n")
    assert "user: 0 word" not in second
    assert sent(agent)[0].text.startswith(f"{STANDS_FOR}")


def test_a_summary_of_other_messages_is_not_used() -> None:
    """As after somebody has replaced the conversation."""

    async def main() -> None:
        store = MemoryStore()
        lies = Shortened(2, "of something else", "Lies.")
        key = SessionKey("tester", None, "s")
        record = RunRecord("r0", key, RunStatus.completed, 1.0, {}, shortened=lies)
        said = [message for _ in range(4) for message in (user(LONG), assistant(Text("OK.")))]
        await store.save(record, said)
        agent = make(context=Summarise(tokens=350, model=scribe()), runtime=Runtime(store))
        await agent.invoke_async("And now?", session_id="s")
        assert sent(agent)[0].text.startswith(f"{STANDS_FOR}They talked.")

    play(main)


def test_a_summary_of_what_was_taken_back_is_not_used() -> None:
    async def main() -> None:
        writer = scribe()
        agent = make(context=Summarise(tokens=450, model=writer))
        results = [await agent.invoke_async(f"{number} {LONG}") for number in range(6)]
        for result in reversed(results):
            await agent.rollback_run(result.run_id)
        assert agent.messages == []
        made = len(writer.requests)
        for number in range(6):
            await agent.invoke_async(f"other {number} {LONG}")
        assert len(writer.requests) > made
        assert "other 0" in writer.requests[made].messages[0].text

    play(main)


def test_the_agents_own_model_writes_it_if_there_is_no_other() -> None:
    agent = make(context=Summarise(tokens=450))
    talk(agent)
    assert any(request.instructions and "summar" in request.instructions for request in asked(agent))


@pytest.mark.parametrize("turn", [Fail(ModelError("no")), Fail(ValueError("broken")), "", " "])
def test_without_a_summary_the_beginning_is_left_out_and_that_is_told(turn: Turn) -> None:
    agent = make(context=Summarise(tokens=450, model=ScriptedModel(then=turn)))
    talk(agent)
    result = agent.run("And now?")
    assert result.status is RunStatus.completed
    assert "could not be summarised" in result.warnings[0]
    assert len(sent(agent)) < 9
    assert validate(sent(agent)) == []
    assert STANDS_FOR not in sent(agent)[0].text


def test_a_writer_that_fails_is_asked_again_only_when_it_is_too_long_again() -> None:
    """And not before every model call of the run."""

    @tool
    async def look() -> str:
        """Look."""
        return LONG

    writer = ScriptedModel(then=Fail(ModelError("no")))
    agent = make(*[Call("look")] * 12, tools=[look], context=Summarise(tokens=600, model=writer))
    result = agent.run("Go on until you find it.")
    assert result.status is RunStatus.completed
    assert len(asked(agent)) == 13
    assert 2 <= len(writer.requests) <= 4
    assert len(result.warnings) == 1
    for request in asked(agent):
        assert len(request.messages) <= 13
        assert validate(request.messages) == []


def test_after_a_failure_the_next_summary_is_of_all_that_was_left_out() -> None:
    @tool
    async def look(number: int) -> str:
        """Look."""
        return f"seen {number} {LONG}"

    writer = scribe(Fail(ModelError("no")))
    calls = [Call("look", {"number": number}) for number in range(12)]
    agent = make(*calls, tools=[look], context=Summarise(tokens=600, model=writer))
    agent.run("Go on until you find it.")
    assert "seen 0" in writer.requests[1].messages[0].text
    assert sent(agent)[0].text.startswith(f"{STANDS_FOR}They talked.")


def test_a_writer_that_is_busy_is_asked_again() -> None:
    writer = scribe(Fail(ModelError("busy", retryable=True, retry_after=0)))
    agent = make(context=Summarise(tokens=450, model=writer))
    events = [event for number in range(6) for event in agent.run(f"{number} {LONG}", stream=True)]
    assert [event.error for event in events if event.event is RunEvent.model_retry] == ["ModelError: busy"]
    assert STANDS_FOR in sent(agent)[0].text


# -- cancelling -------------------------------------------------------------------------------------------------------


async def long_talk(agent: Agent) -> None:
    for number in range(4):
        await agent.invoke_async(f"{number} {LONG}", session_id="s")


def waiting_scribe() -> tuple[Silence, ScriptedModel]:
    silence = Silence()
    half: list[str | Item] = ["Half a sum", Spend(input_tokens=50, output_tokens=3), silence]
    return silence, ScriptedModel(half, then="All of it.")


@pytest.mark.parametrize("mode", ["now", "after_tools"])
def test_a_cancel_in_the_middle_of_a_summary(mode: str) -> None:
    async def main() -> None:
        silence, writer = waiting_scribe()
        agent = make(context=Summarise(tokens=450, model=writer))
        await long_talk(agent)
        requests = len(asked(agent))
        ended = await cut(agent, silence.reached, prompt=LONG, mode=mode, session_id="s")
        check_cancelled(ended, phase="waiting", mode=mode)
        assert silence.cuts == 1
        assert ended.result.content == ""
        assert (ended.result.usage.input_tokens, ended.result.usage.output_tokens) == (50, 3)
        assert ended.result.usage.estimated
        assert len(asked(agent)) == requests, "the model itself was not asked"
        result = await agent.invoke_async("and now?", session_id="s")
        assert result.status is RunStatus.completed
        assert "All of it." in sent(agent)[0].text

    play(main)


def test_a_cancel_after_the_turn_lets_the_summary_finish_and_asks_nothing_more() -> None:
    async def main() -> None:
        go, there = Flag(), Flag()

        class Wait(Item):
            async def play(self, sink: Any, model: ScriptedModel) -> None:
                there.set()
                await go.arrived()

        agent = make(context=Summarise(tokens=450, model=ScriptedModel([Wait(), "Done."])))
        await long_talk(agent)
        requests = len(asked(agent))
        async with agent.start(LONG, session_id="s") as run:
            await there.arrived()
            run.cancel(mode="after_turn")
            go.set()
            result = await run.result()
        assert result.status is RunStatus.cancelled
        assert len(asked(agent)) == requests
        record = await record_of(agent, run.run_id)
        assert record.shortened is not None
        assert record.shortened.summary == "Done."

    play(main)


def test_a_cancel_after_the_turn_lets_a_policy_ask_no_more_models() -> None:
    """The turn that they would be asked for never begins."""

    async def main() -> None:
        go, there = Flag(), Flag()

        class Wait(Item):
            async def play(self, sink: Any, model: ScriptedModel) -> None:
                there.set()
                await go.arrived()

        writer = ScriptedModel([Wait(), "One."], then="More.")

        async def asks(messages: list[Message], window: ContextWindow) -> list[Message]:
            for _ in range(5):
                await window.ask("Well?", model=writer)
            return messages

        async with make(context=asks).start("Hello") as run:
            await there.arrived()
            run.cancel(mode="after_turn")
            go.set()
            assert (await run.result()).status is RunStatus.cancelled
        assert len(writer.requests) == 1

    play(main)


def test_what_is_to_be_summarised_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the work grows with the square of it, and no cancel is heard meanwhile."""
    measured = 0

    def counted(pieces: Iterable[str]) -> int:
        nonlocal measured
        measured += len(listed := list(pieces))
        return estimate_tokens(listed)

    async def main() -> None:
        history: list[Message] = []
        for number in range(500):
            history += [user(f"Question {number}"), assistant(Text("Yes."))]
        agent = make(context=Summarise(tokens=400, model=ScriptedModel(then="Brief.")))
        monkeypatch.setattr(context, "estimate_tokens", counted)
        assert (await agent.invoke_async("And?", messages=history)).status is RunStatus.completed
        assert 0 < measured < 5_000

    play(main)


def test_a_budget_that_the_summary_uses_up() -> None:
    agent = make(context=Summarise(tokens=450, model=scribe([" ".join(["word"] * 4000)])))
    talk(agent, 4)
    result = agent.run(LONG, budget=Budget(tokens=50))
    assert result.status is RunStatus.cancelled
    assert result.receipt is not None
    assert result.receipt.cause is CancelCause.budget
    assert len(asked(agent)) == 4


def test_what_the_summary_has_cost_is_taken_from_the_budget() -> None:
    agent = make(context=Summarise(tokens=450, model=scribe()))
    talk(agent, 4)
    result = agent.run(LONG, budget=Budget(tokens=77))
    assert result.receipt is not None
    assert result.receipt.cause is CancelCause.budget
    assert (result.usage.input_tokens, result.usage.output_tokens) == (70, 7)
    assert len(asked(agent)) == 4, "nothing is left for the model itself"


def test_the_host_is_told_apart() -> None:
    async def main() -> None:
        silence, writer = waiting_scribe()
        agent = make(context=Summarise(tokens=450, model=writer))
        await long_talk(agent)
        task = asyncio.create_task(agent.invoke_async(LONG, session_id="s"))
        await silence.reached.arrived()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await agent.invoke_async("and now?", session_id="s")).status is RunStatus.completed

    play(main)


def test_a_paused_run_keeps_its_summary(tmp_path: Path) -> None:
    @tool(approval=True)
    async def delete() -> str:
        """Delete it."""
        return "gone"

    async def main() -> None:
        url = f"sqlite:///{tmp_path}/andon.db"
        writer = scribe()
        policy, runtime = Summarise(tokens=450, model=writer), Runtime(open_store(url))
        agent = make(*["OK."] * 4, Call("delete"), context=policy, tools=[delete], runtime=runtime)
        await long_talk(agent)
        run, result = await paused(agent, LONG, session_id="s")
        made = len(writer.requests)
        assert made >= 1
        other = Runtime(open_store(url))
        heir = make("Gone.", context=policy, tools=[delete], runtime=other)
        ended = await heir.continue_run(run.run_id, all_with(True, result))
        assert ended.status is RunStatus.completed
        assert STANDS_FOR in sent(heir)[0].text
        assert len(writer.requests) == made
        assert (await record_of(heir, run.run_id)).shortened is not None, "those that come after it use it too"
        await runtime.close()
        await other.close()

    play(main)


@pytest.mark.no_cover
def test_every_step_of_it_can_be_cancelled() -> None:
    async def scenario() -> None:
        writer = ScriptedModel(then=["They talked.", Spend(input_tokens=70, output_tokens=7)])
        agent = Agent("A", ScriptedModel(), context=Summarise(tokens=250, model=writer))
        for number in range(3):
            async for _ in reading(agent.stream_async(f"{number} {LONG}")):
                pass

    report = explore(scenario, cancels=("now", "after_tools", "after_turn"), within=0)
    assert not report.problems, report


# -- a function of one's own ------------------------------------------------------------------------------------------


def test_a_function_of_ones_own() -> None:
    seen: list[tuple[str, str, str | None, int]] = []

    def last_prompt(messages: list[Message], window: ContextWindow) -> list[Message]:
        seen.append((window.agent_id, window.session_id, window.user_id, window.tokens(messages)))
        assert window.run_id
        return messages[-1:]

    agent = make(context=last_prompt)
    agent.run("one", session_id="s", user_id="ann")
    agent.run(LONG, session_id="s", user_id="ann")
    assert sent(agent) == [user(LONG)]
    assert seen[0][:3] == ("tester", "s", "ann")
    assert seen[1][3] > 100


def test_an_async_one_is_a_step_and_can_ask_a_model() -> None:
    async def main() -> None:
        async def tidy(messages: list[Message], window: ContextWindow) -> list[Message]:
            said = await window.ask("Which is the last?", "Be brief.", scribe())
            assert said == "They talked."
            return [user(said)]

        agent = make(["OK.", Spend(input_tokens=5, output_tokens=1)], context=tidy)
        result = await agent.invoke_async("one")
        assert sent(agent) == [user("They talked.")]
        assert (result.usage.input_tokens, result.usage.output_tokens) == (75, 8)

        stuck = Flag()

        async def wait(messages: list[Message], window: ContextWindow) -> list[Message]:
            stuck.set()
            await asyncio.get_running_loop().create_future()
            return messages

        hanging = make(context=wait)
        ended = await cut(hanging, stuck)
        check_cancelled(ended, phase="waiting")
        hanging.context = None
        await check_goes_on(hanging, ended)

    play(main)


def test_one_that_asks_two_models_at_once_is_counted_for_both() -> None:
    async def main() -> None:
        silence = Silence()

        async def both(messages: list[Message], window: ContextWindow) -> list[Message]:
            spent = Spend(input_tokens=30, output_tokens=2)
            slow = window.ask("a", model=ScriptedModel(["Well", spent, silence]))
            await asyncio.gather(slow, window.ask("b", model=ScriptedModel(["So", spent])))
            return messages

        agent = make(context=both)
        ended = await cut(agent, silence.reached)
        check_cancelled(ended, phase="waiting")
        assert (ended.result.usage.input_tokens, ended.result.usage.output_tokens) == (60, 4)
        assert silence.cuts == 1

    play(main)


def test_what_it_asks_beside_one_that_fails_is_cut_with_it() -> None:
    async def main() -> None:
        silence = Silence()

        async def both(messages: list[Message], window: ContextWindow) -> list[Message]:
            slow = asyncio.ensure_future(window.ask("a", model=ScriptedModel(["Well", silence])))
            await silence.reached.arrived()
            await asyncio.gather(slow, window.ask("b", model=ScriptedModel(Fail(ValueError("no")))))
            return messages

        async with make(context=both).start("go") as run:
            result = await run.result()
            assert repr(result.error) == "ValueError('no')"
            assert silence.cuts == 1
            assert run.leftovers == []

    play(main)


def test_no_model_is_asked_for_it_when_it_has_returned() -> None:
    async def main() -> None:
        silence, late, over = Silence(), ScriptedModel(), Flag()
        tasks: list[asyncio.Task[str]] = []

        async def ask_late(window: ContextWindow) -> str:
            await over.arrived()
            return await window.ask("b", model=late)

        async def hasty(messages: list[Message], window: ContextWindow) -> list[Message]:
            tasks.append(asyncio.create_task(window.ask("a", model=ScriptedModel(silence))))
            await silence.reached.arrived()
            tasks.append(asyncio.create_task(ask_late(window)))
            return messages

        result = await make(context=hasty).invoke_async("go")
        over.set()
        assert (result.status, result.content) == (RunStatus.completed, "OK.")
        assert tasks[0].cancelled()
        assert silence.cuts == 1
        with pytest.raises(ContextError, match="after the policy had returned"):
            await tasks[1]
        assert not late.requests

    play(main)


@pytest.mark.no_cover
def test_one_that_asks_two_models_at_once_can_be_cancelled_at_every_step() -> None:
    async def scenario() -> None:
        async def both(messages: list[Message], window: ContextWindow) -> list[Message]:
            await asyncio.gather(window.ask("a"), window.ask("b"))
            return messages

        agent = Agent("A", ScriptedModel(then=["Well", Pause(1), "."]), context=both)
        await agent.invoke_async("go")

    report = explore(scenario, inject="cancel", cancels=("now", "after_tools", "after_turn"))
    assert not report.problems, report


def test_a_summary_that_something_else_remembered_is_not_used() -> None:
    """It would part a call from its result."""

    @tool
    async def look() -> str:
        """Look."""
        return LONG

    def careless(messages: list[Message], window: ContextWindow) -> list[Message]:
        window.remember(2, "Nothing.")
        return messages

    agent = make(Call("look"), tools=[look], context=careless)
    agent.run("Look.")
    agent.context = Summarise(tokens=150, model=scribe())
    result = agent.run(LONG)
    assert result.status is RunStatus.completed
    assert "They talked." in sent(agent)[0].text


def test_one_that_changes_its_list_changes_nothing() -> None:
    def careless(messages: list[Message], window: ContextWindow) -> list[Message]:
        del messages[:-1]
        return messages

    agent = make(context=careless)
    agent.run("one")
    agent.run("two")
    assert [message.text for message in agent.messages] == ["one", "OK.", "two", "OK."]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "context broken returned NoneType"),
        ([], "the first message is not a user's"),
        ([assistant()], "the first message is not a user's"),
    ],
)
def test_what_it_returns_is_checked(answer: Any, words: str) -> None:
    def broken(messages: list[Message], window: ContextWindow) -> list[Message]:
        found: list[Message] = answer
        return found

    agent = make(context=broken)
    result = agent.run("one")
    assert result.status is RunStatus.error
    assert isinstance(result.error, ContextError)
    assert words in str(result.error)
    assert len(asked(agent)) == 0
    agent.context = None
    assert agent.run("and now?").status is RunStatus.completed


@pytest.mark.parametrize("kind", [ValueError, asyncio.CancelledError, SystemExit])
def test_what_it_raises_fails_the_run(kind: type[BaseException]) -> None:
    def broken(messages: list[Message], window: ContextWindow) -> list[Message]:
        raise kind("no")

    agent = make(context=broken)
    result = agent.run("one")
    assert result.status is RunStatus.error
    agent.context = None
    assert agent.run("and now?").status is RunStatus.completed

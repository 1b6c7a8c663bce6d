# SPDX-License-Identifier: Apache-2.0
"""What a caller hands to tools, hooks and instructions: `deps` and `metadata`; and instructions that are a function."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from andon import (
    Agent,
    BeforeTool,
    CancelCause,
    ConfigurationError,
    HookEvent,
    InstructionsError,
    RunContext,
    RunStatus,
    Runtime,
    ToolContext,
    tool,
)
from andon.models.scripted import Call, Fail, ScriptedModel
from andon.store import open_store
from tests.support import Flag, all_with, cut, forever, paused, play, record_of


@dataclass
class Shop:
    name: str


@tool
async def describe(ctx: ToolContext[Shop]) -> str:
    return f"{ctx.deps.name} for {ctx.metadata['customer']}"


@tool(approval=True)
async def sell(ctx: ToolContext[Shop | None]) -> str:
    return f"sold by {ctx.deps and ctx.deps.name}"


class Watching:
    """A hook that keeps what it is told."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Any, dict[str, Any]]] = []

    def _note(self, event: HookEvent) -> None:
        self.seen.append((type(event).__name__, event.deps, event.metadata))

    before_model = after_model = before_tool = after_tool = message_added = run_ended = _note


def test_tools_hooks_and_instructions_are_handed_what_the_caller_gave() -> None:
    async def main() -> None:
        shop, hook = Shop("Lamps & Co"), Watching()

        def instructions(ctx: RunContext[Shop]) -> str:
            assert (ctx.agent_id, ctx.user_id, ctx.session_id) == ("clerk", "ann", "s1")
            return f"You serve {ctx.metadata['customer']} at {ctx.deps.name}."

        model = ScriptedModel(Call("describe"), then="Done.")
        agent = Agent("Clerk", model, tools=[describe], hooks=[hook], instructions=instructions)
        metadata = {"customer": "Ann"}
        result = await agent.invoke_async("go", deps=shop, metadata=metadata, user_id="ann", session_id="s1")
        assert result.messages[2].tool_results[0].content == "Lamps & Co for Ann"
        assert [request.instructions for request in model.requests] == ["You serve Ann at Lamps & Co."] * 2
        assert {name for name, _, _ in hook.seen} == {
            "BeforeModel",
            "AfterModel",
            "BeforeTool",
            "AfterTool",
            "MessageAdded",
            "RunEnded",
        }
        assert all(deps is shop and given == metadata for _, deps, given in hook.seen)
        assert result.metadata == metadata

    play(main)


def test_metadata_is_a_copy_as_json_that_does_not_change() -> None:
    async def main() -> None:
        def instructions(ctx: RunContext[Any]) -> str:
            ctx.metadata["written"] = True
            ctx.metadata["deep"]["list"].append(2)
            return "Be brief."

        given: dict[str, Any] = {"tags": {"a"}, "deep": {"list": [1]}, "thing": Shop("s"), "half": "\ud800"}
        before = copy.deepcopy(given)
        agent = Agent("Clerk", ScriptedModel("Done."), instructions=instructions)
        result = await agent.invoke_async("go", metadata=given)
        assert given == before
        assert result.metadata["tags"] == ["a"]
        assert result.metadata["deep"] == {"list": [1]}
        assert result.metadata["half"] == "?"
        assert "written" not in result.metadata
        assert json.loads(json.dumps(result.metadata)) == result.metadata == result.to_dict()["metadata"]
        assert (await record_of(agent, result.run_id)).metadata == result.metadata

    play(main)


def test_without_deps_there_are_the_agent_s_own_or_none() -> None:
    async def main() -> None:
        own, other = Shop("own"), Shop("other")
        script = Call("sell")
        agent = Agent("Clerk", ScriptedModel(script, "Done.", script, then="Done."), tools=[sell], deps=own)
        _, asked = await paused(agent)
        result = await agent.continue_run(asked.run_id, all_with(True, asked))
        assert result.messages[2].tool_results[0].content == "sold by own"
        _, asked = await paused(agent, session_id="s2", deps=other)
        result = await agent.continue_run(asked.run_id, all_with(True, asked))
        assert result.messages[2].tool_results[0].content == "sold by other"
        bare = Agent("Bare", ScriptedModel(script, then="Done."), tools=[sell])
        _, asked = await paused(bare)
        result = await bare.continue_run(asked.run_id, all_with(True, asked))
        assert result.messages[2].tool_results[0].content == "sold by None"

    play(main)


def test_a_paused_run_can_be_given_other_deps_when_it_goes_on() -> None:
    async def main() -> None:
        agent = Agent("Clerk", ScriptedModel(Call("sell"), then="Done."), tools=[sell])
        run, asked = await paused(agent, deps=Shop("old"))
        with pytest.raises(TypeError, match="a paused run keeps its options; timeout can't be given"):
            await agent.continue_run(run.run_id, all_with(True, asked), timeout=1, deps=Shop("new"))
        result = await agent.continue_run(run.run_id, all_with(True, asked), deps=Shop("new"))
        assert result.messages[2].tool_results[0].content == "sold by new"

    play(main)


def test_a_run_that_was_paused_in_another_process_gets_its_deps_with_the_answers(tmp_path: Path) -> None:
    async def main() -> None:
        url = f"sqlite:///{tmp_path}/andon.db"
        first, second = Runtime(open_store(url)), Runtime(open_store(url))
        model = ScriptedModel(Call("sell"), then="Done.")
        try:
            _, asked = await paused(Agent("Clerk", model, tools=[sell], runtime=first), deps=Shop("gone"))
            elsewhere = Agent("Clerk", model, tools=[sell], runtime=second, deps=Shop("own"))
            result = await elsewhere.continue_run(asked.run_id, all_with(True, asked), deps=Shop("brought"))
            assert result.messages[2].tool_results[0].content == "sold by brought"
        finally:
            await first.close()
            await second.close()

    play(main)


def test_a_sub_agent_is_handed_the_deps_of_the_run_that_calls_it() -> None:
    async def main() -> None:
        def parent(child: Agent) -> Agent:
            calls = ScriptedModel(Call("clerk", {"prompt": "go"}), then="Done.")
            return Agent("Parent", calls, tools=[child.as_tool()])

        for own, seller in ((None, "the caller's"), (Shop("its own"), "its own")):
            child = Agent("Clerk", ScriptedModel(Call("sell"), then="Done."), tools=[sell], deps=own)
            agent = parent(child)
            _, asked = await paused(agent, deps=Shop("the caller's"))
            await agent.continue_run(asked.run_id, all_with(True, asked))
            assert isinstance(child.model, ScriptedModel)
            (told,) = child.model.requests[-1].messages[-1].tool_results
            assert told.content == f"sold by {seller}"

    play(main)


# -- instructions -----------------------------------------------------------------------------------------------------


async def _async(ctx: RunContext) -> str:
    return f"run {ctx.run_id}"


class _Object:
    async def __call__(self, ctx: RunContext) -> str:
        return f"run {ctx.run_id}"


@pytest.mark.parametrize("function", [_async, lambda ctx: f"run {ctx.run_id}", lambda ctx: _async(ctx), _Object()])
def test_instructions_may_be_any_function_of_the_context(function: Callable[[RunContext], Any]) -> None:
    async def main() -> None:
        model = ScriptedModel(then="Done.")
        await Agent("Helper", model, instructions=function).invoke_async("go", run_id="r1")
        assert model.requests[0].instructions == "run r1"

    play(main)


def test_instructions_are_made_for_each_model_call() -> None:
    async def main() -> None:
        numbers = iter(["one", "two", None])
        model = ScriptedModel(Call("nothing"), Call("nothing"), then="Done.")
        agent = Agent("Helper", model, instructions=lambda ctx: next(numbers))
        assert (await agent.invoke_async("go")).status is RunStatus.completed
        assert [request.instructions for request in model.requests] == ["one", "two", None]

    play(main)


def test_a_cancel_cuts_instructions_that_are_being_made() -> None:
    async def main() -> None:
        model = ScriptedModel(then="Done.")
        for mode in ("now", "after_tools", "after_turn"):
            reached, cleaned = Flag(), Flag()

            async def instructions(ctx: RunContext, reached: Flag = reached, cleaned: Flag = cleaned) -> str:
                reached.set()
                try:
                    await forever()
                finally:
                    cleaned.set()
                return ""

            ended = await cut(Agent("Helper", model, instructions=instructions), reached, mode=mode)
            assert ended.result.status is RunStatus.cancelled
            assert ended.result.receipt is not None
            assert (ended.result.receipt.phase, ended.result.receipt.cause) == ("hook", CancelCause.user)
            assert ended.result.receipt.leftovers == []
            assert cleaned.is_set()
        assert not model.requests

    play(main)


def test_instructions_that_take_too_long_fail_the_run() -> None:
    async def main() -> None:
        async def slow(ctx: RunContext) -> str:
            await forever()
            return ""

        model = ScriptedModel(then="Done.")
        agent = Agent("Helper", model, instructions=slow, runtime=Runtime(hook_seconds=0.01))
        result = await agent.invoke_async("go")
        assert isinstance(result.error, InstructionsError)
        assert str(result.error) == "instructions slow took longer than 0.01 s"
        assert not model.requests

    play(main)


def test_instructions_that_fail_fail_the_run_and_the_next_prompt_works() -> None:
    async def main() -> None:
        tries = iter([ValueError("no clock"), 7, "Be kind."])

        async def instructions(ctx: RunContext) -> Any:
            if isinstance(given := next(tries), Exception):
                raise given
            return given

        model = ScriptedModel(then="Done.")
        agent = Agent("Helper", model, instructions=instructions)
        assert repr((await agent.invoke_async("go")).error) == "ValueError('no clock')"
        result = await agent.invoke_async("go")
        assert isinstance(result.error, InstructionsError)
        assert "returned int" in str(result.error)
        assert (await agent.invoke_async("go")).status is RunStatus.completed
        assert [request.instructions for request in model.requests] == ["Be kind."]

    play(main)


def test_a_second_try_of_a_model_call_has_the_same_instructions() -> None:
    async def main() -> None:
        from andon import ModelError, Retry

        made: list[int] = []

        def instructions(ctx: RunContext) -> str:
            made.append(1)
            return str(len(made))

        model = ScriptedModel(Fail(ModelError("busy", retryable=True)), then="Done.")
        agent = Agent("Helper", model, instructions=instructions, retry=Retry(attempts=2, base_seconds=0.0))
        assert (await agent.invoke_async("go")).status is RunStatus.completed
        assert [request.instructions for request in model.requests] == ["1", "1"]

    play(main)


@pytest.mark.parametrize("given", [7, ["Be kind."], RunContext])
def test_what_can_be_no_instructions_is_refused(given: Any) -> None:
    with pytest.raises(ConfigurationError, match="the instructions must be text, or a function of the context"):
        Agent("Helper", instructions=given)


def test_a_hook_can_refuse_a_call_by_what_the_caller_gave() -> None:
    async def main() -> None:
        class Guard:
            async def before_tool(self, event: BeforeTool) -> None:
                await asyncio.sleep(0)
                if event.deps is None:
                    event.cancel("nobody's shop")

        agent = Agent("Clerk", ScriptedModel(Call("describe"), then="Done."), tools=[describe], hooks=[Guard()])
        result = await agent.invoke_async("go")
        assert "nobody's shop" in result.messages[2].tool_results[0].content

    play(main)


def test_an_answer_gives_the_same_wherever_the_run_was_paused(tmp_path: Path) -> None:
    """A handler that answers does not know whether its process was restarted since."""

    async def main() -> None:
        url = f"sqlite:///{tmp_path}/andon.db"
        first, second = Runtime(open_store(url)), Runtime(open_store(url))
        try:
            for runtime in (first, second):
                model = ScriptedModel(Call("sell"), then="7")
                there = Agent("Clerk", model, tools=[sell], runtime=first)
                asked = await there.invoke_async("go", deps=Shop("gone"), output_type=int)
                here, answers = Agent("Clerk", model, tools=[sell], runtime=runtime), all_with(True, asked)
                with pytest.raises(TypeError, match="keeps its options; max_turns, timeout can't be given"):
                    await here.continue_run(asked.run_id, answers, timeout=1, max_turns=2)
                result = await here.continue_run(asked.run_id, answers, deps=Shop("brought"), output_type=int)
                assert (result.status, result.output) == (RunStatus.completed, 7)
                assert result.messages[-2].tool_results[0].content == "sold by brought"
        finally:
            await first.close()
            await second.close()

    play(main)

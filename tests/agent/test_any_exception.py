# SPDX-License-Identifier: Apache-2.0
"""Whatever is raised, wherever: the run has one end, it is told, and what was streamed is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, BeforeValidator

from andon import Agent, MemoryStore, Message, RunRecord, RunStatus, Runtime, tool
from andon.models.base import ModelRequest, Sink
from andon.models.scripted import Call, ScriptedModel
from andon.testing import probe
from tests.support import check_events, play

NOT_EXCEPTIONS = [GeneratorExit, SystemExit, asyncio.CancelledError, BaseException]
every_one = pytest.mark.parametrize("kind", NOT_EXCEPTIONS)


@every_one
def test_out_of_a_tool_it_is_an_error_result(kind: type[BaseException]) -> None:
    async def main() -> None:
        async def bad() -> str:
            raise kind

        result = await Agent("A", ScriptedModel(Call("bad"), then="OK."), tools=[bad]).invoke_async("go")
        assert result.status is RunStatus.completed
        [answer] = result.messages[2].tool_results
        assert answer.status == "error"
        assert kind.__name__ in answer.content

    play(main)


@every_one
@pytest.mark.parametrize("point", ["before_model", "after_model", "before_tool", "after_tool", "run_ended"])
@pytest.mark.parametrize("sync", [True, False])
def test_out_of_a_hook_it_is_a_warning(kind: type[BaseException], point: str, sync: bool) -> None:
    async def main() -> None:
        def bad(self: object, event: object) -> None:
            raise kind

        async def async_bad(self: object, event: object) -> None:
            raise kind

        async def fine() -> str:
            return "fine"

        hook = type("Hook", (), {point: bad if sync else async_bad})()
        agent = Agent("A", ScriptedModel(Call("fine"), then="OK."), tools=[fine], hooks=[hook])
        async with agent.start("go") as run:
            await probe(run).settled()
            await probe(run).ended()
            assert run.status is RunStatus.completed
            assert any(point in warning for warning in probe(run).warnings)
            check_events(probe(run).events)

    play(main)


@every_one
def test_out_of_a_model_it_fails_the_run_and_the_text_is_kept(kind: type[BaseException]) -> None:
    class Bad:
        id = "bad"

        async def stream(self, request: ModelRequest, sink: Sink) -> None:
            sink.text("All that was streamed.")
            raise kind

    async def main() -> None:
        result = await Agent("A", Bad()).invoke_async("go")
        assert result.status is RunStatus.error
        assert result.content == "All that was streamed."
        assert result.messages[1].text.startswith("All that was streamed.")
        assert kind.__name__ in str(result.error)

    play(main)


def raising(kind: type[BaseException]) -> Any:
    def check(value: object) -> object:
        raise kind

    return Annotated[str, BeforeValidator(check)]


@every_one
def test_out_of_a_validator_of_arguments_it_is_an_error_result(kind: type[BaseException]) -> None:
    async def main() -> None:
        async def picky(word: Any) -> str:
            return "never"

        picky.__annotations__["word"] = raising(kind)
        agent = Agent("A", ScriptedModel(Call("picky", {"word": "x"}), then="OK."), tools=[tool(picky)])
        result = await agent.invoke_async("go")
        assert result.status is RunStatus.completed
        assert result.messages[2].tool_results[0].status == "error"

    play(main)


@every_one
def test_out_of_a_validator_of_the_output_it_fails_the_run(kind: type[BaseException]) -> None:
    async def main() -> None:
        picky = type("Picky", (BaseModel,), {"__annotations__": {"word": raising(kind)}})
        agent = Agent("A", ScriptedModel(then='{"word": "x"}'))
        result = await agent.invoke_async("go", output_type=picky)
        assert result.status is RunStatus.error
        assert result.content == '{"word": "x"}'
        assert (await agent.invoke_async("and now?")).status is RunStatus.completed

    play(main)


@pytest.mark.parametrize("kind", [*NOT_EXCEPTIONS, OSError])
@pytest.mark.parametrize("sync", [True, False])
def test_a_store_that_always_raises_costs_a_warning_and_the_session_is_free(
    kind: type[BaseException], sync: bool
) -> None:
    class Store(MemoryStore):
        def save(self, record: RunRecord, messages: Sequence[Message]) -> Awaitable[None]:
            if sync:
                raise kind
            return self._fail()

        async def _fail(self) -> None:
            raise kind

    async def main() -> None:
        agent = Agent("A", ScriptedModel(then="OK."), runtime=Runtime(Store()))
        for _ in range(2):
            result = await agent.invoke_async("go")
            assert result.status is RunStatus.completed
            assert result.content == "OK."
            assert any("the store" in warning for warning in result.warnings)

    play(main)


def test_a_ctrl_c_in_the_store_each_time_still_leaves_an_end() -> None:
    """It goes its way through the loop, as any Ctrl-C does; the portal then ends the run, and finds the same store."""

    class Store(MemoryStore):
        def save(self, record: RunRecord, messages: Sequence[Message]) -> Awaitable[None]:
            raise KeyboardInterrupt

    agent = Agent("A", ScriptedModel(then="OK."), runtime=Runtime(Store()))
    result = agent.run("go")
    assert result.status.final
    assert agent.runtime.live == 0

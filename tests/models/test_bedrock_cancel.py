# SPDX-License-Identifier: Apache-2.0
"""A cancel, wherever a request to Bedrock is: the service sees the client leave, and the next prompt is accepted."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from andon import Agent, RunEvent, RunResult, RunStatus, tool
from andon.core.states import Phase
from andon.messages import Reasoning, Text, ToolCall
from andon.models.bedrock.clients import clients
from andon.testing import probe
from andon.testing.providers import FakeBedrock, call, connect_never, fail, reasoning, silence, stall, text
from andon.testing.providers import raw as as_is
from andon.testing.providers.bedrock import frames
from tests.support import Flag, forever, play, until
from tests.support.bedrock import BINDING, CLAUDE, model_of

pytestmark = pytest.mark.no_cover  # others cover what it reaches, and half of its time would be the tracer's

IDS = [CLAUDE, BINDING]


@tool
async def search(query: str = "") -> str:
    """Look something up."""
    return f"found {query}"


def delta(value: dict[str, Any]) -> Any:
    return as_is(frames.event("contentBlockDelta", frames.as_payload({"delta": value, "contentBlockIndex": 0})))


SIGNED = delta({"reasoningContent": {"signature": "half of it"}})
LONG = {"query": "a long way down the river"}
MARKER = Text("Cancelled by user")

MOMENTS: dict[str, tuple[list[Any], str, list[type]]] = {
    "silent": ([silence()], "silent", [Text]),
    "headers": ([stall()], "stalled", [Text]),
    "text": ([text("Half an "), stall()], "stalled", [Text, Text]),
    "thinking": ([reasoning("Hm. "), stall()], "stalled", [Text]),
    "in a signature": ([reasoning("Hm. "), SIGNED, stall()], "stalled", [Text]),
    "after thinking": ([reasoning("Hm."), text("So "), stall()], "stalled", [Reasoning, Text, Text]),
    "redacted": ([reasoning(redacted="x"), stall()], "stalled", [Reasoning, Text]),
    "arguments": ([text("I look. "), call("search", LONG, pieces=4, send=2), stall()], "stalled", [Text, Text]),
    "a call's name": ([text("I look. "), call("search", LONG, send=0), stall()], "stalled", [Text, Text]),
    "between calls": ([call("search", LONG), call("search", LONG, pieces=4, send=1), stall()], "stalled", [Text]),
}


@pytest.mark.parametrize("id", IDS)
@pytest.mark.parametrize("moment", MOMENTS)
def test_each_moment(moment: str, id: str) -> None:
    words, state, left = MOMENTS[moment]

    async def main() -> None:
        with FakeBedrock([words, [text("Fine.")]], split=50) as fake:
            agent = Agent("Tester", model_of(fake, id), tools=[search])
            async with agent.start("go") as run:
                await fake.wait_for_async(0, at=state)
                await until(lambda: arrived(run, words))
                run.cancel()
                result = await run.result()
            served = await fake.wait_for_async(0, at="left")
            assert served.sent_after_left == 0
            check_left(result, left)
            after = await agent.invoke_async("and now?")
            assert (after.status, after.content) == (RunStatus.completed, "Fine."), after.error
            assert [each.error for each in fake.served] == [None, None]
            await fake.wait_until_async(lambda: fake.open_connections <= 1)

    play(main)


def arrived(run: Any, words: list[Any]) -> bool:
    """Whether what is shown before the stall was read: a cut call or a signature shows nothing.

    Redacted reasoning has no event, but from then on the run is streaming.
    """
    kinds = {event.event for event in probe(run).events}
    if any("redacted='" in repr(word) for word in words) and probe(run).phase is not Phase.streaming:
        return False
    wants_text = any("Text(" in repr(word)[:5] for word in words)
    wants_thought = any("Reasoning(pieces=('" in repr(word) for word in words)
    return (not wants_text or RunEvent.run_content in kinds) and (not wants_thought or RunEvent.reasoning in kinds)


def check_left(result: RunResult, left: list[type]) -> None:
    assert result.status is RunStatus.cancelled
    assert result.message.content[-1] == MARKER
    assert result.usage.estimated
    assert (result.usage.input_tokens or 0) > 0, "without `metadata` nothing is known, so all of it is estimated"
    calls = [block for message in result.messages for block in message.content if isinstance(block, ToolCall)]
    if not calls:  # a call may have been complete when the cancel came, or not
        assert [type(block) for block in result.message.content] == left
    for message in result.messages:
        for block in message.content:
            assert not isinstance(block, Reasoning) or block.signature


def test_in_a_tool_after_thinking_that_is_bound() -> None:
    async def main() -> None:
        reached = Flag()

        @tool
        async def stuck() -> str:
            reached.set()
            await forever()
            return "never"

        words: list[Any] = [reasoning("Hm."), text("I look."), call("search", {"query": "a"}), call("stuck")]
        with FakeBedrock([words, [reasoning("So."), text("Fine.")]]) as fake:
            agent = Agent("Tester", model_of(fake, BINDING), tools=[search, stuck])
            async with agent.start("go") as run:
                await reached.arrived()
                run.cancel()
                await run.result()
            for _ in range(2):
                assert (await agent.invoke_async("and now?")).status is RunStatus.completed
            assert [each.error for each in fake.served if each.error] == []

    play(main)


def open_sockets() -> int:
    files = Path("/proc/self/fd").iterdir()
    return sum("/socket:" in os.path.realpath(file) for file in files)


def test_connecting() -> None:
    """Nobody sees such a client leave; what can be seen is that its socket is closed."""

    async def main() -> None:
        with connect_never() as nowhere, FakeBedrock() as fake:
            model = model_of(nowhere)
            await clients.get(model._endpoint._settings.resolved(), model._endpoint)
            before = open_sockets()
            agent = Agent("Tester", model)
            async with agent.start("go") as run:
                await until(lambda: open_sockets() > before)
                run.cancel()
                assert (await run.result()).status is RunStatus.cancelled
            await until(lambda: open_sockets() == before)
            agent.model = model_of(fake)
            assert (await agent.invoke_async("and now?")).status is RunStatus.completed

    play(main)


def test_the_tls_handshake() -> None:
    async def main() -> None:
        with connect_never(tls=True) as nowhere, FakeBedrock() as fake:
            agent = Agent("Tester", model_of(nowhere))
            async with agent.start("go") as run:
                await nowhere.wait_connected_async()
                run.cancel()
                assert (await run.result()).status is RunStatus.cancelled
            await nowhere.wait_left_async()
            agent.model = model_of(fake)
            assert (await agent.invoke_async("and now?")).status is RunStatus.completed

    play(main)


def test_waiting_to_try_again() -> None:
    async def main() -> None:
        busy = fail(503, "Busy.", headers={"x-amz-retry-after": "30000"})
        with FakeBedrock([[busy], [text("Fine.")]]) as fake:
            agent = Agent("Tester", model_of(fake))
            async with agent.start("go") as run:
                await until(lambda: any(event.event is RunEvent.model_retry for event in probe(run).events))
                run.cancel()
                assert (await run.result()).status is RunStatus.cancelled
            assert (await agent.invoke_async("and now?")).content == "Fine."
            assert len(fake.served) == 2

    play(main)

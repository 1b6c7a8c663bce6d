# SPDX-License-Identifier: Apache-2.0
"""A notebook's cells on a loop that nest_asyncio has patched: `asyncio.run` inside a running loop."""

import asyncio
import threading

import nest_asyncio  # type: ignore[import-untyped]
import pytest

from andon import Agent, RunResult, tool
from andon.errors import InsideEventLoopError
from andon.messages import Text
from andon.models.scripted import Call, ScriptedModel, Stall

nest_asyncio.apply()
helper = Agent("Helper", ScriptedModel(then="Found."))


def stalled() -> Agent:
    return Agent("Stalled", ScriptedModel(["Once ", Stall()], then="OK."))


@tool
async def look() -> str:
    """Ask another agent, by a nested loop."""
    return asyncio.get_running_loop().run_until_complete(helper.invoke_async("look")).content


async def cut(agent: Agent) -> RunResult:
    async with agent.start("go") as run:
        async for event in run:
            if event.content:
                run.cancel()
        return await run.result()


async def cells() -> None:
    # Async, directly and nested.
    assert (await helper.invoke_async("go")).content == "Found."
    assert asyncio.run(helper.invoke_async("go")).content == "Found."
    # Blocking calls are refused where a loop runs, patched or not; a thread may make them.
    with pytest.raises(InsideEventLoopError, match=r"await agent\.invoke_async"):
        helper.run("go")
    assert (await asyncio.to_thread(helper.run, "go")).content == "Found."
    # A cancel, inside a nested loop and from another thread.
    agent = stalled()
    result = asyncio.run(cut(agent))
    assert (result.status.name, result.content) == ("cancelled", "Once ")
    assert asyncio.run(agent.invoke_async("go on")).content == "OK."
    agent = stalled()
    async with agent.start("go") as run:
        canceller = threading.Thread(target=agent.cancel)
        canceller.start()
        assert asyncio.run(run.result()).status.name == "cancelled"
        canceller.join()
    # The host's own cancellation.
    agent = stalled()
    host = asyncio.create_task(agent.invoke_async("go"))
    await asyncio.sleep(0)
    host.cancel()
    with pytest.raises(asyncio.CancelledError):
        asyncio.get_running_loop().run_until_complete(host)
    assert agent.messages[-1].content[-1] == Text("Cancelled by the caller")
    # A tool that nests a run.
    parent = Agent("Parent", ScriptedModel(Call("look"), then="Done."), tools=[look])
    assert (await parent.invoke_async("go")).content == "Done."
    assert parent.messages[2].tool_results[0].content == "Found."
    assert asyncio.all_tasks() == {asyncio.current_task()}


asyncio.run(cells())
print("fine")

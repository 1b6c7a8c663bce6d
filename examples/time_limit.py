"""Two time limits: the run's own, which returns a result, and asyncio's, which raises TimeoutError."""

import asyncio

from andon import Agent
from andon.models.scripted import ScriptedModel


async def main() -> None:
    # The run's own: it ends as cancelled, with the cause `deadline`, and returns the result so far.
    agent = Agent(name="Storyteller", model=ScriptedModel.story())
    result = await agent.invoke_async("Tell me about the sea.", timeout=0.5)
    assert result.receipt is not None
    print(f"timeout=0.5: {result.status}, cause {result.receipt.cause}, {len(result.content)} characters kept")
    print(f"the conversation ends with: {result.message.content[-1]}")

    # asyncio's: the run ends in the same way, with the cause `caller`, and then TimeoutError is raised.
    other = Agent(name="Storyteller", model=ScriptedModel.story())
    try:
        async with asyncio.timeout(0.5):
            await other.invoke_async("Tell me about the sea.")
    except TimeoutError:
        print("asyncio.timeout(0.5): TimeoutError")
    print(f"the conversation ends with: {other.messages[-1].content[-1]}")

    for each in (agent, other):
        print("goes on:", (await each.invoke_async("Are you there?")).content)


if __name__ == "__main__":
    asyncio.run(main())

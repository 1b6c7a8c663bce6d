"""A session has one active run at a time. `on_busy` says what the next prompt does in the meantime."""

import asyncio

from andon import Agent, Run, RunEvent
from andon.errors import SessionBusyError
from andon.models.scripted import Say, ScriptedModel


async def until_it_talks(run: Run) -> None:
    async for event in run:
        if event.event is RunEvent.run_content:
            return


async def main() -> None:
    model = ScriptedModel(Say("One, two, three, four.", pace=0.1), then="The answer to the latest prompt.")
    agent = Agent(name="Counter", model=model)
    async with agent.start("Count.") as first:
        await until_it_talks(first)
        try:
            await agent.invoke_async("And?")
        except SessionBusyError as error:
            print("reject:", error.run_id == first.run_id)
        second = await agent.invoke_async("And then?", on_busy="queue")
        print(f"queue: the first is {first.status}, the second {second.status}, {len(second.messages)} messages")

    agent = Agent(name="Storyteller", model=ScriptedModel.story())
    async with agent.start("Tell me about the sea.") as first:
        await until_it_talks(first)
        second = await agent.invoke_async("No, wait.", on_busy="cancel")
        receipt = (await first.result()).receipt
        assert receipt is not None
        print(f"cancel: the first is {first.status} ({receipt.cause}), the second {second.status}")


if __name__ == "__main__":
    asyncio.run(main())

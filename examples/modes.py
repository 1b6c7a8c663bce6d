"""How much may still finish: the modes of a cancel, and the grace after which it becomes `now`."""

import asyncio

from andon import Agent, RunEvent, tool
from andon.models.scripted import Call, Say, ScriptedModel


@tool
async def save(page: int) -> str:
    """Save a page."""
    await asyncio.sleep(0.3)
    return f"page {page} saved"


@tool
async def print_book() -> str:
    """Print the book, which takes some time."""
    await asyncio.sleep(60)
    return "printed"


async def cancel_at(moment: RunEvent, model: ScriptedModel, mode: str, grace: float | None = None) -> None:
    """Start a run, cancel it at this event, and print its result."""
    agent = Agent(name="Writer", model=model, tools=[save, print_book])
    async with agent.start("Write.") as run:
        async for event in run:
            if event.event is moment:
                run.cancel(mode=mode, grace=grace)
                break  # leaving the loop doesn't cancel; result() waits
        result = await run.result()
    assert result.receipt is not None
    tools = ", ".join(f"{each.name} {each.outcome}" for each in result.receipt.tools) or "no tools"
    print(f"{mode}{'' if grace is None else f', grace {grace}'}: {result.content.strip()!r}; {tools}")


def writer() -> ScriptedModel:
    first = [Say("Page one is done.", pace=0.05), Call("save", {"page": 1})]
    return ScriptedModel(first, then="Page two is done.")


async def main() -> None:
    # While the model streams. `now` and `after_tools` cut it; `after_turn` lets the answer and its tools finish.
    await cancel_at(RunEvent.run_content, writer(), "now")
    await cancel_at(RunEvent.run_content, writer(), "after_tools")
    await cancel_at(RunEvent.run_content, writer(), "after_turn")

    # While a tool runs. `now` cuts it; both others let it finish. The model is not called again.
    await cancel_at(RunEvent.tool_call_started, writer(), "now")
    await cancel_at(RunEvent.tool_call_started, writer(), "after_tools")

    # With a grace: after half a second the mode becomes `now`.
    await cancel_at(RunEvent.tool_call_started, ScriptedModel(Call("print_book")), "after_tools", grace=0.5)


if __name__ == "__main__":
    asyncio.run(main())

"""A conversation that is too long for its model: trimmed, summarised, and shortened by your own function."""

import asyncio

from andon import Agent, ContextPolicy, ContextWindow, Message, RunEvent, Summarise, Trim
from andon.agent.context import leave_out, places
from andon.models.scripted import ScriptedModel, Stall

QUESTION = "Why is the sea salt, and who has put it there? " * 5


async def talk(name: str, context: ContextPolicy) -> None:
    """Ask until the conversation is too long, and print what the model gets in the end."""
    model = ScriptedModel(then="Because of the rivers.")
    agent = Agent(name="Oceanographer", model=model, context=context)
    told = 0
    for number in range(12):
        async for event in agent.stream_async(f"{number}. {QUESTION}"):
            told += event.event is RunEvent.context_reduced
    sent, kept = model.requests[-1].messages, len(agent.messages) - 1
    print(f"{name}: {len(sent)} of {kept} messages, told {told} times; it begins: {sent[0].text[:40]!r}")


def last_three(messages: list[Message], window: ContextWindow) -> list[Message]:
    """The last three messages, or a few more, so that no call is separated from its result."""
    return leave_out(messages, max((place for place in places(messages) if place <= len(messages) - 3), default=0))


async def main() -> None:
    await talk("trimmed", Trim(tokens=400))
    writer = ScriptedModel(then="They wonder about salt.")
    await talk("summarised", Summarise(tokens=400, model=writer))
    print(f"{len(writer.requests)} summaries were written")
    await talk("by a function", last_three)

    # A summary is a step of the run: a cancel, here by a time limit, ends it like any other step.
    slow = Summarise(tokens=100, model=ScriptedModel(then=["They won", Stall()]))
    agent = Agent(name="Oceanographer", model=ScriptedModel(then="Rivers."), context=slow)
    await agent.invoke_async(QUESTION)
    result = await agent.invoke_async(QUESTION, timeout=0.2)
    print(f"cancelled in the middle of a summary: {result.status}, {result.usage.output_tokens} tokens were spent")


if __name__ == "__main__":
    asyncio.run(main())

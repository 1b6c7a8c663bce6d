"""Cancel your own agent at each of its steps, and check the result.

The explorer runs a scenario in virtual time: first to count its steps, then again for every step and every way to
inject a cancel. One of the two tools below leaves a connection open, but only if a cancel comes during its search.
"""

import asyncio
from collections.abc import Sequence

from andon import Agent, Run, tool
from andon.models.scripted import Call, ScriptedModel
from andon.testing import Report, explore, reading

connections: set[object] = set()


@tool
async def careless(query: str) -> str:
    """Search, and close the connection afterwards."""
    connection = object()
    connections.add(connection)
    await asyncio.sleep(1)  # virtual time: this costs nothing
    connections.discard(connection)  # never reached if the search is cut
    return f"nothing about {query}"


@tool
async def careful(query: str) -> str:
    """Search, and close the connection in every case."""
    connection = object()
    connections.add(connection)
    try:
        await asyncio.sleep(1)
        return f"nothing about {query}"
    finally:
        connections.discard(connection)


def try_with(search: str) -> Report:
    async def scenario() -> None:
        connections.clear()
        model = ScriptedModel(Call(search, {"query": "tea"}), then="I found nothing.")
        agent = Agent(name="Librarian", model=model, tools=[careless, careful])
        async for _ in reading(agent.stream_async("Find something about tea.")):
            pass

    def all_closed(runs: Sequence[Run]) -> None:
        if connections:
            raise AssertionError("a connection is still open")

    return explore(scenario, check=all_closed, name=search, max_problems=1)


if __name__ == "__main__":
    for tool_name in ("careless", "careful"):
        print(try_with(tool_name))

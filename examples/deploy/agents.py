"""The agents of this deployment: servers and workers import the same ones. They need no key and no network.

Their answers depend on the conversation alone, because another process may go on with a run.
"""

from andon import Agent, tool
from andon.models.base import ModelRequest
from andon.models.scripted import Call, Pause, ScriptedModel, Turn


@tool(approval=True)
async def delete(name: str) -> str:
    """Delete it, if a person agrees."""
    return f"deleted {name}"


def tidy(request: ModelRequest) -> Turn:
    return "Done." if request.messages[-1].tool_results else Call("delete", {"name": "all"})


story = ScriptedModel(then=["Once upon a time ", Pause(0.5), "there was a worker."])
storyteller = Agent("Storyteller", story, queue="slow")
janitor = Agent("Janitor", ScriptedModel(then=tidy), tools=[delete], queue="fast")
agents = [storyteller, janitor]

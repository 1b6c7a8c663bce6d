# SPDX-License-Identifier: Apache-2.0
"""The portal's loop is made by uvloop: blocking calls, one of them cancelled from another thread."""

import asyncio
import sys
import threading
import warnings

import uvloop

from andon import Agent, tool
from andon.models.scripted import Call, ScriptedModel, Stall

if sys.version_info >= (3, 14):  # where policies are deprecated
    warnings.simplefilter("ignore", DeprecationWarning)
asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())

loops = set[str]()


@tool
async def look() -> str:
    """Tell on which loop the run lives."""
    loops.add(f"{type(asyncio.get_running_loop()).__module__}.{type(asyncio.get_running_loop()).__name__}")
    return "seen"


agent = Agent("Blocking", ScriptedModel(Call("look"), "Seen.", ["Once ", Stall()], then="OK."), tools=[look])
first = agent.run("go")
for event in agent.run("go", stream=True):
    if event.content == "Once ":
        canceller = threading.Thread(target=agent.cancel_run, args=(event.run_id,))
        canceller.start()
        canceller.join()
print(first.status.name, event.status and event.status.name, agent.run("go").status.name, *loops)

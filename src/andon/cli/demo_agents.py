# SPDX-License-Identifier: Apache-2.0
"""Agents that need no key and no network, for `andon serve --demo`. They answer any number of prompts, at the speed of
a real model, and each shows another side of a cancel.

Their answers depend on the conversation only, so any number of sessions can share them.
"""

from __future__ import annotations

import asyncio
import threading

from andon.agent.agent import Agent
from andon.messages import Message, Usage, estimate_tokens
from andon.models.base import ModelRequest
from andon.models.scripted import Call, Say, ScriptedModel, Spend, Think, Turn
from andon.tools.base import ToolContext
from andon.tools.function import tool

PACE = 0.05
SEARCH_SECONDS = 3.0
ARCHIVE_SECONDS = 6.0


def _since_prompt(request: ModelRequest) -> tuple[str, list[Message]]:
    """The last prompt, and the messages after it."""
    messages = list(request.messages)
    last = max(number for number, message in enumerate(messages) if message.role == "user")
    return messages[last].text, messages[last + 1 :]


def _topic(prompt: str) -> str:
    words = " ".join(prompt.split())
    return words if len(words) <= 60 else f"{words[:59]}…"


def _answer(request: ModelRequest, *items: Say | Think | Call) -> Turn:
    """A turn with its token usage."""
    asked = estimate_tokens(message.text for message in request.messages)
    said = estimate_tokens(item.text for item in items if not isinstance(item, Call))
    return [*items, Spend(Usage(asked, said))]


# -- a story that goes on and on --------------------------------------------------------------------------------------

storyteller = Agent(
    name="Storyteller",
    model=ScriptedModel.story(PACE),
    description="Tells a story that has no end: cancel it.",
)

# -- slow tools, and an agent that is asked by another one ------------------------------------------------------------


@tool
async def search(query: str) -> str:
    """Search the web."""
    await asyncio.sleep(SEARCH_SECONDS)
    return f"Twelve pages about {query!r}; the newest two contradict each other."


@tool
def read_archive(shelf: int, ctx: ToolContext) -> str:
    """Read a shelf of the archive, in a thread."""
    told = threading.Event()
    ctx.on_cancel(told.set)
    if told.wait(ARCHIVE_SECONDS):
        ctx.check_cancelled()
    return f"Shelf {shelf}: a ledger, a map, and a letter that was never sent."


def _check(request: ModelRequest) -> Turn:
    text = (
        "I compared the dates and the handwriting. The letter is genuine, the map is a later copy, and the two pages "
    )
    return _answer(request, Say(f"{text}disagree because one of them counts from the wrong year."))


fact_checker = Agent(
    name="Fact checker", model=ScriptedModel(then=_check, pace=PACE), description="Checks what sources claim."
)


def _research(request: ModelRequest) -> Turn:
    prompt, since = _since_prompt(request)
    topic = _topic(prompt)
    asked = [call.name for message in since for call in message.tool_calls]
    if "search" not in asked:
        return _answer(
            request,
            Think(f"The question is about {topic!r}. I need sources."),
            Say("I'll look that up, and ask the archive. "),
            Call("search", {"query": topic}),
            Call("read_archive", {"shelf": 7}),
        )
    if fact_checker.id not in asked:
        return _answer(
            request,
            Say("The sources disagree; I'll have them checked. "),
            Call("fact-checker", {"prompt": f"Which of these sources about {topic!r} can be trusted?"}),
        )
    return _answer(
        request,
        Say(
            f"Here is what I found about {topic!r}. The archive's letter is genuine, the newer of the two pages is "
            "right, and the map should not be trusted. Ask me more, and I'll look again."
        ),
    )


researcher = Agent(
    name="Researcher",
    model=ScriptedModel(then=_research, pace=PACE),
    description="Uses slow tools, one of them in a thread, and asks a sub-agent.",
    tools=[search, read_archive, fact_checker.as_tool(events=True)],
)

# -- one that asks first ----------------------------------------------------------------------------------------------


@tool(approval=True)
async def delete_files(paths: list[str]) -> str:
    """Delete files. (This one only says that it does.)"""
    return f"deleted {len(paths)} files"


def _tidy(request: ModelRequest) -> Turn:
    _, since = _since_prompt(request)
    results = [result for message in since for result in message.tool_results]
    if not results:
        paths = ["notes-old.txt", "notes-older.txt", "draft-3.txt"]
        return _answer(
            request,
            Say("I found three files that nobody has opened for a year. "),
            Call("delete_files", {"paths": paths}),
        )
    if results[-1].status == "ok":
        return _answer(request, Say("Done: the three files are gone, and everything else is as it was."))
    return _answer(request, Say("All right, I have left the files where they are."))


janitor = Agent(
    name="Janitor",
    model=ScriptedModel(then=_tidy, pace=PACE),
    description="Tidies up, and asks for approval first.",
    tools=[delete_files],
)

agents = [storyteller, researcher, janitor]

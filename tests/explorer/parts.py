# SPDX-License-Identifier: Apache-2.0
"""What the scenarios are made of: models, tools, hooks and a store, as pleasant and unpleasant as they come."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from andon import Message, Run, ToolContext, tool
from andon.agent.hooks import AfterTool, BeforeModel, BeforeTool, MessageAdded, RunEnded
from andon.core.records import RunRecord, SessionKey
from andon.models.base import ModelRequest
from andon.models.scripted import Call, Item, ScriptedModel, Spend, Turn
from andon.store.memory import MemoryStore
from andon.testing import Cancel

NEXT = "And now?"

MODES = (
    "now",
    "after_tools",
    "after_turn",
    Cancel("after_tools", grace=0.5),
    Cancel("after_turn", grace=0.5),
    Cancel("after_turn", grace=0),
)
TWICE = (
    Cancel("now", again="now"),
    Cancel("now", again="after_turn", later=1),
    Cancel("after_turn", again="now"),
    Cancel("after_turn", again="after_tools", later=1),
    Cancel("after_turn", again="now", later=2),
    Cancel("after_tools", again="now", later=3),
    Cancel("after_tools", grace=0.5, again="now", later=5),
)


def script(*turns: Turn) -> ScriptedModel:
    """The turns of one run, whichever run it is; the prompt that comes after a cancel gets a short answer."""

    def answer(request: ModelRequest) -> Turn:
        prompt = max(n for n, message in enumerate(request.messages) if message.role == "user")
        said = len(request.messages) - prompt - 1
        asked_again = request.messages[prompt].text == NEXT
        return "Fine." if asked_again or said // 2 >= len(turns) else turns[said // 2]

    return ScriptedModel(then=answer)


# -- tools ------------------------------------------------------------------------------------------------------------


@tool
async def look_up(word: str) -> str:
    await asyncio.sleep(len(word))
    return f"about {word}"


@tool
async def at_once(word: str) -> str:
    return word.upper()


@tool
async def break_down() -> str:
    await asyncio.sleep(0.5)
    raise ValueError("it broke")


@tool
async def roll_back() -> str:
    """Awaits in its `except` and in its `finally`, and both must get through."""
    steps: list[str] = []
    rolled_back.append(steps)
    try:
        await asyncio.sleep(2)
        steps.append("finished")
    except asyncio.CancelledError:
        await asyncio.sleep(0.25)
        steps.append("rolled back")
        raise
    finally:
        await asyncio.sleep(0.25)
        steps.append("closed")
    return "done"


rolled_back: list[list[str]] = []


def rolled_back_in_full(runs: Sequence[Run]) -> None:
    """It sees one cancellation: in its sleep, and then all its cleaning up is done, or in its `finally`."""
    assert rolled_back in ([], [["finished", "closed"]], [["finished"]], [["rolled back", "closed"]]), rolled_back


@tool
async def stubborn() -> str:
    """Swallows every cancellation, and goes on for longer than anyone waits for it."""
    for _ in range(10):
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(1)
    return "still here"


@tool
async def gather_all() -> str:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(asyncio.sleep(n, str(n))) for n in range(1, 4)]
    return " ".join(task.result() for task in tasks)


@tool
def in_a_thread(word: str, ctx: ToolContext) -> str:
    ctx.check_cancelled()
    return word[::-1]


@tool(approval=True)
async def sign(word: str) -> str:
    await asyncio.sleep(0.5)
    return f"signed {word}"


@tool
async def ask(ctx: ToolContext, word: str) -> str:
    """Works, asks, and works on."""
    await asyncio.sleep(0.5)
    answer = ctx.interrupt("well?", word)
    await asyncio.sleep(0.5)
    return f"{word}: {answer}"


THREE: list[str | Item] = [
    "Let me look. ",
    Call("look_up", {"word": "a"}),
    Call("look_up", {"word": "bb"}),
    Call("at_once", {"word": "c"}),
    Spend(input_tokens=10, output_tokens=5),
]


# -- hooks and stores -------------------------------------------------------------------------------------------------


class SyncHooks:
    def before_model(self, event: BeforeModel) -> None: ...
    def after_model(self, event: object) -> None: ...
    def before_tool(self, event: BeforeTool) -> None: ...
    def after_tool(self, event: AfterTool) -> None: ...
    def message_added(self, event: MessageAdded) -> None: ...
    def run_ended(self, event: RunEnded) -> None: ...


class AsyncHooks:
    async def before_model(self, event: BeforeModel) -> None:
        await asyncio.sleep(0.1)

    async def after_model(self, event: object) -> None:
        await asyncio.sleep(0.1)

    async def before_tool(self, event: BeforeTool) -> None:
        await asyncio.sleep(0.1)
        if event.call.arguments.get("word") == "bb":
            event.cancel("not this one")

    async def after_tool(self, event: AfterTool) -> None:
        await asyncio.sleep(0.1)

    async def message_added(self, event: MessageAdded) -> None:
        await asyncio.sleep(0.1)

    async def run_ended(self, event: RunEnded) -> None:
        await asyncio.sleep(0.1)


class BrokenHooks:
    def before_model(self, event: BeforeModel) -> None:
        raise ValueError("broken")

    async def after_tool(self, event: AfterTool) -> None:
        raise ValueError("broken")

    async def after_model(self, event: object) -> None:
        await asyncio.sleep(100)  # it is cut after 5 s

    async def run_ended(self, event: RunEnded) -> None:
        raise asyncio.CancelledError


class SlowStore(MemoryStore):
    """Takes its time, before it does its work and after."""

    async def load(self, session: SessionKey) -> list[Message]:
        await asyncio.sleep(0.1)
        messages = await super().load(session)
        await asyncio.sleep(0.1)
        return messages

    async def save(self, record: RunRecord, messages: Sequence[Message]) -> None:
        await asyncio.sleep(0.1)
        await super().save(record, messages)
        await asyncio.sleep(0.1)

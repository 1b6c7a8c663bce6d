"""Tools that clean up after themselves when their run is cancelled."""

import asyncio
import threading

from andon import Agent, RunEvent, ToolContext, tool
from andon.models.scripted import Call, ScriptedModel


@tool
async def transfer(ctx: ToolContext) -> str:
    """Async: a cancel is one CancelledError; `except` and `finally` may await, as in any asyncio code."""
    try:
        await asyncio.sleep(60)
        return "sent"
    finally:
        await asyncio.sleep(0.05)  # a rollback, an aclose()
        print(f"  transfer: rolled back {ctx.call_id}")


@tool
def count(ctx: ToolContext) -> int:
    """Sync, in a thread: it must check. `check_cancelled` raises an error that no `except Exception` catches."""
    n = 0
    try:
        while True:
            ctx.check_cancelled()
            n += 1
    finally:
        print("  count: stopped counting")


@tool
def listen(ctx: ToolContext) -> str:
    """Sync, in a blocking call: the `on_cancel` callback ends the call."""
    bell = threading.Event()
    ctx.on_cancel(bell.set)  # a driver's connection.cancel, a socket's shutdown
    rang = bell.wait(60)
    print(f"  listen: woken {'by the cancel' if ctx.cancelled and rang else 'otherwise'}")
    return "nothing heard"


async def main() -> None:
    for each in (transfer, count, listen):
        agent = Agent(name="Worker", model=ScriptedModel(Call(each.name)), tools=[each])
        async with agent.start("Go.") as run:
            async for event in run:
                if event.event is RunEvent.tool_call_started:
                    break
            await asyncio.sleep(0.1)
            print(f"cancelling {each.name}")
            receipt = await run.cancel_and_wait()
        assert receipt is not None
        # A run does not wait for a thread, so a sync tool that needs more than 50 ms to stop is called abandoned. The
        # leftovers show whether it has ended now: cancel_and_wait has waited for the thread too.
        print(f"  outcome: {receipt.tools[0].outcome}; left: {receipt.leftovers or 'nothing'}")


if __name__ == "__main__":
    asyncio.run(main())

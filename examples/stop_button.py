"""A Stop button: the handlers of a web application, without the web server.

Each of the first three coroutines is the code of one route. The run belongs to no request: it continues when its
reader disconnects, and it is cancelled by its id.
"""

import asyncio
import json
from collections.abc import AsyncIterator

from andon import Agent, CancelOutcome, Run, RunEvent
from andon.models.scripted import ScriptedModel

agent = Agent(name="Storyteller", model=ScriptedModel.story())
runs: dict[str, Run] = {}  # delete them when they are no longer needed


async def start(prompt: str, session_id: str) -> str:
    """POST /runs: answers at once. Raises SessionBusyError (a 409) while the session has another run."""
    run = agent.start(prompt, session_id=session_id)
    await run.begin()
    runs[run.run_id] = run
    return run.run_id


async def text(run_id: str) -> AsyncIterator[str]:
    """GET /runs/{run_id}: streams the text. A disconnect doesn't cancel, and a reloaded page reads it again."""
    async for event in runs[run_id]:
        if event.event is RunEvent.run_content:
            yield event.content


async def stop(run_id: str, user: str) -> dict[str, str]:
    """POST /runs/{run_id}/stop: answers when the whole run has ended, or after two seconds with the leftovers."""
    run = runs.get(run_id)
    outcome = CancelOutcome.unknown if run is None else run.cancel(reason="the Stop button", by=user)
    if run is None or not outcome:
        return {"outcome": outcome}  # answer 404 if it is unknown, 409 if it is already finished
    receipt = await run.cancel_and_wait(timeout=2)
    assert receipt is not None
    return {"outcome": outcome, "phase": receipt.phase, "left": ", ".join(receipt.leftovers) or "nothing"}


async def main() -> None:
    run_id = await start("Tell me about the sea.", session_id="ann-1")
    seen = 0
    async for piece in text(run_id):
        print(piece, end="", flush=True)
        seen += 1
        if seen == 20:
            break  # the browser's tab is closed; the run continues
    print("...")
    print("pressed:", json.dumps(await stop(run_id, "ann")))
    print("pressed again:", json.dumps(await stop(run_id, "ann")))

    run_id = await start("And now?", session_id="ann-1")
    print("the same conversation:", "".join([piece async for piece in text(run_id)]))


if __name__ == "__main__":
    asyncio.run(main())

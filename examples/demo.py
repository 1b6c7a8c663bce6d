"""The demo cancels two runs half-way, and shows and checks what Andon promises about a cancel.

It is offline, needs no input and takes about eight seconds. It ends with an error if a promise is broken.
"""

import asyncio
import faulthandler
import threading
import time
from collections.abc import Sequence

from andon import Agent, CancelOutcome, Message, Receipt, RunEvent, RunStatus, ToolOutcome, Usage, tool
from andon.messages import Text
from andon.models.scripted import Call, Say, ScriptedModel, Spend
from andon.testing.validators import VALIDATORS, next_prompt_accepted, validate

WIDTH = 78
INDENT = "   "
THREADS = set(threading.enumerate())


def main() -> None:
    faulthandler.dump_traceback_later(50, exit=True)  # a hang is a broken promise too
    print("Andon: every run can be cancelled, and what is left behind is sound.")
    storyteller = cancelled_story()
    planner = asyncio.run(cancelled_tools())
    same_agents_go_on(storyteller, planner)
    conversations_are_valid(storyteller, planner)
    print("\nAll as promised.")


# -- 1: a story -------------------------------------------------------------------------------------------------------


def cancelled_story() -> Agent:
    heading("1. A story streams; another thread cancels it in mid-sentence")
    agent = Agent(name="Storyteller", model=ScriptedModel.story(pace=0.05))
    events = agent.run("Tell me about the winter when the lamp went out.", stream=True)
    asleep = threading.Event()
    outcomes: list[CancelOutcome] = []

    def listen() -> None:
        asleep.wait()
        outcomes.append(agent.cancel_run(events.run.run_id, reason="the listener fell asleep", by="the demo"))

    listener = threading.Thread(target=listen, name="listener", daemon=True)
    listener.start()
    page, text = Page(), ""
    for event in events:
        last = event
        if event.event is RunEvent.run_content:
            text += event.content
            page.write(event.content)
            if len(text) > 320 and text.rpartition(". ")[2].count(" ") >= 4:
                asleep.set()  # four words into a sentence
    listener.join(10)
    page.write("...\n\n")

    promise("the other thread was told 'requested'", outcomes == [CancelOutcome.requested])
    promise("the last event is RunCancelled", last.event is RunEvent.run_cancelled)
    promise("the story stopped in mid-sentence", not text.rstrip().endswith("."))
    answer = [block.text for block in agent.messages[-1].content if isinstance(block, Text)]
    promise("the conversation keeps the partial text ...", answer[:-1] == [text] == [last.content])
    promise("... and then says 'Cancelled by user'", answer[-1] == "Cancelled by user")
    promise("the tokens of the cut answer are estimated", last.usage is not None and last.usage.estimated)
    show(last.receipt)
    return agent


# -- 2: three slow tools ----------------------------------------------------------------------------------------------

effects: list[str] = []


@tool
async def find_train(to: str) -> str:
    """Find a train."""
    await asyncio.sleep(1.2)
    return f"07:40 to {to}, platform 4"


@tool
async def hold_room(nights: int) -> str:
    """Hold a hotel room."""
    try:
        await asyncio.sleep(60)
        return f"a room for {nights} nights"
    finally:
        await asyncio.sleep(0.1)  # one cancel, and this may still await
        effects.append("room released")


@tool
async def buy_tickets(seats: int) -> str:
    """Buy concert tickets."""
    effects.append("tickets bought")
    return f"{seats} tickets"


async def cancelled_tools() -> Agent:
    heading("2. Three slow tools: one is done, one runs, one waits, and then a cancel")
    wishes = [
        Say("I'll arrange that. "),
        Call("find_train", {"to": "Bergen"}),
        Call("hold_room", {"nights": 2}),
        Call("buy_tickets", {"seats": 2}),
        Spend(Usage(412, 73)),
    ]
    model = ScriptedModel(wishes, then=[Say("The train at 07:40 still goes."), Spend(Usage(540, 9))])
    agent = Agent(name="Planner", model=model, tools=[find_train, hold_room, buy_tickets], parallel_tools=False)
    room_wanted = asyncio.Event()
    began = time.monotonic()

    def note(text: str) -> None:
        print(f"{INDENT}{time.monotonic() - began:4.1f} s  {text}", flush=True)

    async def watch() -> None:
        async for event in run:
            if event.tool is not None:
                note(f"{event.tool.name:12} {event.tool.outcome or 'started'}")
                if event.tool.name == "hold_room":
                    room_wanted.set()

    async with agent.start("Two nights in Bergen, with a concert, please.") as run:
        watcher = asyncio.create_task(watch())
        await room_wanted.wait()
        await asyncio.sleep(1)
        note("await run.cancel_and_wait(...)")
        receipt = await run.cancel_and_wait(reason="the weekend is off", by="the demo")
        await watcher
        note("all of the run is gone")
        result = await run.result()
    print()

    became = [each.outcome for each in receipt.tools] if receipt else []
    expected = [ToolOutcome.completed, ToolOutcome.cut, ToolOutcome.not_started]
    promise("one tool is completed, one cut, one not started", became == expected)
    promise("the cut tool's `finally` ran to its end; the third tool never ran", effects == ["room released"])
    promise("the run returned its result, and raised nothing", result.status is RunStatus.cancelled)
    results = result.messages[-2].tool_results
    promise("the finished tool's result is kept", results[0].content == "07:40 to Bergen, platform 4")
    promise("the other calls have results that tell the truth:", [r.status for r in results[1:]] == ["error"] * 2)
    for each in results[1:]:
        Page(INDENT * 3).write(f"{each.name}: {each.content}\n")
    promise("the tokens are what the provider counted", result.usage == Usage(412, 73))
    show(receipt)
    return agent


# -- 3 and 4: what is left --------------------------------------------------------------------------------------------


def same_agents_go_on(*agents: Agent) -> None:
    heading("3. The same agents answer the next prompt")
    for agent in agents:
        result = agent.run("Are you still there?")
        Page().write(f"{agent.name}: {result.content}\n")
        promise("completed", result.status is RunStatus.completed)
    left = {thread.name for thread in set(threading.enumerate()) - THREADS}
    promise("no thread is left but the library's own", left == {"andon-portal"})


def conversations_are_valid(*agents: Agent) -> None:
    heading("4. The conversations, under every provider's rules")
    providers = [name for name in VALIDATORS if name != "andon"]  # Andon's own rules are checked below
    verdicts = [(name, *(verdict(agent.messages, name) for agent in agents)) for name in providers]
    table([("", *(agent.name for agent in agents)), *verdicts])
    for agent in agents:
        promise(f"{agent.name}'s conversation is valid", validate(agent.messages) == [])
        promise("and would be with one more prompt", next_prompt_accepted(agent.messages) == [])


def verdict(messages: Sequence[Message], provider: str) -> str:
    return "refused" if validate(messages, [provider]) else "accepted"


# -- how it is shown --------------------------------------------------------------------------------------------------


def heading(text: str) -> None:
    print(f"\n{text}\n{'-' * len(text)}", flush=True)


def promise(what: str, kept: bool) -> None:
    if not kept:
        raise SystemExit(f"{INDENT}BROKEN  {what}")
    print(f"{INDENT}ok  {what}", flush=True)


def show(receipt: Receipt | None) -> None:
    if receipt is None:
        raise SystemExit(f"{INDENT}BROKEN  a cancelled run has a receipt")
    usage = receipt.usage
    counted = "estimated" if usage.estimated else "counted"
    print()
    table(
        [
            ("receipt", ""),
            ("cause", receipt.cause),
            ("reason", f"{receipt.reason} (asked by {receipt.by})"),
            ("mode", receipt.mode),
            ("phase", receipt.phase),
            ("latency", f"{receipt.latency * 1000:.1f} ms"),
            *((f"tool {each.name}", each.outcome) for each in receipt.tools),
            ("usage", f"{usage.input_tokens} tokens in, {usage.output_tokens} out ({counted})"),
            ("leftovers", ", ".join(receipt.leftovers) or "none"),
        ]
    )
    promise("nothing of the run is left over", not receipt.leftovers)


def table(rows: Sequence[Sequence[str]]) -> None:
    """A small table; the first row is its head."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rule = f"{INDENT}+{'+'.join('-' * (width + 2) for width in widths)}+"
    for number, row in enumerate(rows):
        if number < 2:
            print(rule)
        print(f"{INDENT}|{'|'.join(f' {cell:{width}} ' for cell, width in zip(row, widths, strict=True))}|")
    print(rule, flush=True)


class Page:
    """Prints text at once, and wraps it."""

    def __init__(self, indent: str = INDENT) -> None:
        self._indent = indent
        self._column = 0

    def write(self, text: str) -> None:
        for word in text.replace("\n", " \n ").split(" "):
            if word == "\n":
                print(flush=True)
                self._column = 0
            elif word:
                if self._column + 1 + len(word) > WIDTH:
                    self.write("\n")
                before = " " if self._column else self._indent
                print(before + word, end="", flush=True)
                self._column += len(before + word)


if __name__ == "__main__":
    main()

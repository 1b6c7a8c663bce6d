# SPDX-License-Identifier: Apache-2.0
"""Draw docs/img/cancel.svg: a conversation after a cancel, and the receipt. Both come from a real run.

    python scripts/draw.py

A test draws the picture again and compares it with the file. Only the latency may differ.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from html import escape
from pathlib import Path

from andon import Agent, Message, Receipt, ToolOutcome, Usage, tool
from andon.messages import Text
from andon.models.scripted import Call, Say, ScriptedModel, Spend

FILE = Path(__file__).parent.parent / "docs" / "img" / "cancel.svg"

INK, GREY, LINE = "#1f2328", "#6e7781", "#d0d7de"
COLOURS = {ToolOutcome.completed: "#1a7f37", ToolOutcome.cut: "#bc4c00", ToolOutcome.not_started: GREY}
RED = "#cf222e"
LEFT, RIGHT, TOP, STEP, WIDTH = 24, 680, 62, 23, 960


# -- the run ----------------------------------------------------------------------------------------------------------


@tool
async def find_train(to: str) -> str:
    """Find a train."""
    return f"07:40 to {to}, platform 4"


@tool
async def hold_room(nights: int) -> str:
    """Hold a hotel room."""
    await asyncio.sleep(60)
    return f"a room for {nights} nights"


@tool
async def buy_tickets(seats: int) -> str:
    """Buy concert tickets."""
    return f"{seats} tickets"


async def cancelled() -> tuple[list[Message], Receipt]:
    """The conversation after a cancel and one more prompt, and the receipt of the cancel."""
    calls = [Call("find_train", {"to": "Bergen"}), Call("hold_room", {"nights": 2}), Call("buy_tickets", {"seats": 2})]
    model = ScriptedModel([Say("I'll arrange that."), *calls, Spend(Usage(412, 73))], "The train at 07:40 still goes.")
    agent = Agent("Planner", model, tools=[find_train, hold_room, buy_tickets], parallel_tools=False)
    async with agent.start("Two nights in Bergen, with a concert, please.") as run:
        async for event in run:
            if event.tool is not None and event.tool.name == "hold_room":
                break
        receipt = await run.cancel_and_wait(reason="the weekend is off", by="ann")
    assert receipt is not None
    await agent.invoke_async("Are you still there?")
    return agent.messages, receipt


# -- the drawing ------------------------------------------------------------------------------------------------------

Row = tuple[str, str, str, bool]
"""A label, a text, the colour of the text, and whether a line is drawn above it."""


def conversation(messages: Iterable[Message], receipt: Receipt) -> list[Row]:
    outcomes = {each.call_id: each.outcome for each in receipt.tools}
    rows: list[Row] = []
    for message in messages:
        texts = [block.text for block in message.content if isinstance(block, Text)]
        lines = [(text, RED if text.startswith("Cancelled") else INK) for text in texts]
        for call in message.tool_calls:
            arguments = ", ".join(f"{name}={value!r}" for name, value in call.arguments.items())
            lines.append((f"→ {call.name}({arguments})", INK))
        lines += [(result.content, COLOURS[outcomes[result.call_id]]) for result in message.tool_results]
        rows += [(message.role if not at else "", text, colour, not at) for at, (text, colour) in enumerate(lines)]
    return rows


def facts(receipt: Receipt) -> list[Row]:
    usage = receipt.usage
    pairs = [
        ("cause", receipt.cause, INK),
        ("reason", f"{receipt.reason}", INK),
        ("by", f"{receipt.by}", INK),
        ("mode", receipt.mode, INK),
        ("phase", receipt.phase, INK),
        ("latency", f"{receipt.latency * 1000:.1f} ms", INK),
        *((each.name, each.outcome, COLOURS[each.outcome]) for each in receipt.tools),
        ("usage", f"{usage.input_tokens} in, {usage.output_tokens} out", INK),
        ("leftovers", ", ".join(receipt.leftovers) or "none", INK),
    ]
    return [(label, str(text), colour, True) for label, text, colour in pairs]


def column(title: str, rows: Iterable[Row], left: int, right: int, indent: int) -> tuple[list[str], int]:
    parts = [f'<text x="{left}" y="36" fill="{INK}" font-weight="bold">{title}</text>']
    y = TOP
    for label, text, colour, line in rows:
        if line:
            parts.append(f'<path d="M{left} {y - 16}H{right}" stroke="{LINE}"/>')
        if label:
            parts.append(f'<text x="{left}" y="{y}" fill="{GREY}">{escape(label)}</text>')
        parts.append(f'<text x="{left + indent}" y="{y}" fill="{colour}">{escape(text)}</text>')
        y += STEP
    return parts, y


def svg(messages: list[Message], receipt: Receipt) -> str:
    talk, bottom = column("the conversation", conversation(messages, receipt), LEFT, RIGHT - 36, 76)
    card, other = column("the receipt", facts(receipt), RIGHT, WIDTH - 24, 96)
    height = max(bottom, other) - 6
    frame = f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8" fill="#ffffff" stroke="{LINE}"/>'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    font = 'font-family="ui-monospace, Menlo, Consolas, monospace" font-size="12.5">'
    return "\n".join([f"{head} {font}", frame, *talk, *card, "</svg>"]) + "\n"


def draw() -> str:
    return svg(*asyncio.run(cancelled()))


if __name__ == "__main__":
    FILE.write_text(draw(), "utf-8")

# SPDX-License-Identifier: Apache-2.0
"""Tools that ask a person, and note what they do."""

from __future__ import annotations

from typing import Any

from andon import ToolContext, tool
from andon.models.scripted import Call

__all__ = ["DELETE", "LOOK", "PAY", "Till"]


class Till:
    """Tools that note what they do: one that needs an approval, one that asks by itself, one that does neither."""

    def __init__(self) -> None:
        self.did: list[Any] = []

        @tool(approval=True)
        async def delete(name: str) -> str:
            self.did.append(name)
            return f"deleted {name}"

        @tool
        async def pay(ctx: ToolContext, amount: int = 7) -> str:
            answer = ctx.interrupt("pay?", {"amount": amount})
            self.did.append(answer)
            return f"paid {amount}, {answer}"

        @tool
        async def look() -> str:
            self.did.append("looked")
            return "seen"

        self.delete, self.pay, self.look = delete, pay, look
        self.tools: list[Any] = [delete, pay, look]


DELETE, PAY, LOOK = Call("delete", {"name": "all"}, id="d"), Call("pay", {"amount": 9}, id="p"), Call("look", id="l")

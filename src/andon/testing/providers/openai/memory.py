# SPDX-License-Identifier: Apache-2.0
"""What the fake of Responses remembers of its answers, so that it can tell its own items from made-up ones.

What must stay true: the id of an item is known only after its answer has ended, so a request can't refer to the items
of an answer that was cut. Encrypted reasoning can be sent back from the moment that its item is done: it needs no
memory, because it proves itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from andon.testing.providers.api import Json


@dataclass(slots=True)
class Issued:
    """One item of an answer."""

    response: str
    reasoning: str | None
    """The id of the reasoning item that led to it."""


@dataclass(slots=True)
class Memory:
    items: dict[str, Issued] = field(default_factory=dict)
    """All items that were begun, by id."""
    completed: set[str] = field(default_factory=set)
    """The ids of items whose answer has ended."""
    stored: dict[str, Json] = field(default_factory=dict)
    """Those of them that are stored (`store` was not false)."""
    encrypted: dict[str, str] = field(default_factory=dict)
    """Encrypted content, with the id of its reasoning item."""
    calls: dict[str, Issued] = field(default_factory=dict)
    """Function calls, by call id."""
    responses: dict[str, list[Json]] = field(default_factory=dict)
    """Stored answers with all that led to them, by the answer's id: what `previous_response_id` stands for."""

    def done(self, item: Json) -> None:
        """All of an item was sent."""
        issued = self.items[item["id"]]
        if item["type"] == "function_call":
            self.calls[item["call_id"]] = issued
        if item.get("encrypted_content"):
            self.encrypted[item["encrypted_content"]] = item["id"]

    def ended(self, response: str, given: list[Json], output: list[Json], *, store: bool) -> None:
        """An answer has ended."""
        self.completed |= {item["id"] for item in output}
        if store:
            self.stored |= {item["id"]: item for item in output}
            self.responses[response] = [*given, *output]

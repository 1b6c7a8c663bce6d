# SPDX-License-Identifier: Apache-2.0
"""What the fake of Responses remembers of its answers, so that it can tell its own items from made-up ones.

What must stay true: an item is known by its id only once the answer that it belongs to has come to its end. What a
client received of an answer that was cut can't be referred to later; encrypted reasoning can, because it is its own
proof, and it exists from the moment that its item was done.
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
    """Every item that was begun, by its id."""
    completed: set[str] = field(default_factory=set)
    """The ids of items whose answer came to its end."""
    stored: dict[str, Json] = field(default_factory=dict)
    """Those of them that were kept (`store` was not false), whole."""
    encrypted: dict[str, str] = field(default_factory=dict)
    """Encrypted content, with the id of its reasoning item."""
    calls: dict[str, Issued] = field(default_factory=dict)
    """Function calls, by call id."""
    responses: dict[str, list[Json]] = field(default_factory=dict)
    """Stored answers with all that led to them, by the answer's id: what `previous_response_id` stands for."""

    def done(self, item: Json) -> None:
        """An item was sent whole."""
        issued = self.items[item["id"]]
        if item["type"] == "function_call":
            self.calls[item["call_id"]] = issued
        if item.get("encrypted_content"):
            self.encrypted[item["encrypted_content"]] = item["id"]

    def ended(self, response: str, given: list[Json], output: list[Json], *, store: bool) -> None:
        """An answer has come to its end."""
        self.completed |= {item["id"] for item in output}
        if store:
            self.stored |= {item["id"]: item for item in output}
            self.responses[response] = [*given, *output]

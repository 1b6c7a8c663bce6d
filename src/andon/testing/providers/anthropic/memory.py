# SPDX-License-Identifier: Apache-2.0
"""What the fake of Anthropic remembers of its answers: what it has signed, which turns it refused, which it paused.

A conversation is compared by a digest of everything that precedes a place in it: system, tools, and all blocks. What
must stay true: a block is known from the moment that all of it was sent, and not before.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from andon.testing.providers.api import Json


class Prefix:
    """A conversation up to some place. `add` moves the place behind one more block."""

    def __init__(self, body: Json) -> None:
        self._hash = hashlib.sha256()
        self._put([body.get("system"), body.get("tools") or []])

    def add(self, role: str, block: Json) -> None:
        self._put([role, {key: value for key, value in block.items() if key != "cache_control"}])

    def add_messages(self, messages: Sequence[Json]) -> None:
        for role, block in blocks_of(messages):
            self.add(role, block)

    @property
    def digest(self) -> str:
        return self._hash.copy().hexdigest()

    def _put(self, value: object) -> None:
        self._hash.update(json.dumps(value, sort_keys=True).encode() + b"\n")


@dataclass(slots=True)
class Memory:
    thinking: dict[str, set[tuple[str, str]]] = field(default_factory=dict)
    """By signature: the texts that it was issued for, each with the digest of what preceded it."""
    redacted: dict[str, set[str]] = field(default_factory=dict)
    """By its data: the digests of what preceded it."""
    refused: set[str] = field(default_factory=set)
    """The digests of conversations, up to a prompt, to which the answer was a refusal."""
    paused: set[str] = field(default_factory=set)
    """The same of those whose answer was paused. Such an answer may be the last message of a request."""

    def sign(self, signature: str, text: str, digest: str) -> None:
        self.thinking.setdefault(signature, set()).add((text, digest))

    def sign_redacted(self, data: str, digest: str) -> None:
        self.redacted.setdefault(data, set()).add(digest)


def blocks_of(messages: Sequence[Json]) -> Iterator[tuple[str, Json]]:
    """All blocks, each with its role. Text alone is one block of text."""
    for message in messages:
        content = message["content"]
        for block in [{"type": "text", "text": content}] if isinstance(content, str) else content:
            yield message["role"], block


def asked(body: Json) -> tuple[list[Json], bool]:
    """The messages without an answer that is to go on, and whether there is one."""
    messages = list(body["messages"])
    goes_on = messages[-1]["role"] == "assistant"
    while messages and messages[-1]["role"] == "assistant":
        messages.pop()
    return messages, goes_on


def digest_of(body: Json, messages: Sequence[Json]) -> str:
    prefix = Prefix(body)
    prefix.add_messages(messages)
    return prefix.digest

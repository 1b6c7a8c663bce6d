# SPDX-License-Identifier: Apache-2.0
"""Anthropic's model and its fake, with the options that most tests use."""

from __future__ import annotations

import json
from typing import Any

from andon import Agent
from andon.models.anthropic import Anthropic
from andon.testing.providers import FakeAnthropic, raw

ID = "claude-opus-5-5"
OLDER = "claude-sonnet-4-5"
"""A model that takes sampling parameters, and whose thinking is bound to nothing."""


def model(fake: Any, id: str = ID, **options: Any) -> Anthropic:
    return Anthropic(id, base_url=fake.base_url, **({"api_key": fake.api_key} | options))


def agent(fake: Any, id: str = ID, *, tools: Any = (), instructions: Any = None, **options: Any) -> Agent:
    return Agent("Tester", model(fake, id, **options), tools=list(tools), instructions=instructions)


def event(kind: str, **fields: Any) -> Any:
    """An event, as the provider sends it."""
    return raw(b"event: %b\ndata: %b\n\n" % (kind.encode(), json.dumps({"type": kind, **fields}).encode()))


def block(index: int, given: dict[str, Any], *deltas: dict[str, Any], stop: bool = True) -> list[Any]:
    """The events of one block."""
    events = [event("content_block_start", index=index, content_block=given)]
    events += [event("content_block_delta", index=index, delta=delta) for delta in deltas]
    return events + ([event("content_block_stop", index=index)] if stop else [])


def errors(fake: FakeAnthropic) -> list[Any]:
    """What the fake has rejected."""
    return [each.error for each in fake.served if each.error]

# SPDX-License-Identifier: Apache-2.0
"""What tests of a cancelled request ask: which sockets are open, whether the provider saw it, whether all goes on."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from andon import Agent, RunEvent, RunStatus
from andon.testing import probe
from tests.support.providers import AnyFake


def open_sockets() -> int:
    """Sockets alone: uvloop opens a file of its own with a loop's first connection."""
    return sum("/socket:" in os.path.realpath(file) for file in Path("/proc/self/fd").iterdir())


async def goes_on(agent: Agent, fake: AnyFake) -> None:
    """The very next prompt is accepted, on the same client."""
    before = len(fake.served)
    result = await agent.invoke_async("and now?")
    assert (result.status, result.content) == (RunStatus.completed, "Fine."), result.error
    assert [each.error for each in fake.served[before:]] == [None]
    assert fake.served[before].finished


async def left(fake: AnyFake, request: int = 0) -> None:
    """The provider saw it, and has sent nothing since."""
    served = await fake.wait_for_async(request, at="left")
    assert not served.finished
    assert served.sent_after_left == 0


def shown(kind: RunEvent) -> Callable[[Any], bool]:
    """Whether a reader has seen an event of this kind."""
    return lambda run: any(event.event is kind for event in probe(run).events)

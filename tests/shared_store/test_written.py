# SPDX-License-Identifier: Apache-2.0
"""What is written of a run while it goes on, on another thread: all of it is of one moment."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from andon import Message
from andon.core.shared.leased_run import LeasedRun
from andon.core.shared.store import Lease, Progress
from tests.store.making import said


class Opening:
    """A run that continues another one, and opens its session at the very moment when it is looked at."""

    def __init__(self) -> None:
        self.journal = SimpleNamespace(events=SimpleNamespace(since=lambda after, limit: []))
        self._opened = False

    def so_far(self) -> list[Message]:
        messages, self._opened = said("Hi") if self._opened else [], True
        return messages

    @property
    def continues(self) -> str | None:
        return "the one before" if self._opened else None


def test_a_run_never_takes_the_messages_of_another_one_away_without_having_them() -> None:
    """If its process died then, nobody would have them."""
    run: Any = Opening()
    worker: Any = SimpleNamespace(link=SimpleNamespace(owner="me"))
    leased, lease = LeasedRun(worker, run, "reject"), Lease("r", 1)
    leased.lease = lease
    assert leased.progress(0.0, hurried=True, relayed=False) == Progress(lease, said("Hi"), [], "the one before")

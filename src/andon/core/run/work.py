# SPDX-License-Identifier: Apache-2.0
"""What a run does, seen from the run: work to perform, to settle, and to say goodbye to.

The agent's loop is the one real implementation; the core knows no more of it than this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from msgspec import Struct

from andon.core.events import ToolView
from andon.core.receipt import Interrupt, ToolReceipt
from andon.core.records import Bookmark, Shortened
from andon.core.signal import Fate
from andon.core.states import CancelOutcome, StopReason
from andon.messages import Message, Usage


class Settlement(Struct, frozen=True, gc=False):
    """What a run leaves, in its final and valid form."""

    messages: list[Message]
    """What the run added to its session."""
    content: str
    usage: Usage
    tools: list[ToolReceipt]
    cancelled: list[ToolView]
    """The calls that the end of the run cancelled."""
    cut_calls: list[ToolReceipt] = []
    """Those of them that nobody had cancelled alone: what whoever goes on with the run has to deal with."""
    interrupts: list[Interrupt] = []
    """The questions that are open, if it paused."""
    bookmark: Bookmark | None = None
    """Where it goes on, if it paused."""
    output: Any = None
    """The answer as what `output_type` asked for."""
    output_data: Any = None
    """The same as JSON has it."""
    write_output: Callable[[Any], Any] | None = None
    """What makes that of it."""
    shortened: Shortened | None = None
    """The summary that the run has made of the conversation's beginning."""


class Work(Protocol):
    """What a run does."""

    @property
    def continues(self) -> str | None:
        """The ended run whose messages are part of this one's, if it goes on with one."""
        ...

    def begin(self) -> None:
        """The run begins, here and now: called where that was asked for, before the run has a task."""
        ...

    async def perform(self) -> StopReason:
        """Do the work. Everything that may wait is a step of the run.

        With `StopReason.interrupt` it waits for a person: `answer` is called with the answers, and then this again.
        """
        ...

    def so_far(self) -> list[Message]:
        """What it has added to the conversation, with the results that there are. Safe from any thread."""
        ...

    def progress(self) -> Settlement:
        """How far it has come, and the questions that are open."""
        ...

    def answer(self, answers: Mapping[str, Any], anew: Any = None) -> None:
        """Take the answers, one for each question that is open; and what whoever brings them gives anew, if anything.

        What that can be is between the work and whoever brings it.
        """
        ...

    def cancel_call(self, call_id: str, reason: str | None) -> CancelOutcome:
        """Cancel one tool call, and go on with the work. Safe from any thread."""
        ...

    def settle(self, fate: Fate) -> Settlement:
        """Bring what was seen so far into its final form. Pure: no waiting, no side effects."""
        ...

    def ended(self) -> None:
        """All is final; readers are told next. Called on every path, and twice if the first time broke."""
        ...

    async def farewell(self) -> None:
        """Tell the hooks, after the terminal event."""
        ...

# SPDX-License-Identifier: Apache-2.0
"""The interface between a run and its work.

The agent's loop is the one real implementation. The core knows only this interface of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from msgspec import Struct

from andon.core.events import ToolView
from andon.core.receipt import Interrupt, ToolReceipt
from andon.core.records import Bookmark, Shortened
from andon.core.signal import Fate
from andon.core.states import CancelOutcome, FinishReason, StopReason
from andon.messages import Message, Usage


class Settlement(Struct, frozen=True, gc=False):
    """What a run leaves: its messages and outcomes, in their final and valid form."""

    messages: list[Message]
    """The messages that the run added to its session."""
    content: str
    usage: Usage
    tools: list[ToolReceipt]
    cancelled: list[ToolView]
    """The calls that the end of the run cancelled."""
    cut_calls: list[ToolReceipt] = []
    """Those of them that were not cancelled one by one before. A run that continues this one needs them."""
    interrupts: list[Interrupt] = []
    """The questions that are open, if the run paused."""
    bookmark: Bookmark | None = None
    """Where the run continues, if it paused."""
    output: Any = None
    """The answer as a value of the `output_type`."""
    output_data: Any = None
    """The same as JSON."""
    write_output: Callable[[Any], Any] | None = None
    """The function that converts the output to JSON."""
    shortened: Shortened | None = None
    """The summary that the run made of the conversation's beginning."""
    finish_reason: FinishReason | None = None
    """Why the model ended its last answer, if it has said so."""


class Work(Protocol):
    """The work of a run."""

    @property
    def continues(self) -> str | None:
        """The ended run that this one continues, if any. The messages of that run are part of this one's."""
        ...

    def begin(self) -> None:
        """The run begins. Called by the code that starts the run, in its thread, before the run has a task."""
        ...

    async def perform(self) -> StopReason:
        """Do the work. Everything that may wait is a step of the run.

        With `StopReason.interrupt` it waits for a person. Then `answer` is called, and after it `perform` again.
        """
        ...

    def so_far(self) -> list[Message]:
        """The messages that it has added to the conversation, with the tool results so far. Safe from any thread."""
        ...

    def progress(self) -> Settlement:
        """How far the work has come, and the questions that are open."""
        ...

    def answer(self, answers: Mapping[str, Any], anew: Any = None) -> None:
        """Take the answers, one for each question that is open.

        `anew` is what the caller gives again for the rest of the run, if anything. The core passes it on unread.
        """
        ...

    def cancel_call(self, call_id: str, reason: str | None, force: bool = False) -> CancelOutcome:
        """Cancel one tool call, and go on with the work. Safe from any thread."""
        ...

    async def undo(self) -> None:
        """Undo the calls that were cut, each once, as far as that is possible. Called before `settle`; never raises."""
        ...

    def settle(self, fate: Fate) -> Settlement:
        """Bring the work so far into its final form. Pure: no waiting, no side effects."""
        ...

    def ended(self) -> None:
        """The end is final; the terminal event comes next. Called on every path, and again if the first call raised."""
        ...

    async def farewell(self) -> None:
        """Call the last hooks, after the terminal event."""
        ...

# SPDX-License-Identifier: Apache-2.0
"""What a run takes besides its prompt."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from andon.core.budget import Budget
from andon.core.receipt import is_seconds
from andon.core.session import OnBusy
from andon.errors import ConfigurationError
from andon.messages import Message


class ContinueOptions(TypedDict, total=False):
    """What a run that goes on with an earlier one takes.

    Without `timeout`, `max_turns` or `budget` the agent's own counts. `None` sets no limit for this run. `output_type`
    is not among them: the type of a result follows from it, so it is a parameter of its own wherever a run is made.
    """

    timeout: float | None
    """Seconds after which the run is cancelled with cause `deadline`; waiting in a queue counts, pauses don't."""
    max_turns: int | None
    """How many times the model is asked at the most."""
    budget: Budget | int | None
    """Tokens that the run and its children may spend, or `Budget(tokens=…, tool_calls=…)`."""
    metadata: dict[str, Any] | None
    """Yours; kept with the run, and handed to tools, hooks and instructions."""
    deps: Any
    """Handed to tools, hooks and instructions as `ctx.deps`, and kept nowhere; without it, the agent's own."""
    cancel_on: asyncio.Event | threading.Event | None
    """Cancel the run when this is set: an asyncio.Event of the same loop, or a threading.Event."""
    on_busy: OnBusy
    """What to do if another run holds the session: `reject` (the default), `queue`, or `cancel` that run."""
    detached: bool
    """Inside a tool: not a child of the tool's run, and not cancelled with it."""


class RunOptions(ContinueOptions, total=False):
    """What every way to run an agent takes besides the prompt."""

    session_id: str | None
    """The conversation to go on with; without it, the agent's own."""
    user_id: str | None
    """Whose conversation it is: two users' sessions never meet."""
    run_id: str | None
    """The run's id, if you want to choose it."""
    messages: Sequence[Message | Mapping[str, Any]] | None
    """What was said before the prompt. It takes the place of what was said in the session."""


def check_id(name: str, given: object) -> None:
    """Refuse what can't be the id of a run, a session or a user."""
    if not isinstance(given, str | None):
        raise ConfigurationError(f"{name} must be text, not {type(given).__name__}")
    if given == "":  # a form's field that was left empty must not lead everybody into one conversation
        raise ConfigurationError(f"{name} is empty: give some text, or leave it out")


def check_limits(
    max_turns: int | None, timeout: float | None, budget: Budget | int | None
) -> tuple[int | None, float | None, Budget | None]:
    """What limits a run, or is the default for the runs of an agent."""
    whole = isinstance(max_turns, int) and not isinstance(max_turns, bool)
    if max_turns is not None and not (whole and max_turns >= 1):
        raise ConfigurationError(f"max_turns is {max_turns!r}; it is a whole number, 1 or more, or None for no limit")
    if not is_seconds(timeout):
        raise ConfigurationError(f"timeout is {timeout!r}; it is a number of seconds, 0 or more, or None for no limit")
    return max_turns, timeout, Budget.of(budget)

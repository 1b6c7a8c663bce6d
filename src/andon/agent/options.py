# SPDX-License-Identifier: Apache-2.0
"""The options of a run."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from andon.core.budget import Budget
from andon.core.receipt import is_seconds
from andon.core.session import OnBusy
from andon.errors import ConfigurationError
from andon.messages import Message

OnLost = Literal["end", "continue"]
"""What becomes of a run whose worker process is lost."""


class ContinueOptions(TypedDict, total=False):
    """The options of a run that goes on with an earlier one.

    Without `timeout`, `max_turns` or `budget` the agent's own applies. `None` sets no limit for this run. `output_type`
    is not among them: the type of a result depends on it, so it is a parameter of its own wherever a run is made.
    """

    timeout: float | None
    """Seconds after which the run is cancelled with cause `deadline`; waiting in a queue counts, pauses don't."""
    max_turns: int | None
    """How many model turns the run may take."""
    budget: Budget | int | None
    """Tokens that the run and its children may spend, or `Budget(tokens=…, tool_calls=…)`."""
    metadata: dict[str, Any] | None
    """A dict of yours. It is stored with the run, and given to tools, hooks and instructions."""
    deps: Any
    """Given to tools, hooks and instructions as `ctx.deps`, and stored nowhere. Without it, the agent's own."""
    cancel_on: asyncio.Event | threading.Event | None
    """Cancel the run when this is set: an asyncio.Event of the same loop, or a threading.Event."""
    on_busy: OnBusy
    """What to do if another run holds the session: `reject` (the default), `queue`, or `cancel` that run."""
    detached: bool
    """Inside a tool: not a child of the tool's run, and not cancelled with it."""


class RunOptions(ContinueOptions, total=False):
    """The options of every way to run an agent."""

    session_id: str | None
    """The conversation to go on with; without it, the agent's own."""
    user_id: str | None
    """The user of the conversation. The sessions of two users are always different ones."""
    run_id: str | None
    """The run's id, if you want to choose it."""
    messages: Sequence[Message | Mapping[str, Any]] | None
    """The conversation before the prompt. It replaces what the session has."""


def check_id(name: str, given: object) -> None:
    """Raise if this can't be the id of a run, a session or a user."""
    if not isinstance(given, str | None):
        raise ConfigurationError(f"{name} must be text, not {type(given).__name__}")
    if given == "":  # an empty form field must not put all users into one conversation
        raise ConfigurationError(f"{name} is empty: give some text, or leave it out")


def check_limits(
    max_turns: int | None, timeout: float | None, budget: Budget | int | None
) -> tuple[int | None, float | None, Budget | None]:
    """The limits of a run, or the defaults of an agent, checked."""
    whole = isinstance(max_turns, int) and not isinstance(max_turns, bool)
    if max_turns is not None and not (whole and max_turns >= 1):
        raise ConfigurationError(f"max_turns is {max_turns!r}; it is a whole number, 1 or more, or None for no limit")
    if not is_seconds(timeout):
        raise ConfigurationError(f"timeout is {timeout!r}; it is a number of seconds, 0 or more, or None for no limit")
    return max_turns, timeout, Budget.of(budget)


def check_queueing(queue: object, priority: object, on_lost: object) -> tuple[str, int, OnLost]:
    """What an agent says about its runs in a queue, checked."""
    if not isinstance(queue, str) or not re.fullmatch(r"[A-Za-z0-9_-]{1,32}", queue):
        raise ConfigurationError(f"queue is {queue!r}; it is a name of 1 to 32 letters, digits, _ and -")
    if not isinstance(priority, int) or isinstance(priority, bool) or abs(priority) > MAX_PRIORITY:
        raise ConfigurationError(f"priority is {priority!r}; it is a whole number, at most {MAX_PRIORITY} from 0")
    if on_lost == "end" or on_lost == "continue":
        return queue, priority, on_lost
    raise ConfigurationError(f'on_lost is {on_lost!r}; use "end" or "continue"')


MAX_PRIORITY = 1_000_000

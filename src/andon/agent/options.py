# SPDX-License-Identifier: Apache-2.0
"""What a run takes besides its prompt."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, TypedDict

from andon.core.budget import Budget
from andon.core.session import OnBusy
from andon.errors import ConfigurationError

if TYPE_CHECKING:
    from pydantic import BaseModel


class ContinueOptions(TypedDict, total=False):
    """What a run that goes on with an earlier one takes."""

    output_type: type[BaseModel] | None
    """The pydantic model that the answer must be; `result.output` is one then."""
    timeout: float | None
    """Seconds after which the run is cancelled with cause `deadline`; waiting in a queue counts, pauses don't."""
    max_turns: int | None
    """How many times the model is asked at the most."""
    budget: Budget | int | None
    """Tokens that the run and its children may spend, or `Budget(tokens=…, tool_calls=…)`."""
    metadata: dict[str, Any] | None
    """Yours; kept with the run."""
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


def check_id(name: str, given: object) -> None:
    """Refuse what can't be the id of a run, a session or a user."""
    if not isinstance(given, str | None):
        raise ConfigurationError(f"{name} must be text, not {type(given).__name__}")
    if given == "":  # a form's field that was left empty must not lead everybody into one conversation
        raise ConfigurationError(f"{name} is empty: give some text, or leave it out")

# SPDX-License-Identifier: Apache-2.0
"""Instructions that are made for each model call, by a function of the run's context.

An async function is a step of the run: it has the time limit of a hook, and a cancel cuts it. If the function fails,
the run fails, because a model without its instructions might do anything.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeAlias

from msgspec import Struct

from andon.agent.hooks import call_user_function
from andon.core.run.run import LocalRun
from andon.core.states import CancelMode, Phase
from andon.core.steps import CutAloneError
from andon.errors import ConfigurationError, InstructionsError
from andon.messages import sendable
from andon.tools.base import Deps


class RunContext(Struct, Generic[Deps], frozen=True):
    """The run, as a function that makes instructions sees it.

    >>> def instructions(ctx: RunContext[Shop]) -> str:
    ...     return f"You answer customers of {ctx.deps.name}."
    """

    run_id: str
    session_id: str
    agent_id: str
    user_id: str | None
    deadline: float | None
    """When the run's time is up, as `time.time()` counts it; None without a limit."""
    metadata: dict[str, Any]
    deps: Deps


InstructionsFunction: TypeAlias = Callable[[RunContext[Any]], "str | Awaitable[str | None] | None"]


def check_instructions(given: object) -> None:
    """Raise if this can't be an agent's instructions."""
    if not isinstance(given, str | None) and (isinstance(given, type) or not callable(given)):
        kind = type(given).__name__
        raise ConfigurationError(f"the instructions must be text, or a function of the context; not {kind}")


async def make_instructions(run: LocalRun, given: str | InstructionsFunction | None, deps: Any) -> str | None:
    """The instructions for the next model call."""
    if given is None or isinstance(given, str):
        return given
    context = RunContext(
        run.run_id, run.session_id, run.agent_id, run.user_id, run.children.deadline, run.metadata, deps
    )
    name, phase = f"instructions {getattr(given, '__name__', type(given).__name__)}", run.phase
    run.phase = Phase.hook
    try:
        text = await call_user_function(run, name, given, context, CancelMode.after_turn)
    except CutAloneError:
        raise InstructionsError(f"{name} took longer than {run.bounds.hook_seconds:g} s") from None
    run.phase = phase
    if not isinstance(text, str | None):
        raise InstructionsError(f"{name} returned {type(text).__name__}; it must return text, or None for none")
    return None if text is None else sendable(text)

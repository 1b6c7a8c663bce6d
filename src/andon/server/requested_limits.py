# SPDX-License-Identifier: Apache-2.0
"""The limits that a client requests for a run. They may be lower than those of the agent, never higher."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar

from andon.agent.agent import Agent
from andon.agent.options import ContinueOptions
from andon.core.budget import Budget
from andon.server.body import quote_names, read_json
from andon.server.problems import Problem

T = TypeVar("T", int, float)


MEANT = "a number of tokens, or an object with tokens, tool_calls or both"
"""The allowed values of `budget`."""


def requested_limits(
    agent: Agent, max_turns: int | None, timeout: float | None, budget: int | dict[str, int | None] | str | None
) -> ContinueOptions:
    """The given limits as options of a run. For limits that were not given, those of the agent apply."""
    options: ContinueOptions = {}
    if max_turns is not None:
        if max_turns < 1:  # checked here, because the error of `Agent.run` mentions None
            raise Problem(422, f"max_turns is {max_turns}; it is a whole number, 1 or more")
        options["max_turns"] = _within("max_turns", max_turns, agent.max_turns)
    if timeout is not None:
        if not 0 <= timeout < math.inf:
            raise Problem(422, f"timeout is {timeout:g}; it is a number of seconds, 0 or more")
        options["timeout"] = _within("timeout", timeout, agent.timeout)
    if budget is not None:
        own, asked = agent.budget or Budget(), _spending(budget)
        tokens = own.tokens if asked.tokens is None else _within("budget", asked.tokens, own.tokens)
        calls = own.tool_calls
        if asked.tool_calls is not None:
            calls = _within("budget's tool_calls", asked.tool_calls, own.tool_calls)
        options["budget"] = Budget(tokens, calls)
    return options


def _spending(budget: int | dict[str, int | None] | str) -> Budget:
    """In a form it is text."""
    given = read_json(budget.encode(errors="replace"), "budget", 422) if isinstance(budget, str) else budget
    if isinstance(given, bool) or not isinstance(given, int | dict):
        raise Problem(422, f"budget must be {MEANT}")
    return Budget(_whole("budget", given)) if isinstance(given, int) else _spending_of(given)


def _spending_of(given: Mapping[str, Any]) -> Budget:
    """null counts as missing."""
    if unknown := [name for name in given if name not in Budget.__struct_fields__]:
        raise Problem(422, f"budget has {quote_names(unknown)}; it is {MEANT}")
    return Budget(**{name: _whole(f"budget's {name}", value) for name, value in given.items() if value is not None})


def _whole(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise Problem(422, f"{name} is {value!r}; it is a whole number, 0 or more")
    return value


def _within(name: str, asked: T, most: T | None) -> T:
    if most is not None and asked > most:
        raise Problem(422, f"{name} is {asked}; this agent allows {most} at the most")
    return asked

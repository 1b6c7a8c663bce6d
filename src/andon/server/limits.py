# SPDX-License-Identifier: Apache-2.0
"""The limits that a client asks for. It may ask for less than the agent's own, and never for more."""

from __future__ import annotations

from typing import TypeVar

from msgspec import Struct

from andon.agent.agent import Agent, RunOptions
from andon.core.budget import Budget
from andon.server.body import parse, read_json
from andon.server.problems import Problem

T = TypeVar("T", int, float)


class Spending(Struct, forbid_unknown_fields=True):
    """What a run may spend. A number alone is one of tokens."""

    tokens: int | None = None
    tool_calls: int | None = None


def limits_of(
    agent: Agent, max_turns: int | None, timeout: float | None, budget: int | dict[str, int] | str | None
) -> RunOptions:
    """These as options of a run; without those that were not given, for which the agent's own count."""
    options: RunOptions = {}
    if max_turns is not None:
        if max_turns < 1:  # said here, because what Python's own error says of None is not so over HTTP
            raise Problem(422, f"max_turns is {max_turns}; it is a whole number, 1 or more")
        options["max_turns"] = _within("max_turns", max_turns, agent.max_turns)
    if timeout is not None:
        options["timeout"] = _within("timeout", timeout, agent.timeout)
    if budget is not None:
        own, asked = agent.budget or Budget(), _spending(budget)
        tokens = own.tokens if asked.tokens is None else _within("budget", asked.tokens, own.tokens)
        calls = own.tool_calls
        if asked.tool_calls is not None:
            calls = _within("budget's tool_calls", asked.tool_calls, own.tool_calls)
        options["budget"] = Budget(tokens, calls)
    return options


def _spending(budget: int | dict[str, int] | str) -> Spending:
    """In a form it comes as text."""
    given = read_json(budget.encode(errors="replace"), "budget", 422) if isinstance(budget, str) else budget
    if isinstance(given, bool) or not isinstance(given, int | dict):
        raise Problem(422, "budget must be a number of tokens, or an object with tokens, tool_calls or both")
    return Spending(given) if isinstance(given, int) else parse(given, Spending)


def _within(name: str, asked: T, most: T | None) -> T:
    if most is not None and asked > most:
        raise Problem(422, f"{name} is {asked}; this agent allows {most} at the most")
    return asked

# SPDX-License-Identifier: Apache-2.0
"""Small scenarios to explore, and a look at what was found."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from andon import Agent
from andon.models.base import ModelRequest
from andon.models.scripted import Call, Say, ScriptedModel
from andon.testing import Report, reading

Scenario = Callable[[], Coroutine[Any, Any, object]]


def found(report: Report, pattern: str) -> None:
    """The exploration found this, and nothing else."""
    assert report.problems, f"nothing was found: {report}"
    others = [problem for problem in report.problems if not re.search(pattern, problem.text)]
    assert not others, "\n".join(map(str, others))
    assert not report.ok
    with pytest.raises(AssertionError, match=pattern):
        report.raise_for_problems()


def hello(**options: Any) -> Agent:
    return Agent("A", ScriptedModel(then=Say("Hello there.", pace=0.1)), **options)


def calling(name: str, *tools: Any) -> Agent:
    """An agent that calls this tool, once for every prompt."""

    def answer(request: ModelRequest) -> Call | str:
        return "Done." if request.messages[-1].role == "tool" else Call(name)

    return Agent("A", ScriptedModel(then=answer), tools=tools)


async def sound() -> None:
    await hello().invoke_async("Hi")


async def sound_stream() -> None:
    async for _ in reading(hello().stream_async("Hi")):
        await asyncio.sleep(0)


async def raising(error: BaseException) -> None:
    raise error

# SPDX-License-Identifier: Apache-2.0
"""The event loop of a whole test session: asyncio's own, or the one that the variable ANDON_TEST_LOOP names.

`uvloop` is that loop. `eager` is asyncio's own with `asyncio.eager_task_factory`, which begins each task inside
`create_task` (Python 3.12 or newer). The policy is changed, so `asyncio.run`, `asyncio.Runner` and the portal's thread
all follow it; the explorer's loop, which makes its own tasks, is told separately.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import pytest

from andon.testing import virtual

VARIABLE = "ANDON_TEST_LOOP"

BREAKS = "it breaks asyncio's own loop from the inside, which can't be done to uvloop's"

UNSUITED: dict[str, dict[str, str]] = {
    "eager": {
        "tests/agent/test_host.py::test_asyncio_run_is_torn_down_before_the_callers_first_step": (
            "the caller's first step is taken inside create_task, so there is no moment before it"
        ),
    },
    "uvloop": {
        "tests/agent/test_host.py::test_asyncio_run_is_torn_down_before_the_callers_first_step": (
            "uvloop finishes its turn before it passes SystemExit on, so the caller's first step is taken"
        ),
        "tests/agent/test_lost.py::test_the_tools_of_a_run_that_is_handed_over_are_stopped_where_they_live": (
            "uvloop finishes its turn before it passes KeyboardInterrupt on, so the tool is gone before the test looks"
        ),
        "tests/core/test_portal.py::test_a_loop_that_breaks_loses_its_runs_and_is_replaced": BREAKS,
        "tests/core/test_portal.py::test_a_run_that_was_being_ended_on_a_loop_that_breaks_is_ended_once": BREAKS,
        "tests/core/test_portal.py::test_a_run_in_its_last_hooks_is_not_waited_for_when_the_loop_breaks": BREAKS,
        "tests/core/test_portal.py::test_a_caller_that_waits_for_a_loop_that_breaks_is_told": BREAKS,
    },
}
"""The tests that can't be run on a loop, each with the reason. They are left out, not skipped."""


def chosen() -> str | None:
    """The name of the loop that this session was asked to use, or None for asyncio's own."""
    return os.environ.get(VARIABLE) or None


def install() -> None:
    """Have every event loop that is made from now on be of the chosen kind."""
    name = chosen()
    if name is None:
        return
    if name not in UNSUITED:
        raise pytest.UsageError(f"{VARIABLE} is {name!r}; it can be {' or '.join(UNSUITED)}, or not set")
    if name == "eager":
        if sys.version_info < (3, 12):
            raise pytest.UsageError(f"{VARIABLE}=eager needs Python 3.12 or newer; this is {sys.version.split()[0]}")
        virtual._make_task = _make_virtual_task
        asyncio.set_event_loop_policy(_Policy(make_eager))
    else:
        import uvloop

        asyncio.set_event_loop_policy(_Policy(uvloop.new_event_loop))


class _Policy(asyncio.DefaultEventLoopPolicy):
    """Makes loops by a function."""

    def __init__(self, make: Callable[[], asyncio.AbstractEventLoop]) -> None:
        super().__init__()
        self._make = make

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        return self._make()


def make_eager(loop: asyncio.AbstractEventLoop | None = None) -> asyncio.AbstractEventLoop:
    """Have a loop, of asyncio's own kind if none is given, begin each task inside `create_task`."""
    loop = loop or asyncio.SelectorEventLoop()
    loop.set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined]  # Python 3.12 has it
    return loop


def _make_virtual_task(
    loop: virtual.VirtualLoop, coroutine: Coroutine[Any, Any, Any], **options: Any
) -> asyncio.Task[Any]:
    return virtual._Task(coroutine, loop=loop, eager_start=True, **options)


def leave_out(items: list[pytest.Item]) -> Iterable[pytest.Item]:
    """Take the tests that don't suit the chosen loop out of the list, and return them."""
    unsuited = UNSUITED.get(chosen() or "", {})
    out = [item for item in items if item.nodeid.split("[")[0] in unsuited]
    items[:] = [item for item in items if item not in out]
    return out

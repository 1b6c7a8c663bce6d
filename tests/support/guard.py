# SPDX-License-Identifier: Apache-2.0
"""The frame of every asynchronous test: a hang is a failure, and so is anything that is left behind."""

from __future__ import annotations

import asyncio
import functools
import gc
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from andon import Agent
from andon.models.scripted import ScriptedModel
from tests.support.flags import HANG, eventually


def play(
    main: Callable[[], Coroutine[Any, Any, None]],
    *,
    seconds: float = HANG,
    loop: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> None:
    """Run a test on a loop of its own. Then no task, thread or file is left, and the loop did not complain."""
    _warm_up()
    threads, files = set(threading.enumerate()), _open_files()
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(_guarded(main, seconds))
    for thread in set(threading.enumerate()) - threads:
        eventually(functools.partial(_has_started, thread))  # another thread may be about to start it
        thread.join(HANG)  # a thread that the test has just released may need a moment
        assert not thread.is_alive(), f"left behind: {thread}"
    assert _open_files() <= files


def _has_started(thread: threading.Thread) -> bool:
    return thread.ident is not None


async def _guarded(main: Callable[[], Coroutine[Any, Any, None]], seconds: float) -> None:
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
    async with asyncio.timeout(seconds):
        await main()
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert not left, f"left behind: {left}"
    gc.collect()
    assert not complaints


@functools.cache
def _warm_up() -> None:
    """Have the portal's thread and its files there before anything is counted."""
    Agent("warm-up", ScriptedModel()).run("Hello")


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0

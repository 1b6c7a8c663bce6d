# SPDX-License-Identifier: Apache-2.0
"""The last moment of a process: tasks that are left on its event loop, such as tools that ignore their cancellation.

An event loop can't be closed before they end. So a process that has such tasks says so and exits.
"""

from __future__ import annotations

import asyncio

END_SECONDS = 1
"""How long tasks have to end. A tool that ignores its cancellation ends with the process."""


async def end_tasks() -> list[str]:
    """Cancel the tasks that are left on the event loop, and return the names of those that don't end."""
    if not (tasks := asyncio.all_tasks() - {asyncio.current_task()}):
        return []
    for task in tasks:
        task.cancel()
    _, stubborn = await asyncio.wait(tasks, timeout=END_SECONDS)
    return [task.get_name() for task in stubborn]

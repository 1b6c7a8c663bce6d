# SPDX-License-Identifier: Apache-2.0
"""Closes a runtime at the end of a process, whatever its database does."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence

from andon.cli.command_error import Exit
from andon.core.runtime import Runtime

CLOSE_SECONDS = 8.0
"""How long the runtime has to close its store. A database that does not answer would take longer."""


async def close_in_time(runtime: Runtime) -> list[str]:
    """Returns what is still running."""
    closing = asyncio.ensure_future(runtime.close())
    if not (await asyncio.wait([closing], timeout=CLOSE_SECONDS))[0]:  # a cancel would not make it quicker
        return ["calls of the database, which does not answer"]
    await closing
    return []


def leave(left: Sequence[str]) -> None:
    """End the process at once, if anything is still running: otherwise the event loop would wait for it."""
    if left:
        print(f"andon: still running at the end: {', '.join(left)}", file=sys.stderr, flush=True)
        os._exit(Exit.ok)

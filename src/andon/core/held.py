# SPDX-License-Identifier: Apache-2.0
"""What a tool call uses outside its own coroutine, seen from the core.

Each kind of tool that needs one (`tools/thread.py`, for example) brings its own class. The core only names such a
resource in the receipt, tells it about a cut, and counts it until it is gone.
"""

from __future__ import annotations

from typing import Protocol


class HeldResource(Protocol):
    """Something that works for a tool call and can outlive it: a thread, a process, a request to another server.

    The tool registers it with `ToolCallScope.hold` before it starts, and calls `ToolCallScope.release` as soon as it is
    gone, from any thread. Between these two calls it counts as running.
    """

    @property
    def name(self) -> str:
        """Its name in the receipt's `leftovers`, if it is still running after a cut."""
        ...

    def on_cut(self) -> None:
        """The call was cut: start to stop the resource, if it can be stopped.

        Called once, on the run's event loop, before the call's task is cancelled. It must not block or raise.
        """
        ...

# SPDX-License-Identifier: Apache-2.0
"""What of a call's context does not work in a process: the caller's objects can't be sent there."""

from __future__ import annotations

from typing import NoReturn

from andon.errors import ToolError

WHY = (
    "ctx.deps can't be sent to the process of a tool: make what the tool needs inside the tool, from its arguments or"
    " from ctx.metadata, which is sent as JSON"
)


NO_STEPS = (
    "ctx.on_undo can't be used in the process of a tool: the step would be gone with the process. Give the tool a"
    " function that undoes a call, @tool(on_cancel=…): it is called in your program"
)


class NoDeps:
    """Raises as soon as it is used."""

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise ToolError(WHY)

    def __getitem__(self, key: object) -> NoReturn:
        raise ToolError(WHY)


NO_DEPS = NoDeps()

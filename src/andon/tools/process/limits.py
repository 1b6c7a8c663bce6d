# SPDX-License-Identifier: Apache-2.0
"""What one process of a tool call may use. The kernel keeps these limits."""

from __future__ import annotations

import math

from msgspec import Struct

from andon.errors import ToolDefinitionError

LEAST_MEMORY = 64 * 2**20
"""An interpreter that has imported a tool needs about half of it."""


class Limits(Struct, frozen=True, omit_defaults=True):
    """What each process of a tool call may use. None sets no limit.

    >>> @tool(isolation="process", timeout=60, limits=Limits(memory=512 * 2**20, cpu=30))
    ... def convert(path: str) -> str: ...

    `memory`: bytes of its own memory; more is a MemoryError. `cpu`: seconds of processor time; more ends the process.
    `files`: files that are open at once.
    """

    memory: int | None = None
    cpu: float | None = None
    files: int | None = None

    def check(self, least_memory: int = 1) -> None:
        """Raise if one of them can't be a limit."""
        for name, least in (("memory", least_memory), ("files", 16)):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
                raise ToolDefinitionError(f"Limits({name}={value!r}): it is a whole number, {least:,} or more")
        if self.cpu is not None and not (isinstance(self.cpu, int | float) and 0 < self.cpu < math.inf):
            raise ToolDefinitionError(f"Limits(cpu={self.cpu!r}): it is a number of seconds, more than 0")

    @property
    def cpu_seconds(self) -> int | None:
        """The kernel counts whole seconds."""
        return None if self.cpu is None else math.ceil(self.cpu)


NO_LIMITS = Limits()


def check_limits(limits: object, least_memory: int = 1) -> Limits:
    if not isinstance(limits, Limits):
        raise ToolDefinitionError(f"limits is {limits!r}; write limits=Limits(memory=…, cpu=…, files=…)")
    limits.check(least_memory)
    return limits

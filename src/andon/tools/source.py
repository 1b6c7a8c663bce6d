# SPDX-License-Identifier: Apache-2.0
"""A source of tools: something that has to be asked which tools it has, for example a server.

An agent asks its sources when a run begins or goes on, and again before a model call if the tools have changed. What
must stay true: asking is a step of the run. So a cancel ends the wait, and a source that fails makes the run fail.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeGuard

from andon.tools.base import Tool


class ToolSource(Protocol):
    """An object that an agent can be given in `tools=`, in the place of the tools that it has."""

    @property
    def name(self) -> str:
        """What errors call it."""
        ...

    def check_setup(self) -> None:
        """Raise a `SetupError` if it can't work: a package or an environment variable is missing, for example.

        Called where a run is requested. It must not block.
        """
        ...

    async def tools(self) -> Sequence[Tool]:
        """Its tools. May connect to a server first. Raises `ToolSourceError` if they can't be had."""
        ...

    def known_tools(self) -> Sequence[Tool] | None:
        """Its tools, as last listed on this event loop; None if it has to be asked, because they may have changed."""
        ...


def is_source(obj: object) -> TypeGuard[ToolSource]:
    return not isinstance(obj, type) and all(callable(getattr(obj, name, None)) for name in ("tools", "known_tools"))

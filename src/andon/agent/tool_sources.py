# SPDX-License-Identifier: Apache-2.0
"""Asks the sources of tools of an agent which tools they have, for one run.

What must stay true: a tool's name means one tool. Two that have the same name make the run fail, before a model is
asked.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping, Sequence

from andon.core.run.run import LocalRun
from andon.core.states import CancelMode, Phase
from andon.errors import ToolSourceError
from andon.tools.base import Tool
from andon.tools.source import ToolSource


class ToolFinder:
    """The tools of one run: the agent's own, and those of its sources."""

    __slots__ = ("_found", "_own", "_run", "_sources")

    def __init__(self, run: LocalRun, own: Mapping[str, Tool], sources: Sequence[ToolSource]) -> None:
        self._run, self._own, self._sources = run, own, sources
        self._found: list[Sequence[Tool]] = []

    async def find(self) -> dict[str, Tool]:
        """Ask all sources, at the same time."""
        self._run.phase = Phase.loading
        names = ", ".join(source.name for source in self._sources)
        ask = functools.partial(_ask, self._sources)
        found = await self._run.steps.start(ask, name=f"the tools of {names}", cut_by=CancelMode.after_turn)
        return self._join(found)

    async def find_changed(self) -> dict[str, Tool] | None:
        """Ask the sources whose tools have changed. None if none has."""
        known = [source.known_tools() for source in self._sources]
        if all(now is before for now, before in zip(known, self._found, strict=True)):
            return None
        return await self.find()

    def _join(self, found: list[Sequence[Tool]]) -> dict[str, Tool]:
        tools = dict(self._own)
        owners = dict.fromkeys(tools, "the agent")
        for source, listed in zip(self._sources, found, strict=True):
            for tool in listed:
                if tool.name in tools:
                    raise ToolSourceError(
                        f"two tools are named {tool.name!r}: one of {owners[tool.name]}, one of {source.name}. Give one"
                        " of the sources a prefix, or leave the tool out"
                    )
                tools[tool.name], owners[tool.name] = tool, source.name
        self._found = found
        return tools


async def _ask(sources: Sequence[ToolSource]) -> list[Sequence[Tool]]:
    if len(sources) == 1:
        return [await sources[0].tools()]
    asked = [asyncio.ensure_future(source.tools()) for source in sources]
    try:
        return [await each for each in asked]
    finally:
        for each in asked:  # if one failed, or the run was cancelled
            each.cancel()
        await asyncio.gather(*asked, return_exceptions=True)

# SPDX-License-Identifier: Apache-2.0
"""The other runtimes of an agent that is used as a tool: its runs are on the runtimes of the agents that call it.

They are remembered so that a run of the agent is found by its id. The references are weak: none is kept alive.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator

from andon.core.runtime import Runtime


class KnownRuntimes:
    """The runtimes, besides its own, on which an agent may have runs."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: tuple[weakref.ref[Runtime], ...] = ()  # replaced, never changed: threads may read it meanwhile

    def add(self, runtime: Runtime) -> bool:
        """False if it is known already."""
        known = [each for each in self._known if each() is not None]
        if any(each() is runtime for each in known):
            return False
        self._known = (*known, weakref.ref(runtime))
        return True

    def __iter__(self) -> Iterator[Runtime]:
        return iter([runtime for each in self._known if (runtime := each()) is not None])

    async def find(self, run_id: str, agent_id: str, own: Runtime) -> Runtime:
        """The runtime that has this run of the agent; the agent's own if none has it."""
        others = [runtime for runtime in self if runtime is not own]
        if others and not await _has(own, run_id, agent_id):
            for runtime in others:
                if await _has(runtime, run_id, agent_id):
                    return runtime
        return own


async def _has(runtime: Runtime, run_id: str, agent_id: str) -> bool:
    if (run := runtime.run(run_id)) is not None:
        return run.agent_id == agent_id
    record = None if runtime.store is None else await runtime.store.find(run_id)
    return record is not None and record.session.agent_id == agent_id

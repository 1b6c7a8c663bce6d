# SPDX-License-Identifier: Apache-2.0
"""The agents whose runs a server can be asked for: those that it serves, and those that they have as tools.

Runs are started of the first alone. A run of the others is a child of one of those, on the same runtime: it can be
listed, watched, cancelled and answered under its own id. What tools an agent has is looked up each time, so that one
that it was given later is known as well.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping

from andon.agent.agent import Agent
from andon.core.runtime import Runtime


class AgentDirectory:
    """Agents, and the runtimes on which their runs are."""

    def __init__(self, served: Mapping[str, Agent]) -> None:
        self._served = served

    def __iter__(self) -> Iterator[tuple[Agent, Runtime]]:
        """Those that are served come first; an agent that is used on several runtimes comes with each of them."""
        runtimes = {id(agent.runtime) for agent in self._served.values()}
        todo = deque((agent, agent.runtime) for agent in self._served.values())
        seen: set[tuple[int, int]] = set()
        while todo:
            agent, runtime = todo.popleft()
            if (id(agent), id(runtime)) in seen:
                continue
            seen.add((id(agent), id(runtime)))
            yield agent, runtime
            for each in agent.sub_agents:
                where = each.runtime if each.brought_runtime else runtime
                if id(where) in runtimes:  # else its runs are somewhere that this server knows nothing of
                    todo.append((each, where))

    @property
    def ids(self) -> list[str]:
        """The ids of all of them."""
        return list(dict.fromkeys(agent.id for agent, _ in self))

    def find(self, agent_id: str | None = None) -> list[Agent]:
        """The agents of this id, or all of them, each on the runtime that its runs are on.

        Of those that have the same id and the same runtime, only the first.
        """
        fitting = [(agent, runtime) for agent, runtime in self if agent_id in (None, agent.id)]
        first = {(agent.id, id(runtime)): (agent, runtime) for agent, runtime in reversed(fitting)}
        return [agent.on(runtime) for agent, runtime in reversed(first.values())]

    def count(self, agent: Agent) -> int:
        """How many agents have this one's id, on its runtime."""
        return sum(each.id == agent.id and runtime is agent.runtime for each, runtime in self)

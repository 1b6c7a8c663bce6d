# SPDX-License-Identifier: Apache-2.0
"""The agents of a server: those that it serves, and their sub-agents.

Requests can only start runs of served agents. A run of a sub-agent is a child of such a run, on the same runtime: it
can be listed, watched, cancelled and answered under its own id. The tools of an agent are read each time, so that tools
that were added later are found too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping

from andon.agent.agent import Agent
from andon.core.runtime import Runtime


class AgentDirectory:
    """The agents, each with the runtime of its runs."""

    def __init__(self, served: Mapping[str, Agent]) -> None:
        self._served = served

    def __iter__(self) -> Iterator[tuple[Agent, Runtime]]:
        """Served agents come first. An agent that is used on several runtimes comes once with each."""
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
                if id(where) in runtimes:  # else this server does not know the runtime of its runs
                    todo.append((each, where))

    @property
    def ids(self) -> list[str]:
        """The ids of all agents."""
        return list(dict.fromkeys(agent.id for agent, _ in self))

    def find(self, agent_id: str | None = None) -> list[Agent]:
        """The agents of this id, or all agents, each on the runtime of its runs.

        Of agents with the same id and the same runtime, only the first.
        """
        fitting = [(agent, runtime) for agent, runtime in self if agent_id in (None, agent.id)]
        first = {(agent.id, id(runtime)): (agent, runtime) for agent, runtime in reversed(fitting)}
        return [agent.on(runtime) for agent, runtime in reversed(first.values())]

    def count(self, agent: Agent) -> int:
        """How many agents have the id of this agent, on its runtime."""
        return sum(each.id == agent.id and runtime is agent.runtime for each, runtime in self)

# SPDX-License-Identifier: Apache-2.0
"""The systems, and the virtual environment that each has for itself: `make peers` makes them, in `.venv-peers`.

A system that could not be installed has no environment, but a file that says why.
"""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent.parent
HERE = Path("bench/peers")
ENVIRONMENTS = ROOT / ".venv-peers"

QUIET = {
    **os.environ,
    "AGNO_TELEMETRY": "false",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "LANGSMITH_TRACING": "false",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "PYTHONUNBUFFERED": "1",
}
"""Nothing is sent to other machines. Besides that, nothing is set."""


@dataclass(frozen=True)
class System:
    """A system under the name of its distribution."""

    name: str
    file: str
    """Its adapter: bench/peers/systems/<file>.py."""
    library: str
    """The requirement of the library with OpenAI's SDK, without a server: of this, the distributions are counted."""
    cancel: str
    """Its official cancel."""
    anthropic: bool = True

    @property
    def python(self) -> Path:
        return ENVIRONMENTS / self.name / "bin" / "python"

    @property
    def driver(self) -> list[str]:
        return [str(self.python), "-P", str(HERE / "driver.py"), str(HERE / "systems" / f"{self.file}.py")]

    @property
    def failure(self) -> str | None:
        """Why it could not be installed."""
        if (said := ENVIRONMENTS / self.name / "failed").exists():
            return said.read_text("utf-8").strip()[-300:]
        return None if self.python.exists() else "it is not installed: `make peers` does it"

    def versions(self) -> dict[str, str]:
        """Of all distributions in its environment."""
        return {each.name.lower(): each.version for each in self._distributions()}

    def version(self) -> str:
        return self.versions()[Requirement(self.library.split()[0]).name]

    def _distributions(self) -> Iterator[importlib.metadata.Distribution]:
        (site,) = (ENVIRONMENTS / self.name).glob("lib/python*/site-packages")
        return iter(list(importlib.metadata.distributions(path=[str(site)])))

    def distributions(self) -> int:
        """How many distributions its library needs, itself included."""
        found = {normal(each.name): each for each in self._distributions()}
        needed: set[str] = set()
        ahead = [Requirement(each) for each in self.library.split()]
        seen = set(map(str, ahead))
        while ahead:
            requirement = ahead.pop()
            distribution = found[normal(requirement.name)]
            needed.add(normal(requirement.name))
            for line in distribution.requires or ():
                further = Requirement(line)
                extras = requirement.extras or {""}
                wanted = further.marker is None or any(further.marker.evaluate({"extra": each}) for each in extras)
                if wanted and normal(further.name) in found and str(further) not in seen:
                    seen.add(str(further))
                    ahead.append(further)
        return len(needed)


def normal(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


SYSTEMS = [
    System("andon", "andon", "andon[openai]", "`run.cancel()`"),
    System("strands-agents", "strands", "strands-agents[openai]", "`agent.cancel()`"),
    System("agno", "agno", "agno[openai]", "`agent.acancel_run(run_id)`"),
    System("google-adk", "google_adk", "google-adk[openai]", "the `abort_signal` of `run_async`"),
    System("openai-agents", "openai_agents", "openai-agents", "`result.cancel()`", anthropic=False),
    System("pydantic-ai", "pydantic_ai", "pydantic-ai-slim[openai]", "`CancellationToken.cancel()`"),
    System(
        "langgraph",
        "langgraph",
        "langgraph langchain langchain-openai",
        "`task.cancel()` of asyncio: the library has none of its own",
    ),
]

# SPDX-License-Identifier: Apache-2.0
"""What an agent, and the call that started the run, bring to a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from andon.agent.context import ContextPolicy
from andon.agent.hooks import Hooks
from andon.agent.instructions import InstructionsFunction
from andon.agent.retry import Retry
from andon.core.store import Store
from andon.messages import Message
from andon.models.base import Model
from andon.tools.base import Tool
from andon.tools.source import ToolSource


class Plan(Struct, frozen=True):
    """What a run works with. It does not change while the run works; a resumed run may get a new one."""

    model: Model
    instructions: str | InstructionsFunction | None
    tools: Mapping[str, Tool]
    hooks: Hooks
    parallel_tools: bool
    retry: Retry
    store: Store
    deps: Any = None
    """What tools, hooks and instructions get as `deps`."""
    history: list[Message] | None = None
    """The messages that replace what the session has from before this run."""
    output_retries: int = 2
    context: ContextPolicy | None = None
    sources: Sequence[ToolSource] = ()
    """They are asked for more tools when the run begins. `tools` has those too, from then on."""

# SPDX-License-Identifier: Apache-2.0
"""The situations in which a run is cancelled, and what is looked at in each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.peers.scripts import CHILD, SPEAKS_AFTER


@dataclass(frozen=True)
class Moment:
    """When the cancel is called: at a state of the provider's answer, at a tool's beginning, or beside the run."""

    state: str = ""
    pieces: int = 0
    model: str | None = None
    tool: str = ""
    beside: str = ""
    """`before` its first step, or `late`, after its end."""


@dataclass(frozen=True)
class Situation:
    name: str
    title: str
    now: str
    """What the provider plays: `scripts.ANSWERS`."""
    moment: Moment
    tools: Sequence[str] = ("slow", "block", "quick")
    child: str | None = None
    """What the model of a child agent plays."""
    api: str = "openai"


WAIT = f"{SPEAKS_AFTER:.0f} s"
SITUATIONS = [
    Situation("silent", f"the model is silent for {WAIT}", "silent", Moment(state="paused")),
    Situation("streaming", "mid-stream, a token each 50 ms", "streaming", Moment(state="text", pieces=10)),
    Situation("stalled", f"the stream stalls for {WAIT}", "stalled", Moment(state="paused")),
    Situation("async tool", f"an async tool of {WAIT}", "async tool", Moment(tool="slow")),
    Situation("sync tool", f"a blocking sync tool of {WAIT}", "sync tool", Moment(tool="block")),
    Situation("three tools", "three calls of 2 s in one turn", "three tools", Moment(tool="slow")),
    Situation("two tools", "one call has finished, one goes on", "two tools", Moment(tool="slow")),
    Situation("child silent", "a child agent whose model is silent", "", Moment("paused", model=CHILD), child="silent"),
    Situation("child tool", f"a child agent with an async tool of {WAIT}", "", Moment(tool="slow"), child="async tool"),
    Situation("before", "before the run's first step", "short", Moment(beside="before")),
    Situation("late", "after the run's end", "short", Moment(beside="late")),
    Situation(
        "thinking", "during thinking (Anthropic)", "thinking", Moment(state="reasoning", pieces=4), api="anthropic"
    ),
]
BY_NAME = {situation.name: situation for situation in SITUATIONS}

# SPDX-License-Identifier: Apache-2.0
"""The record of a cancel that an exception interrupted (`broken`), which the stage keeps for the checks."""

from __future__ import annotations

from dataclasses import dataclass, field

from andon.core.run.run import LocalRun
from andon.core.states import CancelOutcome
from andon.testing.breaking import Trace


@dataclass
class Aftermath:
    """What a cancel that was broken off had done by then, and what has followed."""

    begun: int
    """How many runs had begun."""
    targets: list[LocalRun]
    """Whom it was meant for."""
    trace: Trace | None = None
    asked: list[LocalRun] = field(default_factory=list)
    """Who was cancelled by it, or more so than before, when it was broken off."""
    owed: list[LocalRun] = field(default_factory=list)
    """Who has to end as cancelled."""
    told: list[CancelOutcome] = field(default_factory=list)
    """What the call returned, if it came to its end after all."""
    told_next: list[CancelOutcome] = field(default_factory=list)
    """What the second cancel was told."""
    can_time_out: bool = False

# SPDX-License-Identifier: Apache-2.0
"""The record of a cancel that an exception interrupted (`broken`), which the stage keeps for the checks."""

from __future__ import annotations

from dataclasses import dataclass, field

from andon.core.run.run import LocalRun
from andon.core.states import CancelOutcome
from andon.testing.breaking import Trace


@dataclass
class Aftermath:
    """What an interrupted cancel had done by then, and what has followed."""

    begun: int
    """How many runs had begun."""
    targets: list[LocalRun]
    """The runs that it was to cancel."""
    trace: Trace | None = None
    asked: list[LocalRun] = field(default_factory=list)
    """The runs that it had cancelled, or had cancelled with a stronger mode, when it was interrupted."""
    owed: list[LocalRun] = field(default_factory=list)
    """The runs that must end as cancelled."""
    told: list[CancelOutcome] = field(default_factory=list)
    """What the call returned, if it was not interrupted after all."""
    told_next: list[CancelOutcome] = field(default_factory=list)
    """What the second cancel returned."""
    can_time_out: bool = False

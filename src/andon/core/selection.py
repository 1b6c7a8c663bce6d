# SPDX-License-Identifier: Apache-2.0
"""Which runs a cancel or a block concerns, and the entries that record cancels and blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from andon.core.receipt import CancelRequest
from andon.core.records import SessionKey
from andon.core.states import CancelOutcome, RunStatus
from andon.errors import BlockedError


class Selection(Struct, frozen=True):
    """Selects the runs that match all given fields. With no field given, it selects all runs."""

    run_id: str | None = None
    session_id: str | None = None
    user_id: str | None = None
    agent_id: str | None = None
    statuses: Sequence[RunStatus] = ()


class Outcomes(dict[str, CancelOutcome]):
    """The outcome of a cancel for each run, by run id."""

    stored = True
    """A shared store has stored the cancel. If not, this process has stopped the run, and tells the store later."""
    has_orphans = False
    """Some of the runs may have no worker that ends them: they are paused, or their worker is gone."""


BlockKind = Literal["user", "agent"]


class Block(Struct, frozen=True):
    """New runs of this user, or of this agent, are refused. Paused runs can't continue."""

    kind: BlockKind
    id: str
    by: str | None = None
    reason: str | None = None
    at: float = 0.0

    def refusal(self) -> BlockedError:
        """The error for a caller that wants to start such a run."""
        why = f" ({self.reason})" if self.reason else ""
        return BlockedError(f"runs of {self.kind} {self.id!r} are blocked{why}, until they are unblocked")


class CancelEntry(Struct, frozen=True):
    """An entry of the cancel log: which run was cancelled, by which request."""

    run_id: str
    request: CancelRequest
    session: SessionKey | None = None
    """The user and the agent of the run."""

    def fits(self, which: Selection) -> bool:
        asked = (which.agent_id, which.user_id, which.session_id)
        known = self.session or (None, None, None)
        return which.run_id in (None, self.run_id) and all(
            want is None or want == have for want, have in zip(asked, known, strict=True)
        )

# SPDX-License-Identifier: Apache-2.0
"""Which runs a cancel or a block is about, and what is on record of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from andon.core.receipt import CancelRequest
from andon.core.records import SessionKey
from andon.core.states import CancelOutcome, RunStatus
from andon.errors import BlockedError


class Selection(Struct, frozen=True):
    """Which runs: those that fit all that is given. With nothing given, all of them."""

    run_id: str | None = None
    session_id: str | None = None
    user_id: str | None = None
    agent_id: str | None = None
    statuses: Sequence[RunStatus] = ()


class Outcomes(dict[str, CancelOutcome]):
    """What a cancel has achieved, by run."""

    stored = True
    """Does a shared store know of it? If not, this process has stopped the run, and tells the store when it can."""
    nobodys = False
    """Nobody may hold some of them, who would end them: they are paused, or their holder is gone."""


BlockKind = Literal["user", "agent"]


class Block(Struct, frozen=True):
    """New runs of this user, or of this agent, are refused; those that are paused can't go on."""

    kind: BlockKind
    id: str
    by: str | None = None
    reason: str | None = None
    at: float = 0.0

    def refusal(self) -> BlockedError:
        """What whoever wants to start one is told."""
        why = f" ({self.reason})" if self.reason else ""
        return BlockedError(f"runs of {self.kind} {self.id!r} are blocked{why}, until someone unblocks them")


class CancelEntry(Struct, frozen=True):
    """Who asked for which run to be cancelled."""

    run_id: str
    request: CancelRequest
    session: SessionKey | None = None
    """Whose run it was, and of which agent."""

    def fits(self, which: Selection) -> bool:
        asked = (which.agent_id, which.user_id, which.session_id)
        known = self.session or (None, None, None)
        return which.run_id in (None, self.run_id) and all(
            want is None or want == have for want, have in zip(asked, known, strict=True)
        )

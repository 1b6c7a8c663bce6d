# SPDX-License-Identifier: Apache-2.0
"""How a process stands to a run in a shared store, and the legal steps from one state to the next."""

from __future__ import annotations

from enum import Enum

from andon.errors import IllegalTransitionError


class LeaseState(Enum):
    """How this process stands to the run in the store."""

    outside = "not entered into the store yet"
    held = "this process may write the run"
    pausing = "the store is being asked to take the run's pause"
    paused = "the pause is stored, and the lease given up: any process may claim the run"
    claiming = "the store is being asked for the lease again"
    unsure = "it was asked, and its answer is not known"
    finishing = "the store is being asked to take the run's end"
    finishing_paused = "the same for a paused run: there is no lease, and another process may claim it first"
    elsewhere = "another process has the run"
    released = "the run is over for this process"

    __hash__ = object.__hash__  # an Enum's own is written in Python, and slow

    @property
    def is_closing(self) -> bool:
        """The store is being asked to take the run's end, or its pause."""
        return self in _CLOSING

    @property
    def is_unknown(self) -> bool:
        """It was asked for the lease, and its answer is not known; or the task that asked was stopped."""
        return self is LeaseState.unsure or self is LeaseState.claiming

    @property
    def may_be_elsewhere(self) -> bool:
        """Another process may have the run: only the store knows."""
        return self in _MAY_BE_ELSEWHERE


_S = LeaseState
_CLOSING = frozenset({_S.pausing, _S.finishing, _S.finishing_paused})
_MAY_BE_ELSEWHERE = frozenset({_S.pausing, _S.paused, _S.claiming, _S.unsure, _S.finishing_paused, _S.elsewhere})
LEASE_STEPS: dict[LeaseState, frozenset[LeaseState]] = {
    _S.outside: frozenset({_S.held, _S.released}),
    _S.held: frozenset({_S.held, _S.pausing, _S.claiming, _S.unsure, _S.finishing, _S.elsewhere, _S.released}),
    _S.pausing: frozenset({_S.held, _S.paused, _S.finishing, _S.finishing_paused, _S.elsewhere, _S.released}),
    _S.paused: frozenset({_S.claiming, _S.finishing_paused, _S.elsewhere, _S.released}),
    _S.claiming: frozenset({_S.claiming, _S.held, _S.paused, _S.unsure, _S.elsewhere, _S.released}),
    _S.unsure: frozenset({_S.claiming, _S.elsewhere, _S.released}),
    _S.finishing: frozenset({_S.finishing, _S.released}),
    _S.finishing_paused: frozenset({_S.finishing_paused, _S.released}),
    _S.elsewhere: frozenset({_S.claiming, _S.finishing_paused, _S.released}),
    _S.released: frozenset({_S.released}),
}
"""The legal steps."""


def check_lease_step(before: LeaseState, after: LeaseState) -> None:
    """Raise for a step that the table does not have."""
    if after not in LEASE_STEPS[before]:
        raise IllegalTransitionError(f"a lease can't go from {before.name} to {after.name}")

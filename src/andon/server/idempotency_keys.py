# SPDX-License-Identifier: Apache-2.0
"""Idempotency keys in memory, for a store that is not shared. (A shared store keeps the keys with the runs.)

Later keys of a user replace the oldest keys of that user, never those of another user. All keys expire, so that the
keys of users who never come back do not stay in memory.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import NamedTuple

from andon.core.records import RequestKey
from andon.core.shared.store import KeyUse

KEYS_OF_A_USER = 1_000
SECONDS_KEPT = 24 * 3600.0


class _Kept(NamedTuple):
    use: KeyUse
    at: float


class IdempotencyKeys:
    """The run of each key, by user."""

    def __init__(self) -> None:
        self._users: OrderedDict[str | None, OrderedDict[tuple[str, str], _Kept]] = OrderedDict()
        """Users and keys in the order of their last use."""

    def find(self, agent_id: str, user_id: str | None, key: str) -> KeyUse | None:
        theirs = self._users.get(user_id)
        kept = None if theirs is None else theirs.get((agent_id, key))
        return None if kept is None or kept.at < time.monotonic() - SECONDS_KEPT else kept.use

    def keep(self, agent_id: str, user_id: str | None, wanted: RequestKey, run_id: str, after: int) -> None:
        now = time.monotonic()
        theirs = self._users.setdefault(user_id, OrderedDict())
        theirs.pop((agent_id, wanted.key), None)
        theirs[agent_id, wanted.key] = _Kept(KeyUse(run_id, wanted.said, after), now)
        self._users.move_to_end(user_id)
        while len(theirs) > KEYS_OF_A_USER or _oldest(theirs) < now - SECONDS_KEPT:
            theirs.popitem(last=False)
        while _newest(next(iter(self._users.values()))) < now - SECONDS_KEPT:  # stops at this user at the latest
            self._users.popitem(last=False)

    def __len__(self) -> int:
        return sum(map(len, self._users.values()))


def _oldest(theirs: OrderedDict[tuple[str, str], _Kept]) -> float:
    return next(iter(theirs.values())).at


def _newest(theirs: OrderedDict[tuple[str, str], _Kept]) -> float:
    return next(reversed(theirs.values())).at

# SPDX-License-Identifier: Apache-2.0
"""Whether there is room for one more thread of a sync tool: threads that cancels have left behind are counted.

One user can't take all of that room from the others: each has a share of it, and what one has beyond that share takes
nothing from anybody else's. Runs without a user are counted as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from andon.core.bounds import Bounds
    from andon.core.run.tool_call import CallScope


def crowd(abandoned: Iterable[CallScope], user_id: str | None, bounds: Bounds) -> tuple[int, str]:
    """How many of these threads are too many for another one of this user's, 0 if there is room; and what bounds it."""
    counts = Counter(scope.run.user_id for scope in abandoned)
    share = bounds.abandoned_user_threads
    if user_id is not None and counts[user_id] >= share:
        return counts[user_id], "abandoned_user_threads"
    total = sum(count if whose is None else min(count, share) for whose, count in counts.items())
    return (total, "abandoned_threads") if total >= bounds.abandoned_threads else (0, "")

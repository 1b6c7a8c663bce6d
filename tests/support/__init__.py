# SPDX-License-Identifier: Apache-2.0
"""What the tests share: flags that wake any thread or loop, model items that report, and what holds for every cut run.

No test sleeps and hopes: each waits for a flag, and the guard of `play` turns a hang into a failure.
"""

from tests.support.again import times
from tests.support.checks import (
    Ended,
    all_with,
    asked,
    check_cancelled,
    check_events,
    check_goes_on,
    check_paused,
    cut,
    make,
    outcomes,
    paused,
    read_all,
    record_of,
    results_of,
)
from tests.support.flags import HANG, Flag, Worker, eventually, forever, until
from tests.support.guard import play
from tests.support.items import Do, Hold, Piece, Reach, Silence
from tests.support.trace import interrupted

__all__ = [
    "HANG",
    "Do",
    "Ended",
    "Flag",
    "Hold",
    "Piece",
    "Reach",
    "Silence",
    "Worker",
    "all_with",
    "asked",
    "check_cancelled",
    "check_events",
    "check_goes_on",
    "check_paused",
    "cut",
    "eventually",
    "forever",
    "interrupted",
    "make",
    "outcomes",
    "paused",
    "play",
    "read_all",
    "record_of",
    "results_of",
    "times",
    "until",
]

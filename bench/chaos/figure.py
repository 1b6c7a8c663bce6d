# SPDX-License-Identifier: Apache-2.0
"""Several servers on one database that are killed, stopped and cut off from it: the number of faults.

One round of `python -m bench.chaos` for each database. `cancels` counts the acknowledged cancels, and `troubles` the
kills, stops and cuts. `docs/storage.md` describes the test, and what counts as a fault.
"""

from __future__ import annotations

import asyncio
import secrets

from bench.chaos.checks import ENDLESS, LOST, REJECTED, TWO_ENDS
from bench.chaos.servers import DATABASES
from bench.chaos.trial import Outcome, hold
from bench.report import Figure, Goal, Progress, Row

SERVERS, RUNS, CUTS = 3, 1_000, 4
QUICK_SERVERS, QUICK_RUNS, QUICK_CUTS = 2, 5, 0
QUICK_DATABASES = DATABASES[:1]
"""The tests hold longer trials on all of them: tests/shared_store/test_chaos.py."""
ZERO = ("cancels_lost", "without_one_end", "sessions_rejected", "other_faults")


def _values(outcome: Outcome) -> dict[str, float]:
    named = {
        "cancels_lost": len(outcome.faults[LOST]),
        "without_one_end": len(outcome.faults[TWO_ENDS]) + len(outcome.faults[ENDLESS]),
        "sessions_rejected": len(outcome.faults[REJECTED]),
    }
    troubles = sum(count for name, count in outcome.counts.items() if name.startswith(("kills", "stops", "cuts")))
    return {
        "runs": outcome.counts["runs"],
        "cancels": outcome.counts["cancels acknowledged"],
        "troubles": troubles,
        **named,
        "other_faults": sum(map(len, outcome.faults.values())) - sum(named.values()),
    }


def measure(quick: bool, progress: Progress) -> Figure:
    servers, runs, cuts = (QUICK_SERVERS, QUICK_RUNS, QUICK_CUTS) if quick else (SERVERS, RUNS, CUTS)
    kinds = QUICK_DATABASES if quick else DATABASES
    figure = Figure("chaos", f"{runs:,} runs and more on {servers} servers in trouble; faults")
    for number, kind in enumerate(kinds, 1):
        progress(number, len(kinds), kind)
        outcome = asyncio.run(hold(kind, servers, runs, secrets.token_hex(3), cuts=cuts))
        figure.rows.append(Row(kind, _values(outcome), [Goal(name, 0) for name in ZERO]))
    return figure

# SPDX-License-Identifier: Apache-2.0
"""The command line of the trial."""

from __future__ import annotations

import argparse
import asyncio
import secrets
import shutil
import signal
import sys
import time

from bench.chaos.load import hold_load
from bench.chaos.servers import DATABASES
from bench.chaos.trial import Outcome, hold, hold_with_workers


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.chaos",
        description="Runs on several servers, which are killed, stopped and cut off from their database at random.",
    )
    parser.add_argument("--db", choices=(*DATABASES, "both"), default="both", help="which database (%(default)s)")
    parser.add_argument("--servers", type=int, choices=(2, 3), default=3, help="how many of them (%(default)s)")
    parser.add_argument(
        "--workers", type=int, default=0, help="so many worker processes execute the runs; only with Postgres"
    )
    parser.add_argument("--redis", action="store_true", help="with --workers: through a Redis, which is lost too")
    parser.add_argument("--runs", type=int, default=1000, help="how many runs in a round (%(default)s)")
    parser.add_argument("--cuts", type=int, default=4, help="how often one loses its database at first (%(default)s)")
    parser.add_argument("--seconds", type=float, default=0, help="begin new rounds for so long; otherwise one is held")
    parser.add_argument("--seed", default="", help="what chance goes by, of the clients and troubles at least")
    parser.add_argument("--load", action="store_true", help="no troubles, but more work than a server can take at once")
    parser.add_argument("--case", default="", help="with --load: those cases alone that have this in their name")
    options = parser.parse_args()
    if options.redis and not options.workers:
        parser.error("--redis is for --workers")
    if options.redis and shutil.which("redis-server") is None:
        parser.error("there is no redis-server: `make redis` installs it")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # not without taking the servers along
    kinds: tuple[str, ...] = DATABASES if options.db == "both" else (options.db,)
    if options.workers:
        kinds = ("postgres",)
    if options.load:
        return 0 if hold_load(kinds, options.case) else 1
    seed, began, number, sound = options.seed or secrets.token_hex(3), time.monotonic(), 0, True
    totals = {kind: Outcome() for kind in kinds}
    while number == 0 or time.monotonic() - began < options.seconds:
        number += 1
        for kind, total in totals.items():
            named = f"{seed}-{number}"
            if options.workers:
                outcome = asyncio.run(
                    hold_with_workers(options.servers, options.workers, options.runs, named, with_redis=options.redis)
                )
            else:
                outcome = asyncio.run(hold(kind, options.servers, options.runs, named, cuts=options.cuts))
            total.add(outcome)
            workers = f", {options.workers} workers" if options.workers else ""
            workers += ", with Redis" if options.redis else ""
            print(f"{kind}, {options.servers} servers{workers}, seed {seed}, round {number}, all in all:", flush=True)
            print(total.show(), end="\n\n", flush=True)
            sound = sound and outcome.sound
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())

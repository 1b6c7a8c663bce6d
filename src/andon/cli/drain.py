# SPDX-License-Identifier: Apache-2.0
"""`andon drain`: stop a worker process, and let its runs finish."""

from __future__ import annotations

import argparse
import time
from contextlib import closing
from typing import Any

from andon.cli.command_error import CommandError, Exit
from andon.cli.options import add_parser, seconds, text
from andon.cli.report import to_json
from andon.cli.run_source import RunSource, add_source_options, open_run_source
from andon.cli.terminal import note
from andon.scale.overview import WorkerLine

WAIT = 60.0
LOOK_SECONDS = 0.5
"""How often to look whether it has gone: there is no news of that."""

MORE = """
The worker takes no more runs. Those that it has may finish, for as long as its --drain says; then they are cancelled,
and the worker ends. If something starts it again, such as systemd or Kubernetes, that is a new worker.
"""

EXAMPLES = """
  andon drain web-1:812
  andon drain web-1:812 --wait 120 --db postgresql://andon@db/andon
"""


def add(commands: Any) -> None:
    parser = add_parser(commands, "drain", "stop a worker process", __doc__, MORE.strip(), EXAMPLES)
    parser.add_argument("worker", type=text, metavar="WORKER", help="its name; `andon ps --workers` lists them")
    parser.add_argument(
        "--wait", type=seconds, nargs="?", const=WAIT, metavar="SECONDS", help=f"until it has ended ({WAIT:g})"
    )
    parser.add_argument("--json", action="store_true", help="an object, on one line")
    add_source_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    name = options.worker
    with closing(open_run_source(options)) as source:
        before = _find(source, name)
        if before is None or not source.drain(name):
            raise CommandError(
                f"there is no worker {name!r} at {source.name}; `andon ps --workers` lists them", Exit.failed
            )
        if not options.json:
            note(_asked(before))
        left = before if options.wait is None else _wait(source, before, options.wait)
    if options.json:
        print(to_json({"worker": name, "draining": True, "gone": left is None}))
    elif left is None:
        note(f"worker {name} has ended")
    if options.wait is None or left is None:
        return Exit.ok
    if left.state == "silent":
        raise CommandError(
            f"worker {name!r} has not reported for {left.silence:.0f} s: it is dead, or can't reach the database. Look "
            "at its process and its log. If it does not come back, its runs end when their leases expire",
            Exit.failed,
        )
    raise CommandError(
        f"worker {name!r} has not ended within {options.wait:g} s; it is still draining. `andon ps` shows its runs; "
        "the same command waits again",
        Exit.failed,
    )


def _asked(worker: WorkerLine) -> str:
    """What happens now."""
    if worker.state == "silent":
        return f"worker {worker.name} has not reported for {worker.silence:.0f} s; it will drain if it comes back"
    held = f"{worker.runs} {'run' if worker.runs == 1 else 'runs'}"
    return f"worker {worker.name} takes no more runs, and ends when it has none; it has {held} now"


def _find(source: RunSource, name: str) -> WorkerLine | None:
    return next((each for each in source.workers().workers if each.name == name), None)


def _wait(source: RunSource, before: WorkerLine, most: float) -> WorkerLine | None:
    """None if it has ended in time. A worker of the same name that was started later is another one."""
    until = time.monotonic() + most
    while True:
        now = _find(source, before.name)
        if now is None or now.started_at != before.started_at:
            return None
        left = until - time.monotonic()
        if now.state == "silent" or left <= 0:
            return now
        time.sleep(min(left, LOOK_SECONDS))

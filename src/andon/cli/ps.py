# SPDX-License-Identifier: Apache-2.0
"""`andon ps`: list the runs that have not ended, or the worker processes."""

from __future__ import annotations

import argparse
import sys
from contextlib import closing
from typing import Any

from andon.cli.command_error import CommandError, Exit
from andon.cli.options import add_parser, count, text
from andon.cli.report import RunLine, to_json
from andon.cli.run_source import LIVE, add_source_options, open_run_source
from andon.cli.terminal import Column, age, note, table
from andon.core.selection import Selection
from andon.scale.overview import QueueLine, WorkerLine

EXAMPLES = """
  andon ps
  andon ps --all --agent storyteller
  andon ps --url https://agents.example.com --token "$TOKEN"
  andon ps --workers
  andon ps --json | jq -r '.[] | select(.status == "PAUSED").run_id'
"""

COLUMNS = [
    Column("RUN", 8, 9),
    Column("AGENT", 8, 7),
    Column("STATUS", 10, 8),
    Column("PHASE", 9, 4),
    Column("SESSION", 8, 3),
    Column("USER", 6, 2),
    Column("AGE", 3, 5),
]
HELD_BY = Column("HELD BY", 8, 6)
"""Which process executes it. The column is left out if no run has one."""

WORKERS = [
    Column("WORKER", 24, 9),  # `andon drain` needs all of it, and it ends with the process id
    Column("STATE", 10, 8),
    Column("RUNS", 5, 7),
    Column("QUEUES", 6, 4),
    Column("AGENTS", 6, 3),
    Column("UP", 3, 5),
]
QUEUES = [
    Column("QUEUE", 6, 9),
    Column("AGENT", 6, 5),
    Column("READY", 5, 8),
    Column("HELD BACK", 9, 4),
    Column("LAG", 5, 7),
    Column("WORKERS", 7, 6),
]


def add(commands: Any) -> None:
    parser = add_parser(commands, "ps", "list runs", __doc__, examples=EXAMPLES)
    parser.add_argument("--all", "-a", action="store_true", help="also those that have ended, as far as they are kept")
    parser.add_argument("--workers", action="store_true", help="worker processes and queues instead of runs")
    add_filters(parser)
    parser.add_argument("--limit", type=count, default=100, metavar="N", help="the newest N runs (%(default)s)")
    parser.add_argument("--json", action="store_true", help="a list of objects, on one line; with --workers an object")
    add_source_options(parser)
    parser.set_defaults(run=run)


def add_filters(parser: Any) -> None:
    parser.add_argument("--session", type=text, metavar="ID", help="the runs of this session")
    parser.add_argument("--user", type=text, metavar="ID", help="the runs of this user")
    parser.add_argument("--agent", type=text, metavar="ID", help="the runs of this agent")


def run(options: argparse.Namespace) -> int:
    if options.workers:
        return _show_workers(options)
    statuses = () if options.all else LIVE
    which = Selection(None, options.session, options.user, options.agent, statuses)
    with closing(open_run_source(options)) as source:
        lines = source.runs(which, options.limit + 1)
    lines, more = lines[: options.limit], len(lines) > options.limit
    if options.json:
        print(to_json(lines))
        return Exit.ok
    if lines:
        if any(line.held_by for line in lines):
            print(table([*COLUMNS, HELD_BY], [[*_row(line), line.held_by or "-"] for line in lines], sys.stdout))
        else:
            print(table(COLUMNS, [_row(line) for line in lines], sys.stdout))
    else:
        note(f"no runs at {source.name}{'' if options.all else ' now; --all lists those that have ended too'}")
    if more:
        note(f"there are more than {options.limit}: --limit shows them")
    return Exit.ok


def _row(line: RunLine) -> list[str]:
    phase = "" if line.phase is None or line.status.final else str(line.phase)
    return [
        line.run_id,
        line.agent_id,
        line.status.name,
        phase or "-",
        line.session_id,
        line.user_id or "-",
        age(line.created_at),
    ]


def _show_workers(options: argparse.Namespace) -> int:
    if options.all or options.session or options.user or options.agent:
        raise CommandError("--workers lists processes: leave out --all, --session, --user and --agent", Exit.usage)
    with closing(open_run_source(options)) as source:
        found = source.workers()
    if options.json:
        print(to_json(found))
        return Exit.ok
    if found.workers:
        print(table(WORKERS, [_worker_row(each) for each in found.workers], sys.stdout))
    else:
        note(f"no workers at {source.name}: `andon worker` starts one; it needs Postgres")
    if found.queues:
        between = "\n" if found.workers else ""
        print(between + table(QUEUES, [_queue_row(each) for each in found.queues], sys.stdout))
    else:
        note("no runs wait")
    return Exit.ok


def _worker_row(worker: WorkerLine) -> list[str]:
    return [
        worker.name,
        f"silent {worker.silence:.0f}s" if worker.state == "silent" else worker.state,
        f"{worker.runs}/{worker.concurrency}",
        ",".join(worker.queues),
        ",".join(worker.agents),
        age(worker.started_at),
    ]


def _queue_row(queue: QueueLine) -> list[str]:
    lag = f"{queue.lag:.1f}s" if queue.ready else "-"
    return [queue.queue, queue.agent_id, str(queue.ready), str(queue.held_back), lag, str(queue.workers or "none")]

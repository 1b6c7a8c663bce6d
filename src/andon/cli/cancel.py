# SPDX-License-Identifier: Apache-2.0
"""`andon cancel RUN`: ask a run, or many, to go no further; with --wait, until all of it is gone."""

from __future__ import annotations

import argparse
import sys
from contextlib import closing
from typing import Any

from andon.cli.command_error import CommandError, Exit
from andon.cli.login import login_name
from andon.cli.options import add_parser, duration, text
from andon.cli.ps import add_filters
from andon.cli.report import Cancelled, to_json
from andon.cli.run_source import RunSource, add_source_options, find_run, open_run_source
from andon.cli.terminal import Column, note, one_line, receipt_of, styled, table
from andon.core.receipt import CancelRequest
from andon.core.selection import Selection
from andon.core.states import CancelCause, CancelMode, RunStatus

WAIT_SECONDS = 10.0

MORE = """The exit code is 0 if the runs are, or will be, cancelled; 1 if there was nothing to cancel, or if a run had
ended in another way before, or has not ended within --wait."""

EXAMPLES = """
  andon cancel 3f2a --wait              (the beginning of an id will do)
  andon cancel --session s1 --reason "wrong file"
  andon cancel --agent storyteller --mode after_tools --grace 30
  andon cancel --user ada --block       (and refuse new ones)
  andon cancel --all
"""


def add(commands: Any) -> None:
    parser = add_parser(commands, "cancel", "cancel runs", __doc__, MORE, EXAMPLES)
    group = parser.add_argument_group("which", "one run; or all that fit every option that is given")
    group.add_argument("id", type=text, nargs="?", metavar="RUN", help="the run's id, or how it begins")
    add_filters(group)
    group.add_argument("--all", action="store_true", help="all runs there are")
    group = parser.add_argument_group("how")
    modes = [mode.value for mode in reversed(CancelMode)]
    group.add_argument("--mode", choices=modes, default="now", help="what may still finish (%(default)s: nothing)")
    group.add_argument("--grace", type=duration, metavar="SECONDS", help="after this time, the mode becomes `now`")
    group.add_argument("--force", action="store_true", help='cut calls too whose tools say on_cancel="finish"')
    group.add_argument("--reason", help="why; it is kept in the receipt")
    group.add_argument("--block", action="store_true", help="refuse new runs of that --user or --agent")
    group.add_argument(
        "--wait",
        type=duration,
        nargs="?",
        const=WAIT_SECONDS,
        metavar="SECONDS",
        help=f"until all is gone, or named in the receipt ({WAIT_SECONDS:g})",
    )
    parser.add_argument("--json", action="store_true", help="a list of objects, on one line")
    add_source_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    several = bool(options.session or options.user or options.agent or options.all)
    if several == bool(options.id):
        raise CommandError("say which runs: an id, or --session, --user, --agent, or --all")
    if options.all and (options.session or options.user or options.agent):
        raise CommandError("--all means all runs: leave it out, or leave the others out")
    if options.block and (bool(options.user) == bool(options.agent) or options.session):
        raise CommandError(
            "--block refuses new runs of a user or of an agent: give --user or --agent, and nothing else"
        )
    if options.force and (options.mode != "now" or options.grace is not None):
        raise CommandError("--force cuts everything at once: leave out --mode and --grace, or leave out --force")
    request = CancelRequest.make(
        CancelCause.user, options.reason, login_name(), options.mode, options.grace, options.force
    )
    with closing(open_run_source(options)) as source:
        which = Selection(None, options.session, options.user, options.agent)
        if options.id:
            found = find_run(source, options.id)
            which = Selection(found.run_id, agent_id=found.agent_id)
        cancelled = source.cancel(which, request, wait=options.wait, block=options.block)
    return _tell(options, source, cancelled)


def _tell(options: argparse.Namespace, source: RunSource, cancelled: list[Cancelled]) -> Exit:
    if options.json:
        print(to_json(cancelled))
    elif not cancelled:
        note(f"nothing to cancel at {source.name}")
    elif len(cancelled) > 1:
        columns = [Column("RUN", 8, 3), Column("OUTCOME", 9, 2), Column("STATUS", 9, 1), Column("LEFT OVER", 8, 0)]
        print(table(columns, [_row(each) for each in cancelled], sys.stdout))
    else:
        _tell_one(cancelled[0])
    if waiting := [each for each in cancelled if not _is_over(each, options.wait)]:
        ids = ", ".join(each.run_id for each in waiting)
        note(f"asked, but not ended within {options.wait:g} s: {ids}", "yellow")
    if options.block and not options.json:
        blocked = f"--user {options.user}" if options.user else f"--agent {options.agent}"
        note(f"new runs are refused; to take them again: andon unblock {blocked}", "yellow")
    well = cancelled and all(_is_well(each, options.wait) for each in cancelled)
    return Exit.ok if well or (options.block and not cancelled) else Exit.failed


def _is_well(each: Cancelled, wait: float | None) -> bool:
    """Whether it is, or will be, cancelled; with --wait, whether it has ended."""
    return _is_over(each, wait) and (bool(each.outcome) or each.status is RunStatus.cancelled)


def _is_over(each: Cancelled, wait: float | None) -> bool:
    return wait is None or each.status is None or each.status.final


def _row(each: Cancelled) -> list[str]:
    left = "" if each.receipt is None else ", ".join(each.receipt.leftovers) or "nothing"
    return [each.run_id, each.outcome.name, "-" if each.status is None else each.status.name, left or "-"]


def _tell_one(each: Cancelled) -> None:
    status = "" if each.status is None else f"; it is {each.status.name}"
    outcome = styled(each.outcome.name, "green" if each.outcome else "yellow", sys.stdout)
    print(f"{one_line(each.run_id)}: {outcome}{status}")
    if each.receipt is not None:
        print(receipt_of(each.receipt, sys.stdout))

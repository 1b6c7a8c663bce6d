# SPDX-License-Identifier: Apache-2.0
"""`andon watch RUN`: follow a run from its first event to its end, wherever it runs."""

from __future__ import annotations

import argparse
from contextlib import closing
from typing import Any

from andon.cli.command_error import CommandError, Exit
from andon.cli.event_printer import EventPrinter
from andon.cli.options import add_parser, text
from andon.cli.questions import explain_pause
from andon.cli.report import Report
from andon.cli.run_source import RunSource, add_source_options, continue_arguments, find_run, open_run_source
from andon.cli.stdout_watch import exit_when_stdout_closes
from andon.cli.terminal import note
from andon.core.events import Event
from andon.core.states import RunStatus

MORE = """Watching changes nothing: Ctrl-C stops the watching, and the run goes on. A connection that breaks is made
again. The exit code is the run's: 0 completed, 1 failed, 3 cancelled, 4 paused."""

EXAMPLES = """
  andon watch 3f2a                      (the beginning of an id will do)
  andon watch 3f2a --json | jq -r .event
"""


def add(commands: Any) -> None:
    parser = add_parser(commands, "watch", "follow a run", __doc__, MORE, EXAMPLES)
    parser.add_argument("id", type=text, metavar="RUN", help="the run's id, or how it begins")
    group = parser.add_argument_group("what is shown")
    group.add_argument("--quiet", "-q", action="store_true", help="only the text, errors and receipts")
    group.add_argument("--json", action="store_true", help="each event as a line of JSON, the result last")
    add_source_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    printer = EventPrinter(as_json=options.json, quiet=options.quiet, owner=False)
    with closing(open_run_source(options)) as source:
        watched = find_run(source, options.id)
        last: Event | None = None
        exit_when_stdout_closes()
        try:
            for event in source.events(watched):
                printer.print_event(event, watched.run_id)
                last = event
        except CommandError:
            printer.end_line()
            raise
        except KeyboardInterrupt:
            printer.end_line()
            note(f"andon: the run goes on; andon cancel {watched.run_id} would end it")
            raise
        return finish(options, source, latest(source, watched, last), printer)


def finish(options: argparse.Namespace, source: RunSource, report: Report, printer: EventPrinter) -> Exit:
    """Print the end; for a pause, also how to continue."""
    code = printer.print_end(report)
    return explain_pause(report, continue_arguments(options, source)) if report.status is RunStatus.paused else code


def latest(source: RunSource, run: Report, last: Event | None) -> Report:
    """The current state of a run; if the source no longer has it, the state in its last event."""
    run_id = run.run_id if last is None else last.run_id
    try:
        report = source.look(run_id)
    except CommandError:
        report = None
    if report is not None:
        return report
    return run if last is None else Report.of_event(last)

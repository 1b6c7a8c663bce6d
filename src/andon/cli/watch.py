# SPDX-License-Identifier: Apache-2.0
"""`andon watch RUN`: follow a run from its first event to its end, wherever it runs."""

from __future__ import annotations

import argparse
from contextlib import closing
from typing import Any

from andon.cli.asking import explain_pause
from andon.cli.mistake import Exit, Mistake
from andon.cli.options import add_parser, text
from andon.cli.person import leave_with_reader
from andon.cli.place import Place, add_where, find, how_to_go_on, open_place
from andon.cli.report import Report
from andon.cli.show import note
from andon.cli.telling import Teller
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
    add_where(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    teller = Teller(as_json=options.json, quiet=options.quiet, owner=False)
    with closing(open_place(options)) as place:
        watched = find(place, options.id)
        last: Event | None = None
        leave_with_reader()
        try:
            for event in place.events(watched):
                teller.tell(event, watched.run_id)
                last = event
        except Mistake:
            teller.break_off()
            raise
        except KeyboardInterrupt:
            teller.break_off()
            note(f"andon: the run goes on; andon cancel {watched.run_id} would end it")
            raise
        return finish(options, place, latest(place, watched, last), teller)


def finish(options: argparse.Namespace, place: Place, report: Report, teller: Teller) -> Exit:
    """Tell the end; and if it is a pause, how to go on."""
    code = teller.end(report)
    return explain_pause(report, how_to_go_on(options, place)) if report.status is RunStatus.paused else code


def latest(place: Place, run: Report, last: Event | None) -> Report:
    """How it stands with a run now; if nobody can say any more, what its last event said."""
    run_id = run.run_id if last is None else last.run_id
    try:
        report = place.look(run_id)
    except Mistake:
        report = None
    if report is not None:
        return report
    return run if last is None else Report.of_event(last)

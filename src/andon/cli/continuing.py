# SPDX-License-Identifier: Apache-2.0
"""`andon continue RUN`: answer a paused run's questions, or go on with one that was cut."""

from __future__ import annotations

import argparse
import shlex
import signal
from collections.abc import Iterator
from contextlib import closing
from typing import Any

from andon.cli.asking import Answers, ask, can_ask, explain_pause, given, on_the_wire
from andon.cli.driving import Hands, drive
from andon.cli.mistake import Exit, Mistake
from andon.cli.options import add_parser, database_of, text, without_secrets
from andon.cli.person import leave_with_reader, who
from andon.cli.place import Place, add_where, find, how_to_go_on, open_place, server_that_has
from andon.cli.report import Report, to_json
from andon.cli.run import add_telling, conclude, find_agent
from andon.cli.show import note
from andon.cli.telling import CTRL_C, Teller
from andon.cli.watch import finish, latest
from andon.core.events import Event
from andon.core.receipt import CancelRequest
from andon.core.run.run import Run
from andon.core.selection import Selection
from andon.core.states import CancelCause, RunStatus

MORE = """A paused run goes on under its own id. One that was cancelled, failed or was lost goes on from where it was
cut, as a new run. It is followed to its end, and Ctrl-C cancels it, as in `andon run`. Questions that no option
answers are asked at the terminal. On a database alone, name the agent too: it is run here."""

EXAMPLES = """
  andon continue 3f2a                                   (asks what is open)
  andon continue 3f2a --answer call_1-1=true
  andon continue 3f2a --deny call_1-1="not that file"
  andon continue 3f2a main:agent --db sqlite:///andon.db
"""


def add(commands: Any) -> None:
    parser = add_parser(commands, "continue", "go on with a run", __doc__, MORE, EXAMPLES)
    parser.add_argument("id", type=text, metavar="RUN", help="the run's id, or how it begins")
    parser.add_argument("agent", nargs="?", metavar="module:agent", help="on a database: the agent that goes on")
    group = parser.add_argument_group("answers")
    group.add_argument("--answer", action="append", default=[], metavar="ID=VALUE", help="JSON, or else text")
    group.add_argument("--deny", action="append", default=[], metavar="ID[=why]", help="refuse a call")
    parser.add_argument("--run-id", type=text, metavar="ID", help="the id of the new run, where a cut one goes on")
    parser.add_argument("--detach", action="store_true", help="on a server: don't follow it")
    add_telling(parser)
    add_where(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    teller = Teller(as_json=options.json, quiet=options.quiet, owner=bool(options.agent))
    with closing(open_place(options)) as place:
        found = find(place, options.id)
        if place.local and not options.agent and (server := server_that_has(found.run_id, options)) is not None:
            place = server  # it shares the database, and it can go on with the run
        if place.local and not options.agent:
            raise Mistake(f"{place.name} is a database: name the agent to run (main:agent), or a server with --url")
        if not place.local and options.agent:
            raise Mistake(
                f"the server at {place.name} runs its own agents: leave out {options.agent!r}, or run it here with --db"
            )
        answers = given(options.answer, options.deny, found.interrupts)
        if missing := [each for each in found.interrupts if each.id not in answers]:
            asked = ask(missing) if can_ask(options.json, options.no_input) else None
            if asked is None:
                teller.end(found)
                return explain_pause(found, how_to_go_on(options, place))
            answers |= asked
        if not place.local:
            return _remotely(options, place, found, answers, teller)
        told = [event.seq for event in place.events(found)] if found.status is RunStatus.paused else []
    return _here(options, found, answers, teller, max(told, default=0))


def _here(options: argparse.Namespace, found: Report, answers: Answers, teller: Teller, after: int) -> Exit:
    db = database_of(options) or "sqlite:///andon.db"
    agent = find_agent(options.agent, db)

    async def go_on() -> Run:
        return await agent.resume_run(found.run_id, answers, new_run_id=options.run_id)

    run_id = found.run_id if found.status is RunStatus.paused else options.run_id
    report = drive(agent, go_on, teller, no_input=options.no_input, run_id=run_id, after=after)
    return conclude(report, teller, f"{options.agent} --db {shlex.quote(without_secrets(db))} ")


def _remotely(options: argparse.Namespace, place: Place, found: Report, answers: Answers, teller: Teller) -> Exit:
    from andon.cli.remote import Remote

    assert isinstance(place, Remote)
    if options.detach:
        report = place.go_on_alone(found, on_the_wire(answers), options.run_id)
        print(to_json(report) if options.json else report.run_id)
        return Exit.ok
    while True:
        events = place.go_on(found, on_the_wire(answers), options.run_id)
        report = _follow(place, found, events, teller)
        if report.status is RunStatus.paused and can_ask(options.json, options.no_input):
            asked = ask(report.interrupts)
            if asked is not None:
                found, answers = report, asked
                continue
        return finish(options, place, report, teller)


def _follow(place: Place, found: Report, events: Iterator[Event], teller: Teller) -> Report:
    """To its end, or its next question. A signal asks the server to cancel it, and the end comes as it always does."""
    last: Event | None = None
    run_id = found.run_id

    def cancel(number: signal.Signals) -> None:
        note("\nandon: asking the server to cancel it; another Ctrl-C leaves at once")
        reason = CTRL_C if number is signal.SIGINT else number.name
        request = CancelRequest.make(CancelCause.user, reason, who())
        try:
            place.cancel(Selection(run_id, agent_id=found.agent_id), request)
        except Mistake as mistake:
            note(f"andon: {mistake}", "yellow")

    leave_with_reader()
    with Hands() as hands:
        try:
            for event in events:
                if last is None:
                    run_id = event.run_id  # one that goes on after its end is another run
                    hands.hold(cancel)
                last = event
                teller.tell(event, run_id)
        except Mistake:
            teller.break_off()
            raise
    return latest(place, found, last)

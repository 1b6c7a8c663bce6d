# SPDX-License-Identifier: Apache-2.0
"""`andon continue RUN`: answer a paused run's questions, or go on with one that was cut."""

from __future__ import annotations

import argparse
import shlex
import signal
from collections.abc import Iterator
from contextlib import closing
from typing import Any

from andon.cli.command_error import CommandError, Exit
from andon.cli.event_printer import CTRL_C, EventPrinter
from andon.cli.local_run import SignalHandler, follow_local_run
from andon.cli.login import login_name
from andon.cli.options import add_parser, database_of, text, without_secrets
from andon.cli.questions import Answers, answers_from_options, answers_to_json, ask, can_ask, explain_pause
from andon.cli.report import Report, to_json
from andon.cli.run import add_output_options, conclude, find_agent
from andon.cli.run_source import (
    RunSource,
    add_source_options,
    continue_arguments,
    default_server_with,
    find_run,
    open_run_source,
)
from andon.cli.stdout_watch import exit_when_stdout_closes
from andon.cli.terminal import note
from andon.cli.watch import finish, latest
from andon.core.events import Event
from andon.core.receipt import CancelRequest
from andon.core.run.handle import local_run
from andon.core.run.run import LocalRun
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
    add_output_options(parser)
    add_source_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    printer = EventPrinter(as_json=options.json, quiet=options.quiet, owner=bool(options.agent))
    with closing(open_run_source(options)) as source:
        found = find_run(source, options.id)
        if source.local and not options.agent and (server := default_server_with(found.run_id, options)) is not None:
            source = server  # it uses the same database, and has the agents
        if source.local and not options.agent:
            raise CommandError(
                f"{source.name} is a database: name the agent to run (main:agent), or a server with --url"
            )
        if not source.local and options.agent:
            raise CommandError(
                f"the server at {source.name} runs its own agents: leave out {options.agent!r}, "
                "or run it here with --db"
            )
        answers = answers_from_options(options.answer, options.deny, found.interrupts)
        if missing := [each for each in found.interrupts if each.id not in answers]:
            asked = ask(missing) if can_ask(options.json, options.no_input) else None
            if asked is None:
                printer.print_end(found)
                return explain_pause(found, continue_arguments(options, source))
            answers |= asked
        if not source.local:
            return _continue_on_server(options, source, found, answers, printer)
        told = [event.seq for event in source.events(found)] if found.status is RunStatus.paused else []
    return _continue_here(options, found, answers, printer, max(told, default=0))


def _continue_here(
    options: argparse.Namespace, found: Report, answers: Answers, printer: EventPrinter, after: int
) -> Exit:
    db = database_of(options) or "sqlite:///andon.db"
    agent = find_agent(options.agent, db)

    async def go_on() -> LocalRun:
        return local_run(await agent.resume_run(found.run_id, answers, new_run_id=options.run_id))

    run_id = found.run_id if found.status is RunStatus.paused else options.run_id
    report = follow_local_run(agent, go_on, printer, no_input=options.no_input, run_id=run_id, after=after)
    return conclude(report, printer, f"{options.agent} --db {shlex.quote(without_secrets(db))} ")


def _continue_on_server(
    options: argparse.Namespace, source: RunSource, found: Report, answers: Answers, printer: EventPrinter
) -> Exit:
    from andon.cli.server_client import ServerSource

    assert isinstance(source, ServerSource)
    if options.detach:
        report = source.continue_in_background(found, answers_to_json(answers), options.run_id)
        print(to_json(report) if options.json else report.run_id)
        return Exit.ok
    while True:
        events = source.continue_run(found, answers_to_json(answers), options.run_id)
        report = _follow(source, found, events, printer)
        if report.status is RunStatus.paused and can_ask(options.json, options.no_input):
            asked = ask(report.interrupts)
            if asked is not None:
                found, answers = report, asked
                continue
        return finish(options, source, report, printer)


def _follow(source: RunSource, found: Report, events: Iterator[Event], printer: EventPrinter) -> Report:
    """Follow the run to its end or its next question. A signal cancels the run on the server; its events still come."""
    last: Event | None = None
    run_id = found.run_id

    def cancel(number: signal.Signals) -> None:
        note("\nandon: asking the server to cancel it; another Ctrl-C leaves at once")
        reason = CTRL_C if number is signal.SIGINT else number.name
        request = CancelRequest.make(CancelCause.user, reason, login_name())
        try:
            source.cancel(Selection(run_id, agent_id=found.agent_id), request)
        except CommandError as mistake:
            note(f"andon: {mistake}", "yellow")

    exit_when_stdout_closes()
    with SignalHandler() as signals:
        try:
            for event in events:
                if last is None:
                    run_id = event.run_id  # a run that is continued after its end is a new run
                    signals.on_first_signal(cancel)
                last = event
                printer.print_event(event, run_id)
        except CommandError:
            printer.end_line()
            raise
    return latest(source, found, last)

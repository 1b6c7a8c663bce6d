# SPDX-License-Identifier: Apache-2.0
"""`andon run module:agent "prompt"`: run an agent here and now, and cancel it with Ctrl-C."""

from __future__ import annotations

import argparse
import errno
import os
import shlex
import sys
from typing import Any

from andon.agent.agent import Agent, RunOptions
from andon.cli.agent_import import find_agents
from andon.cli.command_error import CommandError, Exit
from andon.cli.event_printer import EventPrinter
from andon.cli.local_run import follow_local_run
from andon.cli.options import add_parser, database_of, seconds, text, without_secrets
from andon.cli.questions import explain_pause
from andon.cli.report import Report
from andon.cli.terminal import is_terminal
from andon.core.run.handle import local_run
from andon.core.run.run import LocalRun
from andon.core.runtime import Runtime
from andon.core.states import CancelCause, RunStatus

EXAMPLES = """
  andon run main:agent "Tell me about the sea."
  andon run main:agent < prompt.txt > answer.txt
  andon run main:agent "And then?" --db sqlite:///andon.db --session s1
  andon run main:agent "Hi" --json | jq -r 'select(.result).result.content'
  andon run andon.cli.demo_agents:storyteller "Tell me a story."      (offline)
"""

MORE = """The text goes to stdout as it comes, everything else to stderr. Ctrl-C cancels the run and shows the receipt;
a second Ctrl-C leaves at once. Questions are asked at the terminal, if there is one."""


def add(commands: Any) -> None:
    parser = add_parser(commands, "run", "run an agent here", __doc__, MORE, EXAMPLES)
    parser.add_argument("agent", metavar="module:agent", help="an Agent in a module; what is here can be imported")
    parser.add_argument("prompt", nargs="?", help="the prompt; '-', or none and a pipe, reads it from stdin")
    group = parser.add_argument_group("the conversation")
    group.add_argument("--session", type=text, metavar="ID", help="the conversation to go on with (a fresh one)")
    group.add_argument("--user", type=text, metavar="ID", help="whose conversation it is")
    group.add_argument(
        "--db", metavar="URL", help="where it is kept: sqlite:///andon.db, postgresql://… ($ANDON_DB, or in memory)"
    )
    group.add_argument("--timeout", type=seconds, metavar="SECONDS", help="cancel the run after this time")
    add_output_options(parser)
    parser.set_defaults(run=run)


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """The options of commands that follow their own run."""
    group = parser.add_argument_group("what is shown")
    group.add_argument("--quiet", "-q", action="store_true", help="only the text, errors and receipts")
    group.add_argument("--json", action="store_true", help="each event as a line of JSON, the result last")
    group.add_argument("--no-input", action="store_true", help="ask nothing: a run with a question stays paused")


def run(options: argparse.Namespace) -> int:
    db = database_of(options)
    agent = find_agent(options.agent, db)
    prompt = _prompt(options.prompt)
    wanted: RunOptions = {"user_id": options.user, "session_id": options.session}
    if options.timeout is not None:  # else the agent's own
        wanted["timeout"] = options.timeout
    handle = agent.start(prompt, **wanted)

    async def begin() -> LocalRun:
        await handle.begin()
        return local_run(handle)

    printer = EventPrinter(as_json=options.json, quiet=options.quiet, owner=True)
    report = follow_local_run(
        agent, begin, printer, no_input=options.no_input, handle=local_run(handle), run_id=handle.run_id
    )
    flags = f"--db {shlex.quote(without_secrets(options.db))} " if options.db else ""  # $ANDON_DB needs no option
    how = None if db is None else f"{options.agent} {flags}"
    return conclude(report, printer, how)


def conclude(report: Report, printer: EventPrinter, how: str | None) -> Exit:
    """Print the end; for a pause, also how to continue."""
    if report.receipt is not None and report.receipt.cause is CancelCause.disconnect:
        raise BrokenPipeError(errno.EPIPE, "stdout is closed")
    code = printer.print_end(report)
    return explain_pause(report, how) if report.status is RunStatus.paused else code


def find_agent(name: str, db: str | None = None) -> Agent:
    """The agent that `module:agent` means, on the database if one is given."""
    # As with `python -m`, modules in the working directory can be imported.
    sys.path.insert(0, os.getcwd())
    agents = find_agents(name)
    if len(agents) != 1:
        names = ", ".join(each.id for each in agents)
        raise CommandError(f"{name!r} is a list of agents ({names}): name one of them by a name of its own")
    if db is not None:
        from andon.store import open_store

        agents[0].move_to(Runtime(open_store(db)))
    return agents[0]


def _prompt(given: str | None) -> str:
    if given not in (None, "-"):
        return str(given)
    if given is None and (sys.stdin is None or is_terminal(sys.stdin)):
        raise CommandError('there is no prompt: write it after the agent, as in andon run main:agent "Hello"')
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise CommandError(f"the prompt on stdin is no text: {error}") from None

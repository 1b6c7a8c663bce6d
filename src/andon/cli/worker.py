# SPDX-License-Identifier: Apache-2.0
"""`andon worker module:agent`: execute runs that servers with --no-execute have accepted, until a signal."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

from andon.cli import event_options
from andon.cli.agent_import import find_agents
from andon.cli.closing import close_in_time, leave
from andon.cli.command_error import CommandError, Exit
from andon.cli.logs import ShownErrorsFilter, show_log
from andon.cli.options import add_parser, count, database_of, days, duration, port
from andon.cli.serve import bound, open_runtime
from andon.core.runtime import Runtime
from andon.errors import ConfigurationError, MissingExtraError
from andon.scale.health import answering
from andon.scale.last_tasks import end_tasks

if TYPE_CHECKING:
    from andon.scale.service import WorkerService

CONCURRENCY = 50
MAX_EVENTS, MAX_EVENT_BYTES = 100_000, 256 * 2**20
"""The defaults of `andon serve`."""

EXAMPLES = """
  andon worker main:agent --db postgresql://andon@db/andon
  andon worker main:agents --db "$ANDON_DB" --concurrency 100 --queues fast,slow
"""

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def add(commands: Any) -> None:
    parser = add_parser(commands, "worker", "execute runs that servers have accepted", __doc__, examples=EXAMPLES)
    parser.add_argument("agents", nargs="+", metavar="module:agent", help="an Agent, or a list of them, in a module")
    parser.add_argument("--db", metavar="URL", help="the database of the servers: postgresql://… ($ANDON_DB)")
    parser.add_argument(
        "--concurrency", type=count, default=CONCURRENCY, metavar="N", help="runs at once, at the most (%(default)s)"
    )
    parser.add_argument(
        "--queues", type=_names, default=[], metavar="NAMES", help="serve these, as in fast,slow (those of the agents)"
    )
    parser.add_argument("--name", metavar="NAME", help="what `andon ps` calls this worker (host:pid)")
    parser.add_argument(
        "--health",
        type=_address,
        metavar="[HOST:]PORT",
        help="answer GET /health and GET /ready there, for probes (127.0.0.1; 0.0.0.0:8080 is for other machines too)",
    )
    parser.add_argument(
        "--drain", type=duration, default=10.0, metavar="SECONDS", help="what runs get to finish in (%(default)s)"
    )
    parser.add_argument(
        "--lease",
        type=duration,
        default=10.0,
        metavar="SECONDS",
        help="after so long without a sign of life a run is lost, and others end it (%(default)s)",
    )
    parser.add_argument("--keep-days", type=days, metavar="N", help="forget what was not used for so many days")
    for name, most in (("max-events", MAX_EVENTS), ("max-event-bytes", MAX_EVENT_BYTES)):
        about = "the most events of a run, in bytes" if "bytes" in name else "the most events of a run"
        parser.add_argument(f"--{name}", type=count, default=most, metavar="N", help=f"{about} (%(default)s)")
    event_options.add(parser)
    parser.add_argument("--log-format", choices=["text", "json"], help="log in this form (without it: warnings alone)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    try:
        from andon.scale.service import WorkerService
    except MissingExtraError as error:
        raise CommandError(str(error)) from error
    sys.path.insert(0, os.getcwd())
    agents = [agent for name in options.agents for agent in find_agents(name)]
    url = database_of(options)
    if url is None:
        raise CommandError("a worker needs the database of the servers: give --db postgresql://…, or set $ANDON_DB")
    _configure_log(options.log_format)
    _quiet_the_engine()
    runtime = open_runtime(url, options, workers=True)
    runtime.max_events, runtime.max_event_bytes = options.max_events, options.max_event_bytes
    for agent in agents:
        agent.move_to(runtime)
    try:
        service = WorkerService(
            agents,
            runtime,
            concurrency=options.concurrency,
            queues=options.queues,
            drain=options.drain,
            name=options.name,
        )
        with contextlib.ExitStack() as stack:
            listener = None
            if options.health is not None:
                host, number = options.health
                listener = stack.enter_context(bound(host, number, "--health", "--health"))
            runner = stack.enter_context(asyncio.Runner(loop_factory=_loop_factory()))
            leave(runner.run(_serve(service, runtime, listener, options.drain)))
    except ConfigurationError as error:
        raise CommandError(str(error)) from None
    return Exit.ok


def _quiet_the_engine() -> None:
    """What it has to say, our own engine says in one line: an outage is no reason for tracebacks."""
    from andon.scale.engine import OncePerOutage

    logging.getLogger("procrastinate").setLevel(logging.CRITICAL)
    logging.getLogger("psycopg.pool").addFilter(OncePerOutage())


async def _serve(service: WorkerService, runtime: Runtime, listener: socket.socket | None, drain: float) -> list[str]:
    """Serve until a signal. The second one ends the process at once. Returns what is still running at the end."""
    from andon.scale.engine import expect_outages

    loop = asyncio.get_running_loop()
    expect_outages(loop)

    def first(number: int, frame: FrameType | None) -> None:
        for each in SIGNALS:  # also while a tool blocks the event loop
            signal.signal(each, signal.SIG_DFL)
        loop.call_soon_threadsafe(stop)

    def stop() -> None:
        service.stop()
        held = "1 run has" if service.runs == 1 else f"{service.runs} runs have"
        more = f"; {held} {drain:g} s to finish. Another SIGTERM or Ctrl-C ends it at once" if service.runs else ""
        _say(f"worker {service.name} takes no more runs{more}")

    for each in SIGNALS:
        signal.signal(each, first)
    try:
        async with contextlib.AsyncExitStack() as stack:
            if listener is not None:
                await stack.enter_async_context(answering(listener, lambda: service.why_not_ready))
                _say(f"health: http://{_shown(listener)}/ready")
            await service.serve(lambda: _say(f"worker {service.name} serves {', '.join(service.queues)}"))
    finally:
        left = await close_in_time(runtime)
    return left or await end_tasks()


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # a closed stdout must not stop the work, or the shutdown
        print(text, flush=True)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """That of uvloop, if it is installed, as `andon serve` does it."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def _configure_log(wanted: Any) -> None:
    if wanted is None:
        told = ShownErrorsFilter()
        told.run_id = ""  # no run is on the screen
        show_log(told, quiet=False)
        return
    try:
        from andon.server.logs import configure
    except (MissingExtraError, ImportError) as error:
        raise CommandError(f'--log-format needs the extra "server" ({error}): pip install "andon[server]"') from error
    configure(wanted)


def _shown(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _address(given: str) -> tuple[str, int]:
    host, _, number = given.rpartition(":")
    return host.strip("[]") or "127.0.0.1", port(number)


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise argparse.ArgumentTypeError(f"it is a list of names, as in fast,slow, and not {text!r}")
    return names

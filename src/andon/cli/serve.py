# SPDX-License-Identifier: Apache-2.0
"""`andon serve module:agent`: agents over HTTP, until a signal.

This module has the options and their checks; `andon.server.serving` serves.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import os
import socket
import sys
from collections.abc import Iterator
from typing import Any

from andon.cli import event_options, serve_options
from andon.cli.agent_import import find_agents
from andon.cli.closing import close_in_time, leave
from andon.cli.command_error import CommandError, command_error_of
from andon.cli.options import count, database_of, days, duration, port
from andon.core.runtime import Runtime
from andon.core.shared.store import SharedStore
from andon.errors import ConfigurationError, MissingExtraError, StoreError
from andon.scale.maintenance import queue_in
from andon.store import MemoryStore, open_store

DEFAULT_DB = "sqlite:///andon.db"
DRAIN = 10.0
MIN_LEASE = 0.5
"""A shorter lease could expire during a short delay."""

UNSHARED = (
    "--workers needs a database that the processes share, and this one is in the memory of each: only one process "
    f"would know a run. Give --db {DEFAULT_DB}, or postgresql://…"
)


def add(commands: Any) -> None:
    parser = commands.add_parser("serve", help="serve agents over HTTP", description=__doc__.splitlines()[0])
    parser.add_argument("agents", nargs="*", metavar="module:agent", help="an Agent, or a list of them, in a module")
    parser.add_argument("--demo", action="store_true", help="serve agents that need no key and no network")
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on (%(default)s: this machine only)")
    parser.add_argument("--port", type=port, default=7777, help="the port; 0 picks a free one (%(default)s)")
    parser.add_argument("--root-path", default="", help="the prefix that a proxy in front takes off")
    parser.add_argument(
        "--drain", type=duration, metavar="SECONDS", help=f"what runs get to finish in ({DRAIN:g}; 0 with --reload)"
    )
    processes = parser.add_argument_group("processes")
    processes.add_argument(
        "--workers", type=count, default=1, metavar="N", help="serve in N processes, on one port and one database"
    )
    processes.add_argument(
        "--reload", action="store_true", help="for development: start again when a .py file below this folder changes"
    )
    parser.add_argument(
        "--no-execute",
        action="store_true",
        help="accept, show and cancel runs, and leave their execution to `andon worker` on the same Postgres",
    )
    parser.add_argument(
        "--db",
        metavar="URL",
        help="where sessions and runs are kept: sqlite:///FILE, postgresql://…, or memory:// "
        f"($ANDON_DB; or {DEFAULT_DB}, unless an agent was made with a runtime of its own)",
    )
    parser.add_argument(
        "--lease",
        type=duration,
        default=10.0,
        metavar="SECONDS",
        help="after this time without a renewal a run is lost, and another server ends it (%(default)s)",
    )
    parser.add_argument(
        "--keep-days",
        type=days,
        metavar="N",
        help="delete runs and sessions that were not used for N days (without it, none; in memory://, 7)",
    )
    event_options.add(parser)
    serve_options.add(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    if options.drain is None:
        options.drain = 0.0 if options.reload else DRAIN
    try:
        from andon.server import create_app
        from andon.server.logs import configure
        from andon.server.parent_process import ParentProcess
        from andon.server.serving import serve
    except MissingExtraError as error:
        raise CommandError(str(error)) from error
    except ImportError as error:
        raise CommandError(f'the server is an extra ({error}): pip install "andon[server]"') from error
    names = [*options.agents, *(["andon.cli.demo_agents:agents"] if options.demo else [])]
    if not names:
        raise CommandError("there is no agent to serve: name one, as in main:agent, or try --demo")
    parent = ParentProcess.from_environment()
    if parent is None and (options.reload or options.workers > 1):
        return _serve_elsewhere(options)
    # As with `python -m`, modules in the working directory can be imported.
    sys.path.insert(0, os.getcwd())
    agents = [agent for name in names for agent in find_agents(name)]
    configure(options.log_format)  # before the store is opened, which may log a warning
    # All agents are on one runtime, so that the id of a run is unique among them.
    brought = [agent.runtime for agent in agents if agent.brought_runtime]
    db = database_of(options)
    chosen = db is None and bool(brought)
    try:
        runtime = brought[0] if chosen else open_runtime(db or DEFAULT_DB, options, workers=options.no_execute)
    except ConfigurationError as error:
        raise CommandError(str(error)) from None
    try:
        if options.workers > 1 and not isinstance(runtime.store, SharedStore):
            raise CommandError(UNSHARED)
        if options.no_execute:
            check_queue(runtime)
        app = create_app(
            agents, runtime, drain=options.drain, execute=not options.no_execute, **serve_options.settings(options)
        )
        if options.no_execute:
            asyncio.run(app.state.andon.prepare())
        with bound(options.host, options.port) if parent is None else parent.listener as listener:
            serve_options.check_closed(options, listener, guarded=app.state.andon.settings.guarded)
            serve(app, listener, options.root_path, options.max_connections, parent)
    except ConfigurationError as error:
        raise CommandError(str(error)) from None
    finally:
        if not chosen:
            _close(runtime)
    return 0


def _close(runtime: Runtime) -> None:
    with asyncio.Runner() as runner:
        left = runner.run(close_in_time(runtime))
        if sys.exception() is None:  # else its message is more important than the time
            leave(left)


def check_queue(runtime: Runtime) -> None:
    """Raise if runs can't wait for worker processes in this database."""
    try:
        asyncio.run(queue_in(runtime.store).prepare())
    except StoreError as error:
        raise CommandError(str(error), command_error_of(error).code) from None


def _serve_elsewhere(options: argparse.Namespace) -> int:
    """Serve in other processes, which this process starts and ends."""
    if options.reload and options.workers > 1:
        raise CommandError("--reload starts one process again and again, and --workers keeps several: give one of them")
    if options.workers > 1 and (database_of(options) or "").startswith("memory:"):
        raise CommandError(UNSHARED)
    if os.name != "posix":
        raise CommandError("--workers and --reload need a Unix system: leave them out here")
    from andon.cli.workers import supervise

    with bound(options.host, options.port) as listener:
        how = {"count": options.workers, "reload": options.reload, "drain": options.drain}
        return asyncio.run(supervise(options.given, listener, **how))


def open_runtime(url: str, options: argparse.Namespace, *, workers: bool = False) -> Runtime:
    """A runtime on the store at this URL. Raises if the store can't be reached, or can't be used with `workers`."""
    lease, keep_days = options.lease, options.keep_days
    if lease < MIN_LEASE:
        raise CommandError(f"--lease is {lease:g}; it is a number of seconds, {MIN_LEASE:g} or more")
    try:
        store = open_store(url)
        if workers:  # before a file is made
            queue_in(store)
        if isinstance(store, SharedStore):
            asyncio.run(store.ping())
        elif isinstance(store, MemoryStore) and keep_days is not None:
            store.retention.keep_days = keep_days
    except (ConfigurationError, StoreError) as error:
        hint = "" if isinstance(error, MissingExtraError) else " (another database can be named with --db)"
        raise CommandError(f"{error}{hint}", command_error_of(error).code) from None
    kept = event_options.settings(options, shared=isinstance(store, SharedStore))
    return Runtime(store, lease_seconds=lease, keep_days=keep_days, **kept)


@contextlib.contextmanager
def bound(host: str, port: int, option: str = "--port", host_option: str = "--host") -> Iterator[socket.socket]:
    """A socket that is bound to this address. The options are those that name the port and the host."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise CommandError(
            f"can't listen on {host} ({error}): name an address of this machine with {host_option}"
        ) from None
    with listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _set_keepalive(listener)
        try:
            listener.bind(address)
        except OSError as error:
            raise CommandError(
                f"can't listen on {host}, port {port} ({error}): {_advice(error, option, host_option)}"
            ) from None
        yield listener


def _advice(error: OSError, option: str, host_option: str) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"another program does, maybe another `andon`. End it, or choose another port with {option}"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"name an address of this machine with {host_option} (0.0.0.0: all of them)"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"this user may not use that port. Choose one from 1024 on with {option}"
    return f"choose another with {option}"


def _set_keepalive(listener: socket.socket) -> None:
    """Connections inherit these options: a peer that vanished is noticed after two minutes at the latest."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in {"KEEPIDLE": 15, "KEEPINTVL": 5, "KEEPCNT": 3, "USER_TIMEOUT": 120_000}.items():
        if (option := getattr(socket, f"TCP_{name}", None)) is not None:  # not every system has all options
            listener.setsockopt(socket.IPPROTO_TCP, option, value)

# SPDX-License-Identifier: Apache-2.0
"""`andon serve module:agent`: agents over HTTP, until a signal.

Here is what users may say, and get wrong; the serving itself is `andon.server.serving`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import os
import socket
import sys
from collections.abc import Iterator
from typing import Any

from andon.agent.agent import Agent
from andon.cli import access
from andon.cli.mistake import Mistake
from andon.cli.options import days
from andon.core.runtime import Runtime
from andon.core.shared import SharedStore
from andon.errors import ConfigurationError, MissingExtraError, StoreError, describe
from andon.store import open_store

DEFAULT_DB = "sqlite:///andon.db"
MIN_LEASE = 0.5
"""Shorter ones would be lost to any hiccup."""


def add(commands: Any) -> None:
    parser = commands.add_parser("serve", help="serve agents over HTTP", description=__doc__.splitlines()[0])
    parser.add_argument("agents", nargs="*", metavar="module:agent", help="an Agent, or a list of them, in a module")
    parser.add_argument("--demo", action="store_true", help="serve agents that need no key and no network")
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on (%(default)s: this machine only)")
    parser.add_argument("--port", type=_port, default=7777, help="the port; 0 picks a free one (%(default)s)")
    parser.add_argument("--root-path", default="", help="the prefix that a proxy in front takes off")
    parser.add_argument(
        "--drain", type=_seconds, default=10.0, metavar="SECONDS", help="what runs get to finish in (%(default)s)"
    )
    parser.add_argument(
        "--db",
        metavar="URL",
        help="where sessions and runs are kept: sqlite:///FILE, postgresql://…, or memory:// "
        f"({DEFAULT_DB}, unless an agent was made with a runtime of its own)",
    )
    parser.add_argument(
        "--lease",
        type=_seconds,
        default=10.0,
        metavar="SECONDS",
        help="after so long without a sign of life a run is lost, and others end it (%(default)s)",
    )
    parser.add_argument(
        "--keep-days",
        type=days,
        metavar="N",
        help="forget, once an hour, what nobody has touched for so many days (without it, nothing is)",
    )
    access.add(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    try:
        from andon.server import create_app
        from andon.server.logs import configure
        from andon.server.serving import serve
    except MissingExtraError as error:
        raise Mistake(str(error)) from error
    except ImportError as error:
        raise Mistake(f'the server is an extra ({error}): pip install "andon[server]"') from error
    # As `python -m` does it: what is here can be imported.
    sys.path.insert(0, os.getcwd())
    names = [*options.agents, *(["andon.cli.demo_agents:agents"] if options.demo else [])]
    if not names:
        raise Mistake("there is no agent to serve: name one, as in main:agent, or try --demo")
    agents = [agent for name in names for agent in find_agents(name)]
    configure(options.log_format)  # before the store is opened, which may say what is wrong with it
    try:
        # On one runtime, so that a run's id means one run, whichever agent it is of.
        brought = [agent.runtime for agent in agents if agent.brought_runtime]
        chosen = options.db is None and bool(brought)
        runtime = brought[0] if chosen else open_runtime(options.db or DEFAULT_DB, options.lease, options.keep_days)
        app = create_app(agents, runtime, drain=options.drain, **access.settings(options))
    except ConfigurationError as error:
        raise Mistake(str(error)) from None
    with bound(options.host, options.port) as listener:
        access.check_closed(options, listener, guarded=app.state.andon.settings.guarded)
        serve(app, listener, options.root_path, options.log_format)
    if not chosen:
        asyncio.run(runtime.close())
    return 0


def open_runtime(url: str, lease: float, keep_days: float | None) -> Runtime:
    """A runtime on that store, which can be asked; or say why not."""
    if lease < MIN_LEASE:
        raise Mistake(f"--lease is {lease:g}; it is a number of seconds, {MIN_LEASE:g} or more")
    try:
        store = open_store(url)
        if isinstance(store, SharedStore):
            asyncio.run(store.ping())
    except (ConfigurationError, StoreError) as error:
        raise Mistake(str(error)) from None
    return Runtime(store, lease_seconds=lease, keep_days=keep_days)


def find_agents(name: str) -> list[Agent]:
    """The agent, or the agents, that `module:name` means."""
    module_name, colon, attribute = name.partition(":")
    if not (module_name and colon and attribute):
        raise Mistake(f"{name!r} names no agent: write module:agent, for instance main:agent for `agent` in main.py")
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise Mistake(f"{module_name!r} can't be imported: {describe(error)}") from error
        raise Mistake(f"there is no module {module_name!r} here ({os.getcwd()}) or among what is installed") from None
    except Exception as error:
        raise Mistake(f"{module_name!r} can't be imported: {describe(error)}") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            agents = (
                [key for key, value in vars(found).items() if isinstance(value, Agent)] if part == attribute else []
            )
            hint = f"; the agents in it are: {', '.join(agents)}" if agents else ""
            raise Mistake(f"there is no {attribute!r} in {module_name!r}{hint}")
        found = getattr(found, part)
    agents = list(found) if isinstance(found, list | tuple) else [found]
    for agent in agents:
        if not isinstance(agent, Agent):
            raise Mistake(f"{name!r} is {agent!r}, which is no Agent")
    return agents


@contextlib.contextmanager
def bound(host: str, port: int) -> Iterator[socket.socket]:
    """A socket that listens there."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise Mistake(f"can't listen on {host}: {error}") from None
    with listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _notice_the_vanished(listener)
        try:
            listener.bind(address)
        except OSError as error:
            raise Mistake(f"can't listen on {host}, port {port} ({error}): choose another with --port") from None
        yield listener


def _notice_the_vanished(listener: socket.socket) -> None:
    """Connections inherit this: a peer that has gone without a goodbye is given up after two minutes at the latest."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in {"KEEPIDLE": 15, "KEEPINTVL": 5, "KEEPCNT": 3, "USER_TIMEOUT": 120_000}.items():
        if (option := getattr(socket, f"TCP_{name}", None)) is not None:  # not every system has all of them
            listener.setsockopt(socket.IPPROTO_TCP, option, value)


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port < 65536:  # the system would take the rest of a division for it
        raise argparse.ArgumentTypeError("it is a number from 0 to 65535")
    return port


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError("it is a number of seconds, 0 or more")
    return seconds

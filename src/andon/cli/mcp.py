# SPDX-License-Identifier: Apache-2.0
"""`andon mcp module:agent`: serve agents as the tools of an MCP server."""

from __future__ import annotations

import argparse
import asyncio
import functools
import importlib.util
import os
import sys
from collections.abc import Callable
from typing import Any

from andon.cli import serve_options
from andon.cli.agent_import import find_agents
from andon.cli.command_error import CommandError
from andon.cli.logs import ShownErrorsFilter, show_log
from andon.cli.options import add_parser, database_of, port
from andon.core.runtime import Runtime
from andon.errors import ConfigurationError, MissingExtraError

EXAMPLES = """
  andon mcp main:agent                          (what an MCP client starts)
  andon mcp main:planner main:writer --db sqlite:///andon.db
  andon mcp main:agent --http 7778              (http://127.0.0.1:7778/mcp)
  andon mcp main:agent --http 7778 --host 0.0.0.0 --token-file tokens.txt
"""

MORE = """Each agent is a tool, with a `message` and maybe a `session_id`. A client that cancels its call cancels the
run. Without --http it talks to the program that started it, over stdin and stdout; everything else goes to stderr."""


def add(commands: Any) -> None:
    parser = add_parser(commands, "mcp", "serve agents as MCP tools", __doc__, MORE, EXAMPLES)
    parser.add_argument("agents", nargs="+", metavar="module:agent", help="an Agent, or a list of them, in a module")
    parser.add_argument(
        "--http", type=port, metavar="PORT", help="serve over HTTP, and not over stdio; 0 picks a free port"
    )
    parser.add_argument(
        "--db", metavar="URL", help="where it is kept: sqlite:///andon.db, postgresql://… ($ANDON_DB, or in memory)"
    )
    access = parser.add_argument_group("access, with --http")
    access.add_argument("--host", help="the address to listen on (127.0.0.1: this machine only; others need a token)")
    serve_options.add_tokens(access)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    if importlib.util.find_spec("mcp") is None:
        raise CommandError('MCP is an extra: pip install "andon[mcp]"')
    from andon.cli.mcp_serving import AgentTools, serve_http, serve_stdio, stdout_to_stderr

    if options.http is None and (options.host or options.token or options.token_file):
        raise CommandError("--host, --token and --token-file are for --http: without it, only your client is connected")
    guard = None if options.http is None else _guard_of(options)
    sys.path.insert(0, os.getcwd())  # as with `python -m`
    with stdout_to_stderr():
        agents = [agent for name in options.agents for agent in find_agents(name)]
    runtime = None
    if (db := database_of(options)) is not None:
        from andon.store import open_store

        runtime = Runtime(open_store(db))
        for agent in agents:
            agent.move_to(runtime)
    show_log(ShownErrorsFilter(), quiet=False)
    tools = AgentTools(agents)
    if options.http is None:
        asyncio.run(_serve(serve_stdio(tools), runtime))
    else:
        from andon.cli.serve import bound

        host = options.host or "127.0.0.1"
        with bound(host, options.http, "--http") as listener:
            if guard is None:
                serve_options.check_local(host, listener)
            asyncio.run(_serve(serve_http(tools, listener, guard), runtime))
    return 0


def _guard_of(options: argparse.Namespace) -> Callable[[Any], Any] | None:
    """What lets in only requests with a token. None if there are no tokens."""
    try:
        tokens = serve_options.tokens_of(options)
        if not tokens:
            return None
        from andon.cli.mcp_access import TokenGuard
        from andon.server.access import Keyring

        return functools.partial(TokenGuard, Keyring(tokens))
    except MissingExtraError as error:
        raise CommandError(f"tokens ({serve_options.VARIABLE}, --token, --token-file) need an extra: {error}") from None
    except ConfigurationError as error:
        raise CommandError(str(error)) from None


async def _serve(serving: Any, runtime: Runtime | None) -> None:
    try:
        await serving
    finally:
        if runtime is not None:
            await runtime.close()

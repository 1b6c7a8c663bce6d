# SPDX-License-Identifier: Apache-2.0
"""The options of `andon serve` for access and limits. `andon mcp` has those for tokens too.

No message quotes a token.
"""

from __future__ import annotations

import argparse
import ipaddress
import logging
import os
import socket
import stat
from typing import TYPE_CHECKING, Any

from andon.cli.command_error import CommandError
from andon.errors import ConfigurationError

if TYPE_CHECKING:
    from andon.server.token_file import TokenFile

log = logging.getLogger(__name__)

VARIABLE = "ANDON_TOKEN"

LIMITS = {
    "max_runs": "runs at once, of all agents",
    "max_user_runs": "runs at once of one user",
    "max_agent_runs": "runs at once of one agent, with --no-execute",
    "max_waiting_runs": "runs that wait for room, with --no-execute",
    "max_body": "bytes of a request",
    "max_message": "characters of a prompt",
    "max_paused_runs": "runs that wait for a person, of all agents",
    "max_user_paused_runs": "runs of one user that wait for a person",
    "max_events": "events of a run, which is cancelled then; 0 for no limit",
    "max_user_sessions": "sessions of one user with an agent",
    "max_state": "bytes of a session's state",
    "max_event_bytes": "bytes of a run's events, which is cancelled then; 0 for no limit",
}


def add_tokens(access: argparse._ArgumentGroup) -> None:
    access.add_argument(
        "--token",
        action="append",
        default=[],
        help=f"an admin's token; may be repeated, and others on this machine can read it: {VARIABLE} is safer",
    )
    access.add_argument(
        "--token-file",
        metavar="FILE",
        help="a token a line: `TOKEN user=NAME`, `TOKEN admin`, or both; a word with # begins a comment; "
        "read again when it changes",
    )


def add(parser: argparse.ArgumentParser) -> None:
    access = parser.add_argument_group("access")
    add_tokens(access)
    access.add_argument("--allow-open", action="store_true", help="serve other machines though there is no token")
    access.add_argument(
        "--allow-host", action="append", default=[], metavar="NAME", help="a name the server goes by; may be repeated"
    )
    access.add_argument(
        "--cors-origin",
        action="append",
        default=[],
        metavar="URL",
        help="an origin whose pages may ask; may be repeated",
    )
    limits = parser.add_argument_group("limits")
    for name, about in LIMITS.items():
        limits.add_argument(f"--{name.replace('_', '-')}", type=_count, metavar="N", help=f"the most {about}")
    limits.add_argument("--max-connections", type=_count, metavar="N", help="the most connections at once")
    parser.add_argument(
        "--log-format", choices=["text", "json"], help="log every request, in this form (without it: warnings alone)"
    )


def settings(options: argparse.Namespace) -> dict[str, Any]:
    """The arguments for `create_app`."""
    limits = {name: value for name in LIMITS if (value := getattr(options, name)) is not None}
    return {
        "tokens": tokens_of(options) or None,
        "hosts": [options.host, *options.allow_host],
        "cors_origins": options.cors_origin,
        **limits,
    }


def tokens_of(options: argparse.Namespace) -> list[str | TokenFile]:
    """The tokens of the command line, of the environment and of the file."""
    return [*options.token, *_of_environment(), *_of_file(options.token_file)]


def check_closed(options: argparse.Namespace, listener: socket.socket, *, guarded: bool) -> None:
    """Raise if other machines can reach a server without tokens, unless --allow-open is given."""
    if not (guarded or options.allow_open or is_local(listener)):
        raise CommandError(f"{_open_to_all(options.host)}; or say --allow-open if something else keeps them out")


def check_local(host: str, listener: socket.socket) -> None:
    """Raise if other machines can reach a server that has no tokens."""
    if not is_local(listener):
        raise CommandError(_open_to_all(host))


def is_local(listener: socket.socket) -> bool:
    """Only this machine can reach it."""
    return ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback


def _open_to_all(host: str) -> str:
    return (
        f"{host} can be reached from other machines, and there is no token: anybody could run and cancel your agents. "
        f"Set {VARIABLE} or give --token-file"
    )


def _of_environment() -> list[str]:
    token = os.environ.get(VARIABLE)
    if token is not None and not token.strip():
        raise CommandError(f"{VARIABLE} is set, and empty: give it a token, or unset it")
    return [] if token is None else [token.strip()]


def _of_file(name: str | None) -> list[TokenFile]:
    if name is None:
        return []
    from andon.server.token_file import TokenFile

    file = TokenFile(name)
    try:
        file.read()
    except ConfigurationError as error:
        raise CommandError(f"--token-file {error}") from None
    if os.name == "posix" and stat.S_IMODE(file.path.stat().st_mode) & 0o077:
        log.warning("other users of this machine can read --token-file %s: run `chmod 600 %s`", name, name)
    return [file]


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"it is a whole number, 0 or more, and not {text!r}")
    return int(text)

# SPDX-License-Identifier: Apache-2.0
"""The options of an MCP server, checked where they are written.

What must stay true: no value of an environment variable and no header is in the text of an error or in a repr.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from msgspec import Struct

from andon.core.receipt import is_seconds
from andon.errors import ConfigurationError, SetupError
from andon.tools.mcp.content import SamplingRequest

INHERITED = ("HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "USER")
"""The environment variables that every server gets. The others may be secrets: they are passed by name."""

Sampling = Callable[[SamplingRequest], Awaitable[str]]
Choice = Collection[str] | Callable[[str], bool]


class Address(Struct, frozen=True):
    """Where the server is: a program to start, or a URL."""

    command: tuple[str, ...] = ()
    env: tuple[str, ...] | Mapping[str, str] = ()
    cwd: str | None = None
    url: str | None = None
    headers: Mapping[str, str] = {}

    def __repr__(self) -> str:
        return f"<address {self.shown}>"

    @property
    def shown(self) -> str:
        """For errors: the command, or the URL without its user, password and query."""
        if self.url is None:
            return shlex.join(self.command)
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    def check_setup(self) -> None:
        """Raise if the command, its folder or a variable of its environment is not there."""
        if self.url is not None:
            return
        if missing := [name for name in self.env if isinstance(self.env, tuple) and name not in os.environ]:
            raise SetupError(
                f"the MCP server {self.shown!r} needs the environment variable {', '.join(missing)}, and it is not set"
            )
        if self.cwd is not None and not os.path.isdir(self.cwd):
            raise SetupError(f"the MCP server {self.shown!r} can't start: there is no folder {self.cwd!r}")
        program = self.command[0]
        if shutil.which(program, path=self.environment().get("PATH")) is None and not self._is_in_cwd(program):
            raise SetupError(
                f"the MCP server {self.shown!r} can't start: there is no program {program!r}. Install it, or give its"
                " full path"
            )

    def _is_in_cwd(self, program: str) -> bool:
        return os.sep in program and os.access(Path(self.cwd or ".") / program, os.X_OK)

    def environment(self) -> dict[str, str]:
        inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
        if isinstance(self.env, tuple):
            return inherited | {name: os.environ[name] for name in self.env if name in os.environ}
        return inherited | dict(self.env)


class Behaviour(Struct, frozen=True):
    """How its tools are used."""

    prefix: str = ""
    only: Choice | None = None
    without: Choice | None = None
    timeout: float | None = None
    approval: bool | frozenset[str] = False
    connect_seconds: float = 30.0
    elicitation: bool = True
    sampling: Sampling | None = None
    protocol: str = "auto"


def make_address(
    command: str | Sequence[str] | None,
    args: Sequence[str],
    env: Sequence[str] | Mapping[str, str],
    cwd: str | os.PathLike[str] | None,
    url: str | None,
    headers: Mapping[str, str] | None,
) -> Address:
    if (command is None) is (url is None):
        raise ConfigurationError(
            'an MCP server is either a command, MCPServer("npx -y some-server"), or an address, MCPServer(url="https://…")'
        )
    if url is not None:
        if not isinstance(url, str) or urlsplit(url).scheme not in ("http", "https"):
            raise ConfigurationError("the url of an MCP server begins with http:// or https://")
        if args or env or cwd is not None:
            raise ConfigurationError("args, env and cwd are for a server that is a command, and this one has a url")
        return Address(url=url, headers=_checked_headers(headers or {}))
    if headers is not None:
        raise ConfigurationError("headers are for a server with a url; a command gets its secrets with env=[…]")
    assert command is not None
    return Address((*_words(command), *args), _checked_env(env), None if cwd is None else os.fspath(cwd))


def _words(command: str | Sequence[str]) -> list[str]:
    if isinstance(command, str) and command.startswith(("http://", "https://")):
        raise ConfigurationError("that is an address: write MCPServer(url=…)")
    try:
        words = shlex.split(command) if isinstance(command, str) else list(command)
    except ValueError as error:
        raise ConfigurationError(f"the MCP server's command can't be read ({error}): give a list of words") from None
    if not words or not all(isinstance(word, str) and word for word in words[:1]):
        raise ConfigurationError("the command of an MCP server is empty")
    return words


def _checked_env(env: Sequence[str] | Mapping[str, str]) -> tuple[str, ...] | Mapping[str, str]:
    if isinstance(env, str):
        raise ConfigurationError("env is a list of names, env=[…], or a dict of names and values")
    return dict(env) if isinstance(env, Mapping) else tuple(env)


def _checked_headers(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Refuse here what the HTTP client would refuse with the value in its error."""
    for name, value in headers.items():
        if not isinstance(value, str) or value != value.strip() or not value.isascii() or not value.isprintable():
            raise ConfigurationError(
                f"the value of the header {name!r} has to be a text of printable ASCII characters, without spaces or"
                " line ends around it"
            )
    return dict(headers)


def check_behaviour(behaviour: Behaviour) -> Behaviour:
    for name in ("timeout", "connect_seconds"):
        value = getattr(behaviour, name)
        if not is_seconds(value) or (value is None and name == "connect_seconds"):
            raise ConfigurationError(f"{name} is {value!r}; it is a number of seconds, 0 or more")
    if behaviour.protocol not in ("auto", "legacy") and not re.fullmatch(r"\d{4}-\d\d-\d\d", str(behaviour.protocol)):
        raise ConfigurationError(f'protocol is {behaviour.protocol!r}; it is "auto", "legacy" or a version, as a date')
    for name in ("only", "without"):
        if isinstance(getattr(behaviour, name), str):
            raise ConfigurationError(f"{name} is a list of names, or a function that takes a name")
    return behaviour


def chosen(choice: Choice, name: str) -> bool:
    return choice(name) if callable(choice) else name in choice

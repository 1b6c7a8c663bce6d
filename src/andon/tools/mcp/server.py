# SPDX-License-Identifier: Apache-2.0
"""`MCPServer`: the tools of an MCP server, for one agent or for several."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from andon.errors import ConfigurationError, ToolSourceError, UnknownToolError
from andon.tools.base import Tool, ToolOutput, Traits
from andon.tools.mcp import sdk
from andon.tools.mcp.connections import Connections
from andon.tools.mcp.content import describe_errors
from andon.tools.mcp.session import Session
from andon.tools.mcp.settings import (
    Behaviour,
    Choice,
    Sampling,
    check_behaviour,
    chosen,
    make_address,
)
from andon.tools.mcp.tool import MCPTool, local_name


class MCPServer:
    """The tools of an MCP server: a program that is started, or an address.

    >>> agent = Agent("Helper", model, tools=[MCPServer("npx -y @modelcontextprotocol/server-everything")])
    >>> agent = Agent("Helper", model, tools=[MCPServer(url="https://example.com/mcp", headers={"Authorization": …})])

    The server is connected when the first run begins, once for each event loop, and is shared by all agents that have
    this object. It is disconnected, and a program is ended with all its processes, by `aclose()`, when this object is
    garbage, when the event loop ends, and when the process ends. As a context manager it is connected at once:

    >>> async with MCPServer("uvx mcp-server-time") as server:
    ...     names = [tool.name for tool in await server.tools()]
    ...     text = await server.call("get_current_time", {"timezone": "Europe/Paris"})

    `env` names the environment variables that a program gets besides HOME, PATH and their like, or gives their values.
    `prefix` goes before the names of the tools; `only` and `without` choose among them, by name or with a function.
    `timeout` limits each call. `approval` asks a person before each call, or before those of the tools that it names.
    `elicitation=False` refuses the server's questions to a person. `sampling` is an async function that answers the
    server's questions to a model; without it they are refused. `protocol="legacy"` skips the newer way to agree on a
    version, for servers that don't answer it.
    """

    def __init__(
        self,
        command: str | Sequence[str] | None = None,
        *,
        args: Sequence[str] = (),
        env: Sequence[str] | Mapping[str, str] = (),
        cwd: str | os.PathLike[str] | None = None,
        url: str | None = None,
        headers: Mapping[str, str] | None = None,
        name: str | None = None,
        prefix: str = "",
        only: Choice | None = None,
        without: Choice | None = None,
        timeout: float | None = None,
        approval: bool | Sequence[str] = False,
        connect_seconds: float = 30.0,
        elicitation: bool = True,
        sampling: Sampling | None = None,
        protocol: str = "auto",
    ) -> None:
        sdk.check()
        self._address = make_address(command, args, env, cwd, url, headers)
        if isinstance(approval, str):
            raise ConfigurationError("approval is True, or a list of the names of tools")
        asks = approval if isinstance(approval, bool) else frozenset(approval)
        self._behaviour = check_behaviour(
            Behaviour(prefix, only, without, timeout, asks, connect_seconds, elicitation, sampling or None, protocol)
        )
        self._name = name or _name_of(self._address.command, url)
        self._connections = Connections(self._name, self._address, self._behaviour)
        self._made: weakref.WeakKeyDictionary[Session, tuple[list[Any], list[Tool]]] = weakref.WeakKeyDictionary()
        self._entered = 0
        weakref.finalize(self, self._connections.leave).atexit = False  # then its loops end, and do it

    def __repr__(self) -> str:
        return f"<MCP server {self._name}>"

    # -- as a source of tools -----------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return self._name

    def check_setup(self) -> None:
        """Raise if the SDK, the program, or a variable of its environment is missing."""
        sdk.check()
        self._address.check_setup()

    async def tools(self) -> list[Tool]:
        """Its tools, as agents get them. Connects first. Raises `ToolSourceError` if they can't be had."""
        self.check_setup()
        session = await self._connections.here().open()
        try:
            async with asyncio.timeout(self._behaviour.connect_seconds):
                listed = await session.list_tools()
        except Exception as error:  # noqa: BLE001 - the boundary: whatever the SDK raises for what a server sends
            why = describe_errors(error)
            if session.broken:
                why = session.describe_break()
            elif isinstance(error, TimeoutError):
                why = f"it did not answer within {self._behaviour.connect_seconds:g} s"
            raise ToolSourceError(f"the MCP server {self._name} does not list its tools: {why}") from None
        return self._make(session, listed)

    def known_tools(self) -> list[Tool] | None:
        """Its tools as last listed on this loop, also if the connection broke since; None if they have changed."""
        session = self._connections.here().last
        if session is None or session.known() is None:
            return None
        return self._make(session, session.known() or [])

    def _make(self, session: Session, listed: list[Any]) -> list[Tool]:
        """The same list of tools is always made of the same listed ones."""
        before = self._made.get(session)
        if before is not None and before[0] is listed:
            return before[1]
        behaviour = self._behaviour
        self._check_choice(listed)
        made: dict[str, Tool] = {}
        for each in listed:
            if behaviour.only is not None and not chosen(behaviour.only, each.name):
                continue
            if behaviour.without is not None and chosen(behaviour.without, each.name):
                continue
            name = local_name(behaviour.prefix, each.name)
            if name in made:
                raise ToolSourceError(f"two tools of the MCP server {self._name} are named {name!r}: leave one out")
            made[name] = MCPTool(self, each, name, self._traits(each), self._opener)
        tools = list(made.values())
        self._made[session] = listed, tools
        return tools

    def _check_choice(self, listed: list[Any]) -> None:
        names = [each.name for each in listed]
        approval = self._behaviour.approval
        wanted = {"only": self._behaviour.only, "approval": None if isinstance(approval, bool) else approval}
        for option, choice in wanted.items():
            if choice is None or callable(choice):
                continue
            if missing := [name for name in choice if name not in names]:
                raise ToolSourceError(
                    f"the MCP server {self._name} has no tool {', '.join(missing)}, which {option}= names; it has:"
                    f" {', '.join(names) or 'none'}"
                )

    def _traits(self, listed: Any) -> Traits:
        hints, approval = listed.annotations, self._behaviour.approval
        twice = hints is not None and bool(hints.read_only_hint or hints.idempotent_hint)
        asks = approval if isinstance(approval, bool) else listed.name in approval
        return Traits(asks, self._behaviour.timeout, twice)

    def _opener(self) -> Any:
        return self._connections.here().open

    # -- without an agent ---------------------------------------------------------------------------------------------

    async def call(self, tool: str, arguments: Mapping[str, Any] | None = None) -> str | ToolOutput:
        """Call one of its tools, by the name that agents know. Raises `ToolError` if the call fails."""
        for each in await self.tools():
            if each.name == tool and isinstance(each, MCPTool):
                return await each.call(dict(arguments or {}))
        raise UnknownToolError(f"the MCP server {self._name} has no tool {tool!r}")

    async def aclose(self) -> None:
        """Disconnect. A program is ended, with all its processes. The next use connects again."""
        await self._connections.close()

    async def __aenter__(self) -> Self:
        self._entered += 1
        try:
            await self.tools()
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered -= 1
        if self._entered == 0:
            await self.aclose()


def _name_of(command: Sequence[str], url: str | None) -> str:
    if url is not None:
        return urlsplit(url).hostname or url
    words = [word for word in command[1:] if not word.startswith("-")]
    first = os.path.basename(command[0])
    return f"{first} {os.path.basename(words[0])}" if words else first

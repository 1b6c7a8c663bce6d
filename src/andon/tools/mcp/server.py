# SPDX-License-Identifier: Apache-2.0
"""`MCPServer`: the tools of an MCP server, for one agent or for several."""

from __future__ import annotations

import asyncio
import os
import re
import weakref
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from andon.core.run.tool_call import ToolCallScope
from andon.errors import ConfigurationError, ToolSourceError, UnknownToolError
from andon.tools.base import Tool, ToolContext, ToolOutput, Traits, internals_of
from andon.tools.internals import CallInternals
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
    this object. It is disconnected by `aclose()`, when this object is no longer used, when the event loop ends, and
    when the process ends. Then a program ends with all its processes. As a context manager it is connected at once:

    >>> async with MCPServer("uvx mcp-server-time") as server:
    ...     names = [tool.name for tool in await server.tools()]
    ...     text = await server.call("get_current_time", {"timezone": "Europe/Paris"})

    `env` names the environment variables that a program gets besides HOME, PATH and their like, or gives their values.
    `prefix` goes before the names of the tools; `only` and `without` choose among them, by name or with a function.
    `timeout` limits each call. `approval` asks a person before each call, or before those of the tools that it names.
    `elicitation=False` refuses the server's questions to a person. `sampling` is an async function that answers the
    server's questions to a model; without it they are refused. `protocol="legacy"` is for servers that don't answer the
    way in which newer versions begin.
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
        """For each session its tools as listed, and those of them that agents get."""
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
        return self._make(*await self._list())

    async def _list(self) -> tuple[Session, list[Any]]:
        """An open session, and all tools that the server has."""
        self.check_setup()
        session = await self._connections.here().open()
        try:
            async with asyncio.timeout(self._behaviour.connect_seconds):
                listed = await session.list_tools()
        except Exception as error:  # noqa: BLE001 - the boundary: a server may send anything, and the SDK raise anything for it
            why = session.describe_refusal(describe_errors(error))
            if session.broken:
                why = session.describe_break()
            elif isinstance(error, TimeoutError):
                why = f"it did not answer within {self._behaviour.connect_seconds:g} s"
            raise ToolSourceError(f"the MCP server {self._name} does not list its tools: {why}") from None
        return session, listed

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
            tool = self._tool(each)
            if tool.name in made:
                raise ToolSourceError(
                    f"two tools of the MCP server {self._name} are named {tool.name!r}: leave one out"
                )
            made[tool.name] = tool
        tools = list(made.values())
        self._made[session] = listed, tools
        return tools

    def _tool(self, listed: Any) -> MCPTool:
        name = local_name(self._behaviour.prefix, listed.name)
        return MCPTool(self, listed, name, self._traits(listed), self._opener)

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

    # -- calls of your own --------------------------------------------------------------------------------------------

    async def call(
        self, tool: str, arguments: Mapping[str, Any] | None = None, ctx: ToolContext | None = None
    ) -> str | ToolOutput:
        """Call one of its tools, by the name that agents know, also if `only` or `without` hides it from agents.

        In an async tool of your own, pass that tool's `ctx`: then this call is a part of the tool's call. Progress is
        shown, a question of the server pauses the run, and after a cut the receipt names the call until the server was
        told. Raises `ToolError` if the call fails.
        """
        _, listed = await self._list()
        tools = [self._tool(each) for each in listed]
        for each in tools:
            if each.name == tool:
                return await each.call(dict(arguments or {}), None if ctx is None else _internals_here(ctx))
        has = ", ".join(each.name for each in tools) or "none"
        raise UnknownToolError(f"the MCP server {self._name} has no tool {tool!r}; it has: {has}")

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


def _internals_here(ctx: ToolContext) -> CallInternals | None:
    """The call that this code is part of, if it is on this loop. An undo function and a process have none."""
    internals = internals_of(ctx)
    scope: object = internals.scope
    here = isinstance(scope, ToolCallScope) and scope.run.loop is asyncio.get_running_loop()
    return internals if here else None


def _name_of(command: Sequence[str], url: str | None) -> str:
    if url is not None:
        return urlsplit(url).hostname or url
    words = [word for word in command[1:] if re.fullmatch(r"[\w@./:][\w@./:+-]*", word)]  # no option, and no code
    first = os.path.basename(command[0])
    return f"{first} {os.path.basename(words[0])}" if words else first

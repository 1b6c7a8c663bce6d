# SPDX-License-Identifier: Apache-2.0
"""One tool of an MCP server, as an agent uses it.

It belongs to no event loop. Each call goes over the connection of the loop that it is made on.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from andon.errors import BadArgumentsError, ToolSourceError
from andon.tools.base import ToolContext, ToolOutput, Traits, internals_of
from andon.tools.internals import CallInternals
from andon.tools.mcp.call import RemoteCall
from andon.tools.mcp.content import read_result
from andon.tools.mcp.session import NotDeliveredError, Session

MAX_NAME = 64


class Opener(Protocol):
    """Where a tool gets the session from."""

    def __call__(self) -> Awaitable[Session]: ...


class MCPTool:
    """Made by `MCPServer.tools`."""

    def __init__(self, server: Any, listed: Any, name: str, traits: Traits, opener: Callable[[], Opener]) -> None:
        self._server, self._opener = server, opener  # the server: its connections are closed when it is garbage
        self.remote_name: str = listed.name
        self.name = name
        self.description: str = listed.description or listed.title or listed.name
        self.parameters: dict[str, Any] = {"type": "object", "properties": {}, **listed.input_schema}
        self.traits = traits

    def __repr__(self) -> str:
        return f"<tool {self.name} of {self._server!r}>"

    def bind(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The server checks them against its schema. Here they only have to be an object."""
        if not isinstance(arguments, dict):
            raise BadArgumentsError(f"{self.name} takes an object")
        return arguments

    async def invoke(self, bound: dict[str, Any], ctx: ToolContext) -> str | ToolOutput:
        return await self.call(bound, internals_of(ctx))

    async def call(self, arguments: dict[str, Any], internals: CallInternals | None = None) -> str | ToolOutput:
        session = await self._opener()()
        try:
            result = await RemoteCall(session, self.name, internals).run(self.remote_name, arguments)
        except ToolSourceError as error:
            twice = self.traits.idempotent and session.broken is not None
            if not (twice or isinstance(error, NotDeliveredError)) or _is_cancelled():
                raise
            # The call did not begin, or calling it twice does no more than calling it once. So it is made again, once.
            session = await self._opener()()
            result = await RemoteCall(session, self.name, internals).run(self.remote_name, arguments)
        return read_result(self.name, result)


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def local_name(prefix: str, remote: str) -> str:
    """The name for models: providers take letters, digits, _ and -, MCP takes more."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", prefix + remote)[:MAX_NAME]

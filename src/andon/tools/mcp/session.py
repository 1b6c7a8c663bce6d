# SPDX-License-Identifier: Apache-2.0
"""One session with a server: from its handshake until it is closed or breaks.

What must stay true: only the task that opened it closes it. Calls are made in tasks of their own. So a call that is
cancelled breaks neither the session nor another call.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from andon.errors import AndonError, ToolSourceError, describe
from andon.tools.mcp import sdk
from andon.tools.mcp.content import describe_errors, read_sampling
from andon.tools.mcp.process import TAIL_LINES, stdio
from andon.tools.mcp.settings import Address, Behaviour

log = logging.getLogger(__name__)

CLOSE_SECONDS = 8.0
"""How long a session may take to close: more than a server that has to be killed takes."""

HURRY_SECONDS = 0.2
"""The same when the event loop is ending."""

MAX_PAGES = 100
MODERN = "2026-07-28"
"""From this version on, changes of the list are told only to those that have asked."""

ANSWERED_BADLY = "Server returned an error response"
"""The SDK's text for a status of HTTP that it has no text for."""

TERMINATED = ("Session terminated", "Session not found")
"""What SDKs say when the server knows nothing of the session: it was started again, for example."""


class CallInFlight(Protocol):
    """A call, as its session uses it."""

    async def take_progress(self, progress: float, total: float | None, message: str | None) -> None: ...

    async def ask(self, params: Any, types: Any) -> Any:
        """Ask a person for the server, and return the SDK's result for it."""
        ...


current_call: contextvars.ContextVar[CallInFlight | None] = contextvars.ContextVar("current_call", default=None)
"""The call that this code serves. What the server asks is read in the context of the call, where the SDK knows it."""


class NotDeliveredError(ToolSourceError):
    """The server has not taken the call."""


class Session:
    """A session that is open. `over` is set when it breaks, and when it shall be closed."""

    __slots__ = (
        "__weakref__",
        "_address",
        "_behaviour",
        "_changes",
        "_client",
        "_closed",
        "_http",
        "_listed",
        "_listener",
        "_status",
        "_types",
        "_when_closed",
        "broken",
        "calls",
        "hurry",
        "name",
        "over",
        "tail",
        "unheard",
    )

    def __init__(self, name: str, address: Address, behaviour: Behaviour) -> None:
        self.name, self._address, self._behaviour = name, address, behaviour
        self.over = asyncio.Event()
        self.broken: str | None = None
        """Why it can't be used any more."""
        self.unheard = asyncio.Event()
        """The server takes no messages: a program is ended at once, and nothing more is written to it."""
        self._closed = False
        self._when_closed: list[Callable[[], None]] = []
        self.hurry = False
        """The loop is ending: there is no time to wait for the end of the server."""
        self.calls: dict[CallInFlight, None] = {}
        """The calls in flight."""
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._client: Any = None
        self._http: Any = None
        self._types: Any = None
        self._listener: asyncio.Task[None] | None = None
        self._changes = 0
        self._status = ""
        """The last status of HTTP that was an error."""
        self._listed: list[Any] | None = None

    # -- opening and closing it, in the task that owns it -------------------------------------------------------------

    async def open(self) -> None:
        """Connect, and agree on a version of the protocol."""
        self._types = await asyncio.to_thread(sdk.load)
        from mcp.client.client import Client

        behaviour = self._behaviour
        transport: Any = stdio(self._address, self.tail, self.break_off, lambda: self.hurry, self.unheard)
        if self._address.url is not None:
            transport = await self._http_transport(self._address.url)
        self._client = Client(
            transport,
            mode=behaviour.protocol,
            cache=None,
            client_info=self._types.Implementation(name="andon", version="1"),
            elicitation_callback=self._elicit if behaviour.elicitation else None,
            sampling_callback=self._sample if behaviour.sampling is not None else None,
            message_handler=self._take_message,
        )
        await self._client.__aenter__()
        if self._tells_changes() and self._client.protocol_version >= MODERN:
            self._listener = asyncio.create_task(self._listen())

    async def _http_transport(self, url: str) -> Any:
        import httpx2
        from mcp.client.streamable_http import streamable_http_client
        from mcp.shared._httpx_utils import create_mcp_http_client

        # A call may take as long as its own limits allow: no limit here on the time without data.
        limits = httpx2.Timeout(30.0, read=None)
        headers = dict(self._address.headers)
        self._http = await asyncio.to_thread(create_mcp_http_client, headers, limits)  # it reads certificates
        self._http.event_hooks["response"].append(self._note_status)
        await self._http.__aenter__()
        return streamable_http_client(url, http_client=self._http)

    async def _note_status(self, response: Any) -> None:
        if response.status_code >= 400:
            self._status = f"{response.status_code} {response.reason_phrase}".strip()

    def describe_refusal(self, why: str) -> str:
        """The SDK's text for a refusal, or the status of HTTP if that says more."""
        if why != ANSWERED_BADLY or not self._status:
            return why
        hint = " Does it need another token, headers={…}?" if self._status[:3] in ("401", "403") else ""
        return f"it answered {self._status}.{hint}"

    async def close(self) -> None:
        """Close it. Bounded: a server that does not answer is left."""
        self.break_off("the session was closed")
        try:
            async with asyncio.timeout(HURRY_SECONDS if self.hurry else CLOSE_SECONDS):
                if self._listener is not None:
                    self._listener.cancel()
                if self._client is not None:
                    # First of all awaits: if a transport failed, the SDK cancels each await of this task until then.
                    await self._client.__aexit__(None, None, None)
                if self._listener is not None:
                    await asyncio.wait({self._listener})
        except TimeoutError:
            log.warning("the session with the MCP server %s did not close in time", self.name)
        finally:
            try:
                if self._http is not None:
                    await self._http.__aexit__(None, None, None)
            finally:
                self._closed = True
                for callback in self._when_closed:
                    callback()

    def when_closed(self, callback: Callable[[], None]) -> None:
        """Call it when the session is closed: a program has ended by then. Now, if it is closed."""
        if self._closed:
            callback()
        else:
            self._when_closed.append(callback)

    def give_up(self, why: str) -> None:
        """The server takes no messages. Its owner closes the session, without a word to the server."""
        self.unheard.set()
        self.break_off(why)

    def break_off(self, why: str) -> None:
        """It can't be used any more. Its owner closes it."""
        if self.broken is None:
            self.broken = why
        self.over.set()

    def describe_break(self, more: str = "") -> str:
        said = "".join(f"\n  {line}" for line in self.tail)
        return f"{self.broken or 'the connection was closed'}{more}{'. It wrote last:' + said if said else ''}"

    # -- its tools ----------------------------------------------------------------------------------------------------

    def known(self) -> list[Any] | None:
        """Its tools as last listed; None if they may have changed."""
        return self._listed

    async def list_tools(self) -> list[Any]:
        if self._listed is not None:
            return self._listed
        changes, listed, cursor = self._changes, [], None
        for _ in range(MAX_PAGES):
            page = await self._client.list_tools(cursor=cursor)
            listed += page.tools
            cursor = page.next_cursor
            if cursor is None:
                break
        if changes == self._changes:  # else it changed meanwhile, and is listed again the next time
            self._listed = listed
        return listed

    def _tells_changes(self) -> bool:
        tools = self._client.server_capabilities.tools
        return tools is not None and bool(tools.list_changed)

    def _changed(self) -> None:
        self._changes += 1
        self._listed = None

    async def _take_message(self, message: Any) -> None:
        if isinstance(message, self._types.ToolListChangedNotification):
            self._changed()

    async def _listen(self) -> None:
        """Have the server tell when the list changes, where the protocol's version wants it asked for."""
        try:
            async with self._client.listen(tools_list_changed=True) as subscription:
                self._changed()  # it may have changed before the server listened
                async for _ in subscription:
                    self._changed()
        except Exception as error:  # noqa: BLE001 - the boundary: without it the list is only not kept up to date
            log.debug("the MCP server %s tells no changes: %s", self.name, describe_errors(error))

    # -- its calls ----------------------------------------------------------------------------------------------------

    async def call(self, tool: str, arguments: dict[str, Any], call: CallInFlight) -> Any:
        """Call a tool, in the task of that call. A cancellation tells the server, in the way of the version."""
        from mcp import MCPError

        if self.broken is not None:
            raise ToolSourceError(f"the MCP server {self.name} is gone: {self.describe_break()}")
        current_call.set(call)
        self.calls[call] = None
        try:
            return await self._client.call_tool(tool, arguments, progress_callback=call.take_progress)
        except MCPError as error:
            if error.error.message in TERMINATED:
                self.break_off("the server does not know the session any more")
                raise NotDeliveredError(f"the MCP server {self.name} does not know its session any more") from None
            if self._is_the_end(error):
                raise ToolSourceError(
                    f"the connection to the MCP server {self.name} broke during the call: "
                    + self.describe_break(". What the call did until then is unknown")
                ) from None
            raise ToolSourceError(
                f"the MCP server {self.name} refuses the call: {self.describe_refusal(error.error.message)}"
            ) from None
        except AndonError:
            raise
        except Exception as error:  # noqa: BLE001 - the boundary: the SDK found the result invalid
            raise ToolSourceError(f"the MCP server {self.name}: {describe_errors(error)}") from None
        finally:
            del self.calls[call]

    def _is_the_end(self, error: Any) -> bool:
        """Whether the session ended, not the call alone."""
        ended: bool = error.error.code == self._types.CONNECTION_CLOSED
        if ended:
            self.break_off("the connection was closed")
        return ended or self.broken is not None

    # -- what the server asks -----------------------------------------------------------------------------------------

    async def _elicit(self, context: Any, params: Any) -> Any:
        """The server asks a person. The call that it serves asks the question, and may end for it."""
        call = current_call.get()
        if call is None:
            # The protocol does not say for which call the server asks. With one in flight, it is that one.
            if len(self.calls) != 1:
                return self._refusal(
                    f"{len(self.calls)} calls are in flight, and nothing tells which of them asks; call the tool alone"
                )
            (call,) = self.calls
        return await call.ask(params, self._types)

    async def _sample(self, context: Any, params: Any) -> Any:
        assert self._behaviour.sampling is not None
        try:
            text = await self._behaviour.sampling(read_sampling(self.name, params))
        except Exception as error:  # noqa: BLE001 - the boundary: the server is told that it failed, not why
            log.warning("the sampling function for the MCP server %s failed: %s", self.name, describe(error))
            return self._refusal("the model could not be asked")
        content = self._types.TextContent(type="text", text=text)
        return self._types.CreateMessageResult(role="assistant", content=content, model="unknown")

    def _refusal(self, why: str) -> Any:
        return self._types.ErrorData(code=self._types.INVALID_REQUEST, message=why)

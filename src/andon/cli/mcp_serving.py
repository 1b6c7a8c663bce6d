# SPDX-License-Identifier: Apache-2.0
"""Agents as the tools of an MCP server, on the official SDK.

What must stay true: a call is one run. If the client cancels the call, or goes away, the run is cancelled, and the
server waits for its end. Nothing but the protocol is written to stdout.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import anyio
import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

from andon import __version__
from andon.agent.agent import Agent
from andon.agent.output import output_format
from andon.core.events import Event, RunEvent
from andon.core.receipt import RunResult
from andon.core.run.handle import Run, local_run
from andon.core.states import CancelCause, RunStatus
from andon.errors import AndonError, confide

END_SECONDS = 5.0
"""How long we wait for the end of a run that was cancelled."""

TEXT_STEP = 500
"""One progress message for so many characters of an answer."""

CLIENT_CANCELLED = "the MCP client cancelled the call"
CLIENT_GONE = "the MCP client disconnected"
ENDING = "the MCP server ends"
NO_PERSON = "nobody can be asked over MCP"


class AgentTools:
    """One tool for each agent."""

    def __init__(self, agents: Sequence[Agent[Any]]) -> None:
        self._agents: dict[str, Agent[Any]] = {}
        for agent in agents:
            self._agents.setdefault(re.sub(r"[^a-zA-Z0-9_-]", "_", agent.id)[:64], agent)
        self._runs: set[Run[Any]] = set()
        self._ending: tuple[CancelCause, str] | None = None

    @property
    def names(self) -> list[str]:
        return list(self._agents)

    def server(self) -> Server[Any]:
        return Server("andon", version=__version__, on_list_tools=self._list, on_call_tool=self._call)

    def ends(self, cause: CancelCause, reason: str) -> None:
        """From now on, runs are cancelled for this cause."""
        if self._ending is None:
            self._ending = cause, reason

    async def cancel_all(self) -> None:
        """Cancel all runs, and wait for their end."""
        self.ends(CancelCause.shutdown, ENDING)
        runs = list(self._runs)
        for run in runs:
            self._cancel(run)
        await asyncio.gather(*(run.gone(END_SECONDS) for run in runs))

    async def _list(self, context: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[describe(name, agent) for name, agent in self._agents.items()])

    async def _call(self, context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        agent = self._agents.get(params.name)
        if agent is None:
            return failed(f"there is no tool {params.name!r}; there are: {', '.join(self._agents)}")
        given = params.arguments or {}
        message, session_id = given.get("message"), given.get("session_id")
        if not isinstance(message, str) or not isinstance(session_id, str | None) or given.keys() - _FIELDS:
            return failed(f'{params.name} takes {{"message": "…"}}, and maybe a "session_id", both texts')
        try:
            # Without an id, the conversation is a new one: the agent's own would be shared by all clients.
            run = agent.start(message, session_id=session_id or os.urandom(16).hex())
            await run.begin()
            return write_result(agent, await self._follow(run, context))
        except AndonError as error:
            return failed(confide(error))

    async def _follow(self, run: Run[Any], context: Any) -> RunResult[Any]:
        """Wait for the end of the run, and tell the client of its progress. A cancellation cancels the run."""
        self._runs.add(run)
        try:
            with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                await self._report(run, context)
            result = await run.result()
            if result.status is RunStatus.paused:
                run.cancel(NO_PERSON)  # else the session would wait for an answer for ever
            return result
        except anyio.get_cancelled_exc_class():
            self._cancel(run)
            with anyio.CancelScope(shield=True):
                await run.gone(END_SECONDS)
            raise
        finally:
            self._runs.discard(run)

    def _cancel(self, run: Run[Any]) -> None:
        cause, reason = self._ending or (CancelCause.user, CLIENT_CANCELLED)
        local_run(run).cancel_for(cause, reason)

    async def _report(self, run: Run[Any], context: Any) -> None:
        if not (context.meta or {}).get("progress_token"):
            return
        count = told = 0
        async for event in run:
            count += len(event.content) if event.event is RunEvent.run_content else TEXT_STEP
            if count - told >= TEXT_STEP and (text := describe_event(event)) is not None:
                told = count
                await context.session.report_progress(count, None, text)


_FIELDS = {"message", "session_id"}
_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "message": {"type": "string", "description": "What it shall do, with all that it must know."},
        "session_id": {
            "type": "string",
            "description": "Any text. A later call with the same one goes on with the conversation.",
        },
    },
    "required": ["message"],
    "additionalProperties": False,
}


def describe(name: str, agent: Agent[Any]) -> types.Tool:
    expected = output_format(agent.output_type)
    spec = None if expected is None else expected.spec
    return types.Tool(
        name=name,
        title=agent.name,
        description=agent.description or f"Ask {agent.name}.",
        input_schema=_SCHEMA,
        output_schema=None if spec is None else spec.schema,
    )


def describe_event(event: Event) -> str | None:
    """What a progress message says of an event; None if it is of no interest."""
    tool = event.tool
    match event.event:
        case RunEvent.tool_call_started if tool is not None:
            return f"calls {tool.name}"
        case RunEvent.tool_call_completed | RunEvent.tool_call_error if tool is not None:
            return f"{tool.name}: {tool.outcome}"
        case RunEvent.model_retry:
            return "the model is asked again"
        case RunEvent.run_content:
            return "writes"
    return None


def write_result(agent: Agent[Any], result: RunResult[Any]) -> types.CallToolResult:
    """The end of a run, as the result of the call."""
    meta: Any = {"andon/run_id": result.run_id, "andon/session_id": result.session_id}
    if result.status is RunStatus.error:
        assert result.error is not None
        return failed(confide(result.error), meta)
    if result.status is RunStatus.paused:
        return failed(f"{agent.name} asks a person ({result.interrupts[0].name}), and {NO_PERSON}", meta)
    if (receipt := result.receipt) is not None:
        return failed(f"{agent.name} was cancelled ({receipt.cause}); it had said: {result.content!r}", meta)
    expected = output_format(agent.output_type)
    data = None
    if expected is not None and expected.spec is not None:
        data = result.to_dict()["output"]
        if not isinstance(data, dict):
            data = {"result": data}  # as the schema has it
    content = types.TextContent(type="text", text=result.message.text)
    return types.CallToolResult(content=[content], structured_content=data, _meta=meta)


def failed(text: str, meta: Any = None) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=True, _meta=meta)


# -- stdio ------------------------------------------------------------------------------------------------------------


class NoticingStream:
    """The messages of the client. It notes their end before the SDK cancels the calls because of that."""

    def __init__(self, stream: Any, tools: AgentTools) -> None:
        self._stream, self._tools = stream, tools

    @property
    def last_context(self) -> Any:
        return getattr(self._stream, "last_context", None)

    def __aiter__(self) -> NoticingStream:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self._stream.__anext__()
        except StopAsyncIteration:
            self._tools.ends(CancelCause.disconnect, CLIENT_GONE)
            raise

    async def receive(self) -> Any:
        try:
            return await self._stream.receive()
        except anyio.EndOfStream:
            self._tools.ends(CancelCause.disconnect, CLIENT_GONE)
            raise

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def __aenter__(self) -> NoticingStream:
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.aclose()


async def serve_stdio(tools: AgentTools) -> None:
    """Serve one client, until it closes our stdin."""
    ending: list[asyncio.Task[None]] = []

    async def end() -> None:
        await tools.cancel_all()
        os._exit(0)  # a thread waits for the client's next message, and nothing else would end it

    def on_signal() -> None:
        if ending:
            os._exit(130)
        ending.append(asyncio.get_running_loop().create_task(end()))

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    server = tools.server()
    async with stdio_server() as (reading, writing):
        await server.run(NoticingStream(reading, tools), writing, server.create_initialization_options())


@contextlib.contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """While the user's modules are imported: what they print must not get among the messages."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


# -- HTTP -------------------------------------------------------------------------------------------------------------


async def serve_http(tools: AgentTools, listener: Any) -> None:
    """Serve clients of this machine, until a signal."""
    import uvicorn

    server = tools.server()
    app = server.streamable_http_app()
    config = uvicorn.Config(app, log_level="warning", log_config=None, access_log=False, timeout_graceful_shutdown=2)
    serving = uvicorn.Server(config)
    # Our own handling of signals: uvicorn would raise the signal again at the end.
    serving.capture_signals = contextlib.nullcontext  # type: ignore[method-assign, assignment]
    ending: list[asyncio.Task[None]] = []

    async def end() -> None:
        await tools.cancel_all()
        serving.should_exit = True

    def on_signal() -> None:
        if ending:
            os._exit(130)
        ending.append(asyncio.get_running_loop().create_task(end()))

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    listener.listen()  # before the address is told: who reads it may connect at once
    port = listener.getsockname()[1]
    print(f"serving {', '.join(tools.names)} at http://127.0.0.1:{port}/mcp", file=sys.stderr, flush=True)
    await serving.serve([listener])

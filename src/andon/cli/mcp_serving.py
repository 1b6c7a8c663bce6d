# SPDX-License-Identifier: Apache-2.0
"""Agents as the tools of an MCP server, on the official SDK.

What must stay true: a call starts one run, and a call with an answer continues one. If the client cancels the call, or
disconnects, the run is cancelled, and the server waits for its end. Only the protocol is written to stdout.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import anyio
import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.transport_security import TransportSecuritySettings

from andon import __version__
from andon.agent.agent import Agent
from andon.agent.output import output_format
from andon.cli import mcp_questions as questions
from andon.core.events import Event, RunEvent
from andon.core.receipt import RunResult
from andon.core.run.handle import Run, local_run
from andon.core.states import CancelCause, RunStatus
from andon.errors import AndonError, NotContinuableError, confide

END_SECONDS = 5.0
"""How long we wait for the end of a run that was cancelled."""

TEXT_STEP = 500
"""How many characters of an answer make one progress message."""

CLIENT_CANCELLED = "the MCP client cancelled the call"
CLIENT_GONE = "the MCP client disconnected"
ENDING = "the MCP server ends"
NO_PERSON = "this MCP client can't ask one: it does not offer elicitation"
ANSWERED = "another client has answered: the run goes on, or has ended, and this call does not get its result"
NOT_OPEN = (
    "this question is not open any more: its run was cancelled or has ended, or another client has answered. Call the"
    " tool again if you still need its result"
)

USER = "andon.user_id"
"""Where the scope of an HTTP request has the user of its token."""


Result: TypeAlias = types.CallToolResult | types.InputRequiredResult
"""The result of a call: how its run ended, or what the run asks."""


class AgentTools:
    """One tool for each agent."""

    def __init__(self, agents: Sequence[Agent[Any]]) -> None:
        self._agents: dict[str, Agent[Any]] = {}
        for agent in agents:
            self._agents.setdefault(re.sub(r"[^a-zA-Z0-9_-]", "_", agent.id)[:64], agent)
        self._runs: dict[str, Run[Any]] = {}
        self._asked: dict[str, WaitingRun] = {}
        """The runs whose client is to call again with an answer, by a key that only that client knows."""
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
        runs = list(self._runs.values())
        for run in runs:
            self._cancel(run)
        await asyncio.gather(*(run.gone(END_SECONDS) for run in runs))

    async def _list(self, context: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[describe(name, agent) for name, agent in self._agents.items()])

    async def _call(self, context: Any, params: types.CallToolRequestParams) -> Result:
        agent = self._agents.get(params.name)
        if agent is None:
            return failed(f"there is no tool {params.name!r}; there are: {', '.join(self._agents)}")
        if params.request_state is not None:
            return await self._call_again(agent, context, params)
        given = params.arguments or {}
        message, session_id = given.get("message"), given.get("session_id")
        if not isinstance(message, str) or not isinstance(session_id, str | None) or given.keys() - _FIELDS:
            return failed(f'{params.name} takes {{"message": "…"}}, and maybe a "session_id", both texts')
        try:
            # Without an id, the conversation is a new one: the agent's own would be shared by all clients.
            user_id = user_of(context)
            run = agent.start(message, session_id=session_id or os.urandom(16).hex(), user_id=user_id)
            await run.begin()
            return await self._follow(agent, run, context)
        except AndonError as error:
            return failed(confide(error))

    async def _call_again(self, agent: Agent[Any], context: Any, params: types.CallToolRequestParams) -> Result:
        """The client has called again, with a person's answers."""
        key = params.request_state or ""
        waiting = self._asked.get(key)
        if waiting is None or waiting.agent is not agent or waiting.asked.run.user_id != user_of(context):
            return failed(NOT_OPEN)
        del self._asked[key]
        waiting.watch.cancel()
        asked, responses = waiting.asked, params.input_responses or {}
        return await self._follow(agent, asked.run, context, waiting.told, asked, responses)

    async def _follow(
        self,
        agent: Agent[Any],
        run: Run[Any],
        context: Any,
        told: int = 0,
        asked: questions.Asked | None = None,
        responses: Mapping[str, Any] | None = None,
    ) -> Result:
        """Follow the run to its end, and report its progress to the client. A cancellation cancels the run.

        Questions of the run are passed to the client. `told` is the number of the last event that was reported.
        `responses` are the answers to `asked`, if `asked` was the result of an earlier call.
        """
        self._runs[run.run_id] = run
        waits = False
        try:
            while True:
                if asked is not None:
                    try:
                        if responses is None:
                            answers = await questions.ask(context, asked)
                        else:
                            answers = questions.read_answers(asked.questions, responses)
                        run = self._runs[run.run_id] = await agent.resume_run(run.run_id, answers, check=asked.check)
                    except (questions.NotAnswered, AndonError) as error:
                        return await self._give_up(agent, asked, error)
                with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                    told = await self._report(run, context, told)
                result = await run.result()
                if result.status is not RunStatus.paused:
                    return write_result(agent, result)
                asked = questions.Asked(run, result.interrupts)
                if not questions.can_ask(context):
                    return await self._give_up(agent, asked, questions.NotAnswered(NO_PERSON))
                if questions.asks_by_result(context):
                    waits = True
                    return self._ask_by_result(agent, asked, told)
        except anyio.get_cancelled_exc_class():
            self._cancel(run)
            with anyio.CancelScope(shield=True):
                await run.gone(END_SECONDS)
            raise
        finally:
            if not waits:
                self._runs.pop(run.run_id, None)

    def _ask_by_result(self, agent: Agent[Any], asked: questions.Asked, told: int) -> types.InputRequiredResult:
        """Have the client ask, and call again."""
        key = os.urandom(16).hex()
        watch = asyncio.create_task(self._wait_for_answer(key, asked))
        self._asked[key] = WaitingRun(agent, asked, told, watch)
        return questions.as_result(asked.questions, key)

    async def _wait_for_answer(self, key: str, asked: questions.Asked) -> None:
        """Forget the run when its questions are not open any more. If no answer comes for a while, it is cancelled.

        The call that brings the answer cancels this task.
        """
        try:
            async with asyncio.timeout(questions.ANSWER_SECONDS):
                await asked.closed()
        except TimeoutError:
            if asked.is_open:
                asked.run.cancel(f"no answer came within {questions.ANSWER_SECONDS:g} s")
        del self._asked[key]
        await asked.run.gone(END_SECONDS)  # until then, `cancel_all` has to know it
        self._runs.pop(asked.run.run_id, None)

    async def _give_up(self, agent: Agent[Any], asked: questions.Asked, why: Exception) -> types.CallToolResult:
        """No answer comes. If the run still asks, cancel it; otherwise its session would wait for ever."""
        run = asked.run
        if not asked.is_open or isinstance(why, NotContinuableError):
            if run.status in (RunStatus.cancelling, RunStatus.cancelled):
                return write_result(agent, await run.result())
            return failed(f"{agent.name} asked a person, and {ANSWERED}", ids_of(run))
        said = confide(why) if isinstance(why, AndonError) else str(why)
        run.cancel(said)
        what = questions.describe(asked.questions)
        return failed(
            f"{agent.name} was cancelled, because it asked a person, and {said}. It asked: {what}", ids_of(run)
        )

    def _cancel(self, run: Run[Any]) -> None:
        cause, reason = self._ending or (CancelCause.user, CLIENT_CANCELLED)
        local_run(run).cancel_for(cause, reason)

    async def _report(self, run: Run[Any], context: Any, after: int) -> int:
        """Report the events after this number, up to the end or a question. Returns the number of the last one."""
        if not (context.meta or {}).get("progress_token"):
            return after
        count = told = after * TEXT_STEP  # progress has to grow, also after a question
        async for event in run.events(after):
            after = event.seq
            count += len(event.content) if event.event is RunEvent.run_content else TEXT_STEP
            if count - told >= TEXT_STEP and (text := describe_event(event)) is not None:
                told = count
                await context.session.report_progress(count, None, text)
        return after


class WaitingRun(NamedTuple):
    """A run that is paused until its client calls again."""

    agent: Agent[Any]
    asked: questions.Asked
    told: int
    watch: asyncio.Task[None]


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
    """The text of a progress message for an event; None if it gets none."""
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
    meta = ids_of(result)
    if result.status is RunStatus.error:
        assert result.error is not None
        return failed(confide(result.error), meta)
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


def ids_of(run: Run[Any] | RunResult[Any]) -> Any:
    return {"andon/run_id": run.run_id, "andon/session_id": run.session_id}


def failed(text: str, meta: Any = None) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=True, _meta=meta)


# -- stdio ------------------------------------------------------------------------------------------------------------


class NoticingStream:
    """The messages of the client. At their end, the SDK cancels all calls. This sets the cause of the cancels first."""

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
    await tools.cancel_all()  # for paused runs whose call has returned the question


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


def user_of(context: Any) -> str | None:
    """The user of the token that a call came with. None for an admin's, without tokens, and over stdio."""
    if context.request is None:
        return None
    user: str | None = context.request.scope.get(USER)
    return user


async def serve_http(tools: AgentTools, listener: Any, guard: Callable[[Any], Any] | None) -> None:
    """Serve clients until a signal: those that the guard accepts, or without a guard, those of this machine."""
    import uvicorn

    server = tools.server()
    if guard is None:
        app: Any = server.streamable_http_app()
    else:
        # The host name needs no check: a web page without a token gets nothing.
        security = TransportSecuritySettings(enable_dns_rebinding_protection=False)
        app = guard(server.streamable_http_app(transport_security=security))
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
    listener.listen()  # before the address is printed: a client may connect at once
    address, port = listener.getsockname()[:2]
    url = f"http://{f'[{address}]' if ':' in address else address}:{port}/mcp"
    print(f"serving {', '.join(tools.names)} at {url}", file=sys.stderr, flush=True)
    await serving.serve([listener])

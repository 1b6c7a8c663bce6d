# SPDX-License-Identifier: Apache-2.0
"""The agent: a definition that can be run, any number of times, from any thread or event loop.

It holds no state of a run. It holds the cord, with which `agent.cancel()` stops all its runs.
"""

from __future__ import annotations

import copy
import functools
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, Unpack, overload

from andon.agent.context import ContextPolicy
from andon.agent.continuation import EarlierRun
from andon.agent.history import check_history
from andon.agent.hooks import Hooks
from andon.agent.instructions import InstructionsFunction, check_instructions
from andon.agent.known_runtimes import KnownRuntimes
from andon.agent.loop import Loop
from andon.agent.options import ContinueOptions, OnLost, RunOptions, check_id, check_limits, check_queueing
from andon.agent.output import NO_TYPE, OutputFormat, output_format
from andon.agent.plan import Plan
from andon.agent.prompt import Prompt, read_prompt
from andon.agent.resume import ContinueRequest, RunContinuer
from andon.agent.retry import Retry
from andon.agent.sessions import Sessions
from andon.agent.subagent import AgentTool, check_can_continue, sub_agents
from andon.core.budget import Budget
from andon.core.cord import Cord
from andon.core.jsonable import as_json
from andon.core.receipt import CancelRequest, OutputT, RunResult
from andon.core.records import RequestKey, RunRecord, SessionKey
from andon.core.run.handle import Run, local_run
from andon.core.run.limits import Limits
from andon.core.run.run import LocalRun
from andon.core.run.stream import EventStream
from andon.core.run.waits import begin_and_wait, wait_result, wait_settled
from andon.core.runtime import Runtime
from andon.core.session import Session
from andon.core.states import CancelMode, CancelOutcome
from andon.errors import (
    ConfigurationError,
    NoModelError,
)
from andon.messages import Message
from andon.models.base import Model, check_content, check_model, check_setup
from andon.store.memory import MemoryStore
from andon.sync import BlockingStream, check_blocking, run_blocking
from andon.telemetry import AUTOMATIC, Telemetry
from andon.tools.base import Tool
from andon.tools.function import as_tool
from andon.tools.source import ToolSource, is_source

if TYPE_CHECKING:
    from typing_extensions import TypeForm, TypeVar

    from andon.core.shared.run_queue import ClaimedRun

    T = TypeVar("T", default=object)

__all__ = ["Agent", "RunOptions"]


def _do_nothing() -> None:
    pass


class Agent(Generic[OutputT]):
    """A model, its instructions and its tools.

    >>> agent = Agent(name="Storyteller", model=ScriptedModel.story())
    >>> result = agent.run("Tell me about the sea.", timeout=2)
    >>> result.stop_reason
    'cancelled'

    `max_turns`, `timeout` and `budget` limit each of its runs. A call may give its own value instead, and `None` for no
    limit. `deps` is what its tools, hooks and instructions get as `ctx.deps`, unless a call gives its own.
    """

    def __init__(
        self,
        name: str,
        model: Model | None = None,
        *,
        id: str | None = None,
        description: str | None = None,
        instructions: str | InstructionsFunction | None = None,
        tools: Sequence[Tool | ToolSource | Callable[..., Any]] = (),
        hooks: Sequence[object] = (),
        runtime: Runtime | None = None,
        parallel_tools: bool = True,
        retry: Retry | None = None,
        telemetry: Telemetry | None = None,
        max_turns: int | None = 50,
        timeout: float | None = None,
        budget: Budget | int | None = None,
        deps: Any = None,
        output_type: TypeForm[OutputT] = NO_TYPE,
        output_retries: int = 2,
        context: ContextPolicy | None = None,
        queue: str = "default",
        priority: int = 0,
        on_lost: OnLost = "end",
    ) -> None:
        if model is not None:
            check_model(model)
        if not isinstance(name, str):
            raise ConfigurationError(f"the name must be text, not {type(name).__name__}")
        check_instructions(instructions)
        if not isinstance(runtime, Runtime | None):
            raise ConfigurationError(f"{runtime!r} is no Runtime: give one, for a database Runtime(open_store(url))")
        if not isinstance(telemetry, Telemetry | None):
            raise ConfigurationError(f"{telemetry!r} is no Telemetry; to switch it off: Telemetry(enabled=False)")
        _check_lists(tools=tools, hooks=hooks)
        self.name, self.model, self.description, self.instructions = name, model, description, instructions
        self.id = id or _slug(name)
        tools = list(tools)
        self.tools = _checked_tools([each for each in tools if not is_source(each)])
        self.tool_sources: list[ToolSource] = [each for each in tools if is_source(each)]
        """They are asked for more tools when a run begins."""
        self.hooks = list(hooks)
        Hooks(self.hooks)  # raises here if one of them is no hook
        self.brought_runtime = runtime is not None
        """It was made with `runtime=`, so its runs stay there when other agents call it."""
        self._known_runtimes = KnownRuntimes()
        self.move_to(Runtime() if runtime is None else runtime)
        self.parallel_tools = parallel_tools
        self.retry = retry or Retry()
        self.output_type, self._output = output_type, output_format(output_type)
        self.output_retries = _checked_retries(output_retries)
        self.context = _checked_context(context)
        self.telemetry = telemetry or AUTOMATIC
        self.max_turns, self.timeout, self.budget = check_limits(max_turns, timeout, budget)
        self.deps = deps
        self.queue, self.priority, self.on_lost = check_queueing(queue, priority, on_lost)
        self.session_id = _fresh_id()
        """The agent's own conversation. Runs without a `session_id` go on with it."""
        self._cord = Cord()

    def __repr__(self) -> str:
        return f"<Agent {self.id}>"

    @property
    def messages(self) -> list[Message]:
        """The agent's own conversation."""
        return self._own_session().messages

    def move_to(self, runtime: Runtime) -> None:
        """Use another runtime, and so its store, for the runs that start from now on."""
        if runtime.store is None:
            runtime.store = MemoryStore()
        if isinstance(runtime.store, MemoryStore):
            runtime.store.retention.spare(runtime.holds)
        if runtime.is_shared:
            from andon.agent.orphan_end import end_orphan  # only shared stores need it

            runtime.keep(functools.partial(end_orphan, agents=runtime.undoers))
            runtime.undoers.setdefault(self.id, self)
        self.runtime = runtime
        self._session: Session | None = None
        for each in sub_agents(self.tools):
            each.be_used_on(runtime)

    def on(self, runtime: Runtime) -> Self:
        """This agent, with its runs on another runtime. Everything else is shared: `cancel` stops the runs of both."""
        if runtime is self.runtime:
            return self
        there = copy.copy(self)
        there.move_to(runtime)
        return there

    @property
    def sub_agents(self) -> list[Agent[Any]]:
        """The agents that this one has as tools."""
        return [each for each in sub_agents(self.tools) if isinstance(each, Agent)]

    def be_used_on(self, runtime: Runtime) -> None:
        """An agent on this runtime calls this one, directly or through another agent: runs of it may be there."""
        if not self.brought_runtime and self._known_runtimes.add(runtime):
            runtime.undoers.setdefault(self.id, self)
            for each in sub_agents(self.tools):
                each.be_used_on(runtime)

    # -- running ------------------------------------------------------------------------------------------------------

    @overload
    def run(
        self, prompt: Prompt, *, stream: Literal[False] = False, **options: Unpack[RunOptions]
    ) -> RunResult[OutputT]: ...

    @overload
    def run(
        self, prompt: Prompt, *, stream: Literal[False] = False, output_type: TypeForm[T], **options: Unpack[RunOptions]
    ) -> RunResult[T]: ...

    @overload
    def run(
        self, prompt: Prompt, *, stream: Literal[True], output_type: Any = None, **options: Unpack[RunOptions]
    ) -> BlockingStream: ...

    def run(
        self, prompt: Prompt, *, stream: bool = False, output_type: Any = None, **options: Unpack[RunOptions]
    ) -> RunResult[Any] | BlockingStream:
        """Run to the end and return the result; with `stream=True`, return an iterator over the events."""
        check_blocking("`async for event in agent.stream_async(...)`" if stream else "`await agent.invoke_async(...)`")
        run = self.start(prompt, output_type=output_type, **options)
        return BlockingStream(run) if stream else run_blocking(run)

    @overload
    async def invoke_async(self, prompt: Prompt, **options: Unpack[RunOptions]) -> RunResult[OutputT]: ...

    @overload
    async def invoke_async(
        self, prompt: Prompt, *, output_type: TypeForm[T], **options: Unpack[RunOptions]
    ) -> RunResult[T]: ...

    async def invoke_async(
        self, prompt: Prompt, *, output_type: Any = None, **options: Unpack[RunOptions]
    ) -> RunResult[Any]:
        """Run to the end and return the result. A cancelled or failed run returns too: see its `status`."""
        run = local_run(self.start(prompt, output_type=output_type, **options))
        await begin_and_wait(run)
        await wait_settled(run)
        return await wait_result(run)

    def stream_async(self, prompt: Prompt, *, output_type: Any = None, **options: Unpack[RunOptions]) -> EventStream:
        """Run, and read the events as they come. A reader that leaves early cancels the run."""
        return EventStream(self.start(prompt, output_type=output_type, **options))

    @overload
    def start(self, prompt: Prompt, **options: Unpack[RunOptions]) -> Run[OutputT]: ...

    @overload
    def start(self, prompt: Prompt, *, output_type: TypeForm[T], **options: Unpack[RunOptions]) -> Run[T]: ...

    def start(self, prompt: Prompt, *, output_type: Any = None, **options: Unpack[RunOptions]) -> Run[Any]:
        """Make the handle of a run. The run begins at `async with agent.start(...) as run`."""
        message = read_prompt(prompt)
        check_content(self.model, message.content)
        return Run(self._make([message], options, output_type=output_type))

    def _make(
        self,
        messages: list[Message],
        options: RunOptions,
        earlier: EarlierRun | None = None,
        restored: tuple[RunRecord, list[Message], list[Message]] | None = None,
        output_type: Any = None,
    ) -> LocalRun:
        if unknown := options.keys() - RunOptions.__annotations__.keys():
            known = ", ".join([*RunOptions.__annotations__, "output_type"])
            raise TypeError(f"there is no option {', '.join(sorted(unknown))} for a run; there are: {known}")
        for name in ("session_id", "user_id", "run_id"):
            check_id(name, options.get(name))
        plan = self._plan(options)
        session = self._find_session(options.get("session_id"), options.get("user_id"))
        output = self._output if output_type is None else output_format(output_type)
        max_turns, timeout, budget = check_limits(
            options.get("max_turns", self.max_turns),
            options.get("timeout", self.timeout),
            options.get("budget", self.budget),
        )
        if (on_busy := options.get("on_busy", "reject")) not in ("reject", "queue", "cancel"):
            raise ConfigurationError(f'on_busy is {on_busy!r}; use "reject", "queue" or "cancel"')
        if not isinstance(metadata := options.get("metadata"), dict | None):
            raise ConfigurationError(f"metadata must be a dict, not {type(metadata).__name__}")
        run = LocalRun(
            self.runtime,
            self._cord,
            session,
            options.get("run_id") or _fresh_id(),
            on_busy=on_busy,
            limits=Limits(timeout, options.get("cancel_on")),
            metadata=as_json(metadata),
            budget=budget,
            detached=options.get("detached", False),
            heeds_arm=self._is_own(options.get("session_id"), options.get("user_id")),
            id_was_given=bool(options.get("run_id")),
        )
        loop = self._make_loop(plan, run, messages, max_turns, output, earlier)
        if restored is not None:
            loop.restore(*restored)
        run.work = loop
        return run

    def _make_loop(
        self,
        plan: Plan,
        run: LocalRun,
        messages: list[Message],
        max_turns: int | None,
        output: OutputFormat | None,
        earlier: EarlierRun | None,
    ) -> Loop:
        """The loop of a run; with an observer, if telemetry is on."""
        observer = None
        if (tracing := self.telemetry.tracing()) is not None:
            from andon.agent.observer import LoopObserver

            continues = earlier.run_id if earlier else None
            observer = LoopObserver(tracing, run, self.name, self.description, plan.model, continues)
        return Loop(plan, run, messages, max_turns, output, earlier, observer)

    def _plan(self, options: RunOptions) -> Plan:
        if self.model is None:
            raise NoModelError(f"agent {self.name!r} has no model: give it one with Agent(name=..., model=...)")
        check_model(self.model)  # again: it may have been changed
        check_setup(self.model)
        check_setup(self.context)
        for source in self.tool_sources:
            source.check_setup()
        assert self.runtime.store is not None
        tools = {tool.name: tool for tool in self.tools}
        history = options.get("messages")
        return Plan(
            self.model,
            self.instructions,
            tools,
            Hooks(self.hooks),
            self.parallel_tools,
            self.retry,
            self.runtime.store,
            options.get("deps", self.deps),
            None if history is None else check_history(history, self.runtime.store),
            self.output_retries,
            self.context,
            self.tool_sources,
        )

    def _find_session(self, session_id: str | None, user_id: str | None) -> Session:
        if self._is_own(session_id, user_id):
            own = self._own_session()
            if not self.runtime.backend.copies_conversations:
                return own
            session = self.runtime.session(own.key)
            session.show(own.messages)
            session.view = own
            return session
        return self.runtime.session(SessionKey(self.id, user_id, session_id or self.session_id))

    def _is_own(self, session_id: str | None, user_id: str | None) -> bool:
        """Whether these mean the agent's own conversation."""
        return user_id is None and session_id in (None, self.session_id)

    def _own_session(self) -> Session:
        if self._session is None:
            self._session = self.runtime.session(SessionKey(self.id, None, self.session_id))
        return self._session

    @property
    def sessions(self) -> Sessions:
        """The agent's sessions in its store: read, replace, fork and delete them."""
        return Sessions(self.runtime, self._own_session())

    def as_tool(self, name: str | None = None, description: str | None = None, *, events: bool = False) -> Tool:
        """This agent as a tool of another one. Each call is a run of its own, in a fresh session.

        That run is on the runtime of the run that calls it, and so in its store, unless this agent was made with
        `runtime=`. With `events=True` its events are shown in the stream of the run that called it, under their own run
        id.
        """
        return AgentTool(self, name, description, events)

    # -- going on with a run ------------------------------------------------------------------------------------------

    @overload
    async def continue_run(
        self,
        run_id: str,
        answers: Mapping[str, Any] | None = None,
        *,
        new_run_id: str | None = None,
        **options: Unpack[ContinueOptions],
    ) -> RunResult[OutputT]: ...

    @overload
    async def continue_run(
        self,
        run_id: str,
        answers: Mapping[str, Any] | None = None,
        *,
        new_run_id: str | None = None,
        output_type: TypeForm[T],
        **options: Unpack[ContinueOptions],
    ) -> RunResult[T]: ...

    async def continue_run(
        self,
        run_id: str,
        answers: Mapping[str, Any] | None = None,
        *,
        new_run_id: str | None = None,
        output_type: Any = None,
        **options: Unpack[ContinueOptions],
    ) -> RunResult[Any]:
        """Go on with a run, and wait for its end.

        A paused run goes on under its own id with `answers`, one for each of its interrupts; `False`, or
        `Deny("why")`, refuses a call. Wrong or missing answers raise `AnswersError`, and nothing changes. A run that
        was cancelled, failed or was lost goes on from where it was cut, as a new run with these `options`. Its id is
        `new_run_id`, if you want to choose it. The same call with the same `new_run_id` makes no second run: it raises
        `RunIdTakenError`.

        A paused run keeps its options. You may give new `deps` and a new `output_type`. No store keeps these two, so
        give them again if the run was paused in another process; otherwise it gets the agent's own. A new run gets
        those that are given here, or the agent's own.
        """
        run = await self.resume_run(run_id, answers, new_run_id=new_run_id, output_type=output_type, **options)
        await wait_settled(local_run(run))
        return await run.result()

    async def resume_run(
        self,
        run_id: str,
        answers: Mapping[str, Any] | None = None,
        *,
        new_run_id: str | None = None,
        output_type: Any = None,
        request_key: RequestKey | None = None,
        check: Callable[[], object] = _do_nothing,
        **options: Unpack[ContinueOptions],
    ) -> Run:
        """The same, but return the handle of the run as soon as it goes on.

        Two parameters are for servers. `request_key`: a shared store keeps it, and raises `KeyUsedError` if it was used
        before. `check` is called just before the run goes on; if it raises, the run stays as it was.
        """
        check_id("new_run_id", new_run_id)
        if unknown := options.keys() - ContinueOptions.__annotations__.keys():
            known = ", ".join([*ContinueOptions.__annotations__, "output_type"])
            raise TypeError(f"there is no option {', '.join(sorted(unknown))} to go on with; there are: {known}")
        there = await self._on_runtime_of(run_id)
        wanted = ContinueRequest(run_id, answers or {}, new_run_id, options, output_type, request_key, check)
        return Run(await there._continuer.resume(wanted))

    async def begin_queued(self, claimed: ClaimedRun) -> Run:
        """Begin, or go on with, a run that waited in the queue of a shared store, and that this process has claimed."""
        from andon.agent.queued import begin_queued  # only worker processes need it

        return Run(await begin_queued(self._make, self._continuer, self.runtime, claimed))

    async def prepare_resume(self, wanted: ContinueRequest) -> RunRecord | Run:
        """Check that a run can go on, without doing it: for a server that puts it into a queue instead.

        Returns the record of a paused run, or a new run that has not begun, which would continue one that has ended.
        """
        prepared = await (await self._on_runtime_of(wanted.run_id))._continuer.prepare(wanted)
        return prepared if isinstance(prepared, RunRecord) else Run(prepared)

    async def rollback_run(self, run_id: str) -> None:
        """Put the session back to what it was before that run. The run, with its receipt, stays on record."""
        await (await self._on_runtime_of(run_id))._continuer.roll_back(run_id)

    async def _on_runtime_of(self, run_id: str) -> Self:
        """This agent, on the runtime that has the run: its own, or that of an agent that has called it as a tool."""
        return self.on(await self._known_runtimes.find(run_id, self.id, self.runtime))

    @property
    def _continuer(self) -> RunContinuer:
        """Made for each use, from what the agent has at that moment: so a copy of the agent has its own."""
        check_setup = functools.partial(check_can_continue, self)
        return RunContinuer(self.id, self.runtime, self._own_session, self._make, check_setup)

    # -- cancelling ---------------------------------------------------------------------------------------------------

    def cancel(
        self,
        reason: str | None = None,
        by: str | None = None,
        mode: CancelMode | str = CancelMode.now,
        grace: float | None = None,
        force: bool = False,
    ) -> CancelOutcome:
        """Cancel every run of this agent in flight. Never waits; safe from anywhere, a signal handler too.

        With nothing in flight, the cancel is armed: the next run of the agent's own conversation (without `session_id`
        and `user_id`) that begins within `arm_seconds` is cancelled before it sends anything. To cancel one run only,
        use `run.cancel()` or `cancel_run`.
        """
        return self._cord.pull(
            CancelRequest.make(reason=reason, by=by, mode=mode, grace=grace, force=force), self._arm_seconds
        )

    def cancel_run(
        self,
        run_id: str,
        reason: str | None = None,
        by: str | None = None,
        mode: CancelMode | str = CancelMode.now,
        grace: float | None = None,
        force: bool = False,
    ) -> CancelOutcome:
        """Cancel exactly this run, of any agent on this runtime. Never waits; safe from anywhere.

        If other agents call this one as a tool, its runs on their runtimes are found too.
        """
        request = CancelRequest.make(reason=reason, by=by, mode=mode, grace=grace, force=force)
        outcome = self.runtime.cancel_run(run_id, request)
        if outcome is CancelOutcome.unknown:
            for runtime in self._known_runtimes:
                if (run := runtime.find(run_id)) is not None and run.agent_id == self.id:
                    return run.request_cancel(request)
                if runtime.has_ended(run_id):
                    outcome = CancelOutcome.already_finished
        return outcome

    @property
    def undo_seconds(self) -> float:
        """What undoing a call of it that was cut may take."""
        return self.runtime.bounds.undo_seconds

    @property
    def _arm_seconds(self) -> float:
        return self.runtime.bounds.arm_seconds


def _check_lists(**lists: object) -> None:
    for name, given in lists.items():
        if not isinstance(given, Iterable):
            raise ConfigurationError(f"{name} must be a list, not {type(given).__name__}: write {name}=[…]")


def _checked_tools(given: Iterable[Tool | ToolSource | Callable[..., Any]]) -> list[Tool]:
    tools = [as_tool(each) for each in given]
    names = [tool.name for tool in tools]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigurationError(f"two tools are named {', '.join(twice)}: rename one with name=…, as in tool(name=…)")
    for tool in tools:
        _ = tool.parameters  # built here: the schema library is slow to import, and no run should wait for it
    return tools


def _checked_context(given: ContextPolicy | None) -> ContextPolicy | None:
    if given is not None and (isinstance(given, type) or not callable(given)):
        raise ConfigurationError(f"context is {given!r}; use Trim(…), Summarise(…), or a function of your own")
    return given


def _checked_retries(given: int) -> int:
    if not (isinstance(given, int) and given >= 0):
        raise ConfigurationError(f"output_retries is {given!r}; it is a whole number, 0 or more")
    return given


def _fresh_id() -> str:
    # As random as uuid4, without its import, which is slow.
    return os.urandom(16).hex()


def _slug(name: str) -> str:
    """`StorytellerAgent` and `Storyteller Agent` both become `storyteller-agent`."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name)
    slug = re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")
    if not slug:
        raise ConfigurationError(f"the name {name!r} has no letters to make an id of: pass id=")
    return slug

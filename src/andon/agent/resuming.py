# SPDX-License-Identifier: Apache-2.0
"""Going on with a run: one that waits for a person, one that was cut; and taking one back.

A paused run goes on under its own id, here or, on a store that several processes share, in another process than the one
that paused it. A cut one goes on as a new run that names it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Self, Unpack, overload

from andon.agent.context import ContextPolicy
from andon.agent.continuation import KEPT, Anew, Earlier, take_up
from andon.agent.homes import Homes
from andon.agent.json_schema import JsonSchema
from andon.agent.options import ContinueOptions, RunOptions, check_id
from andon.agent.output import form_of
from andon.agent.sessions import changing
from andon.agent.subagent import AgentTool
from andon.core.budget import Budget
from andon.core.events import RunEvent
from andon.core.receipt import Interrupt, OutputT, RunResult
from andon.core.records import Bookmark, RequestKey, RunRecord
from andon.core.run.children import child_id
from andon.core.run.pause import check_answers
from andon.core.run.run import Run
from andon.core.runtime import Runtime
from andon.core.session import Session
from andon.core.states import RunStatus
from andon.errors import AnswersError, ConfigurationError, NotContinuableError, RunIdTakenError, UnknownRunError
from andon.messages import Message
from andon.models.base import Model, check_setup
from andon.tools.base import Tool

if TYPE_CHECKING:
    from typing_extensions import TypeForm, TypeVar

    T = TypeVar("T", default=object)


def _nothing() -> None:
    pass


class Resuming(Generic[OutputT]):
    """The part of an agent that goes on with its runs."""

    id: str
    model: Model | None
    context: ContextPolicy | None
    tools: list[Tool]
    runtime: Runtime
    _homes: Homes
    _session: Session | None

    def _make(
        self,
        messages: list[Message],
        options: RunOptions,
        earlier: Earlier | None = None,
        restored: tuple[RunRecord, list[Message], list[Message]] | None = None,
        output_type: Any = None,
    ) -> Run:
        raise NotImplementedError

    def _own_session(self) -> Session:
        raise NotImplementedError

    def on(self, runtime: Runtime) -> Self:
        raise NotImplementedError

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

        A paused one goes on under its own id with `answers`, one for each of its interrupts; `False`, or
        `Deny("why")`, refuses a call. Wrong or missing answers raise `AnswersError`, and nothing changes. One that was
        cancelled, failed or was lost goes on from where it was cut, as a new run, for which `options` are. Its id is
        `new_run_id`, if you want to choose it. The same call with the same `new_run_id` makes no second run: it raises
        `RunIdTakenError`.

        A paused run keeps its options. `deps` and `output_type` may be given anew, and must be where the run was paused
        in another process: they are kept in no store. Without them the agent's own count there. A new run gets those
        that are given here, or the agent's own.
        """
        run = await self.resume_run(run_id, answers, new_run_id=new_run_id, output_type=output_type, **options)
        await run.attend()
        return await run.result()

    async def resume_run(
        self,
        run_id: str,
        answers: Mapping[str, Any] | None = None,
        *,
        new_run_id: str | None = None,
        output_type: Any = None,
        request_key: RequestKey | None = None,
        check: Callable[[], object] = _nothing,
        **options: Unpack[ContinueOptions],
    ) -> Run:
        """The same, but return the handle of the run as soon as it goes on.

        Two are for servers. `request_key`: a shared store keeps it, and raises `KeyUsedError` if it was used before.
        `check`: it is called just before the run is taken: if it raises, the run stays as it was.
        """
        check_id("new_run_id", new_run_id)
        there = await self._where(run_id)
        if unknown := options.keys() - ContinueOptions.__annotations__.keys():
            known = ", ".join([*ContinueOptions.__annotations__, "output_type"])
            raise TypeError(f"there is no option {', '.join(sorted(unknown))} to go on with; there are: {known}")
        try:
            return await there._resume(run_id, answers or {}, new_run_id, request_key, check, options, output_type)
        except NotContinuableError:
            # Perhaps because the same call was made before: then the run that it made is worth more than the reason.
            if new_run_id not in (None, run_id) and await there._is_taken(new_run_id):
                raise RunIdTakenError(f"run id {new_run_id!r} is taken: run {run_id!r} may go on as that one") from None
            raise

    async def _resume(
        self,
        run_id: str,
        answers: Mapping[str, Any],
        new_run_id: str | None,
        request_key: RequestKey | None,
        check: Callable[[], object],
        options: ContinueOptions,
        output_type: Any,
    ) -> Run:
        if (run := self._own_run(run_id)) is not None:
            if run.is_paused:
                _check_own_id(run_id, new_run_id)
                _check_kept(options)
            anew = Anew(options.get("deps", KEPT), form_of(output_type))
            await self.runtime.check_blocks(run.session.key)
            await self._check_setup(run_id, run.interrupts)
            if (run := self._own_run(run_id)) is not None:  # it may have gone on elsewhere meanwhile
                check()
                await run.resume(answers, anew, request_key)
                return run
        if self.runtime.keeper is not None:
            from andon.core.shared.claim import given_back

            await given_back(self.runtime.keeper, run_id, self.runtime.bounds.settle_seconds)
        record = await self._find_record(run_id)
        if record.status is RunStatus.paused and self.runtime.keeper is not None:
            _check_own_id(run_id, new_run_id)
            _check_kept(options)
            await self.runtime.check_blocks(record.session)
            return await self._restore(record, answers, request_key, check, options, output_type)
        if record.status in (RunStatus.pending, RunStatus.running, RunStatus.cancelling):
            advice = "" if record.status is RunStatus.cancelling else ", or cancel it"
            raise NotContinuableError(f"run {run_id!r} is {record.status.name}: wait for its end{advice}")
        if record.status not in (RunStatus.cancelled, RunStatus.error):
            raise NotContinuableError(f"run {run_id!r} is {record.status.name}: to go on, send another prompt")
        if answers:
            raise AnswersError(f"run {run_id!r} has no open questions: it is {record.status.name}", interrupts=[])
        if new_run_id == run_id:
            raise RunIdTakenError(f"run {run_id!r} has ended, and goes on as a new run: give that one an id of its own")
        assert self.runtime.store is not None
        left = await self.runtime.store.added(run_id)
        if not left:
            raise NotContinuableError(f"run {run_id!r} is no longer part of its session: send another prompt")
        earlier = Earlier(run_id, left, record.cut_calls)
        earlier.lift(await self.runtime.store.load(record.session))  # refused here, rather than by a run that fails
        key = record.session
        check()
        named: RunOptions = {"session_id": key.session_id, "user_id": key.user_id, "run_id": new_run_id}
        run = self._make(take_up(left), {**options, **named}, earlier, output_type=output_type)
        run.request_key = request_key
        await run.open()
        return run

    async def _restore(
        self,
        record: RunRecord,
        answers: Mapping[str, Any],
        request_key: RequestKey | None,
        check: Callable[[], object],
        given: ContinueOptions,
        output_type: Any,
    ) -> Run:
        """Go on with a run that was paused in another process, or in an earlier one."""
        from andon.agent.orphan_end import read_all  # like all that only shared stores need
        from andon.core.shared.claim import take_paused_for

        check_answers(record.run_id, record.interrupts, record.interrupts, answers)
        await self._check_setup(record.run_id, record.interrupts)
        assert self.runtime.keeper is not None
        store, mark = self.runtime.keeper.store, record.bookmark or Bookmark(0)
        base: list[Message] = []
        for earlier, messages in await store.history(record.session):
            if earlier.run_id == record.run_id:
                break
            base += messages
        else:
            raise NotContinuableError(f"run {record.run_id!r} is no longer part of its session: send another prompt")
        events = await read_all(store, record.run_id)
        asked = [event.interrupts for event in events if event.event is RunEvent.run_paused]
        quicker = f"run {record.run_id!r} is not paused any more, or asks something else: someone else was quicker"
        if asked[-1:] != [record.interrupts]:
            raise NotContinuableError(quicker)
        # An earlier version has kept only what is left.
        left = None if mark.tokens is mark.tool_calls is None else Budget(mark.tokens, mark.tool_calls)
        options: RunOptions = {
            "session_id": record.session.session_id,
            "user_id": record.session.user_id,
            "run_id": record.run_id,
            "timeout": mark.timeout,
            "max_turns": mark.max_turns,
            "budget": mark.budget or left,
            "metadata": record.metadata,
        }
        if "deps" in given:
            options["deps"] = given["deps"]
        if output_type is None and mark.output_schema is not None:
            output_type = JsonSchema(mark.output_schema)
        run = self._make([], options, restored=(record, base, messages), output_type=output_type)
        run.request_key = record.request_key
        run.answer(answers)
        check()
        # Nobody must see it here before: someone else may be quicker, and what they make of the run is what it is.
        seconds = self.runtime.bounds.settle_seconds
        held = await take_paused_for(self.runtime.keeper, record.run_id, len(events), seconds, request_key)
        if held is None:
            raise NotContinuableError(quicker)
        run.begin_again(events, record, held)
        return run

    async def _check_setup(self, run_id: str, interrupts: Sequence[Interrupt]) -> None:
        """Raise if this agent, or one below it that has asked through this run, can't go on as it is set up.

        Later it would be too late: the answers would be used up, and have reached nobody.
        """
        check_setup(self.model)
        check_setup(self.context)
        tools = {tool.name: tool for tool in self.tools}
        for call in {each.call.id: each.call for each in interrupts if each.call is not None}.values():
            if not isinstance(tool := tools.get(call.name), AgentTool):
                continue
            child, child_run_id = tool.agent_on(self.runtime), child_id(run_id, call.id)
            assert child.runtime.store is not None
            found = child.runtime.run(child_run_id) or await child.runtime.store.find(child_run_id)
            if found is not None and found.status is RunStatus.paused:
                await child._check_setup(child_run_id, found.interrupts)

    async def rollback_run(self, run_id: str) -> None:
        """Put the session back to what it was before that run. The run, with its receipt, stays on record."""
        await (await self._where(run_id))._roll_back(run_id)

    async def _roll_back(self, run_id: str) -> None:
        if (run := self._own_run(run_id)) is not None:
            raise NotContinuableError(f"run {run_id!r} is {run.status.name}: cancel it, then take it back")
        record = await self._find_record(run_id)
        store, session = self.runtime.store, self.runtime.session(record.session)
        assert store is not None
        with changing(self.runtime, session):
            await store.rollback(run_id)
        session.refresh(await store.load(record.session))
        if self.runtime.keeper is not None and record.session == self._own_session().key:
            self._own_session().show(session.messages)

    async def _where(self, run_id: str) -> Self:
        """This agent, on the runtime that has the run: its own, or that of an agent that has used it as a tool."""
        others = [runtime for runtime in self._homes if runtime is not self.runtime]
        if others and not await self._has(self.runtime, run_id):
            for runtime in others:
                if await self._has(runtime, run_id):
                    return self.on(runtime)
        return self

    async def _has(self, runtime: Runtime, run_id: str) -> bool:
        if (run := runtime.run(run_id)) is not None:
            return run.agent_id == self.id
        record = None if runtime.store is None else await runtime.store.find(run_id)
        return record is not None and record.session.agent_id == self.id

    def _own_run(self, run_id: str) -> Run | None:
        """The run, if it has not ended and is this agent's."""
        run = self.runtime.run(run_id)
        return run if run is not None and run.agent_id == self.id else None

    async def _is_taken(self, run_id: str) -> bool:
        assert self.runtime.store is not None
        return self.runtime.run(run_id) is not None or await self.runtime.store.find(run_id) is not None

    async def _find_record(self, run_id: str) -> RunRecord:
        assert self.runtime.store is not None
        record = await self.runtime.store.find(run_id)
        if record is None or record.session.agent_id != self.id:
            raise UnknownRunError(f"agent {self.id!r} has no run {run_id!r}")
        return record


def _check_own_id(run_id: str, new_run_id: str | None) -> None:
    if new_run_id not in (None, run_id):
        detail = f"run {run_id!r} is paused, and goes on under its own id, not as {new_run_id!r}"
        raise ConfigurationError(f"{detail}: leave the new id out. Nothing has changed")


def _check_kept(options: ContinueOptions) -> None:
    """Refuse what a paused run has already: to pass over it would hide that it counts for nothing."""
    if fixed := sorted(options.keys() - {"deps"}):
        raise TypeError(f"a paused run keeps its options; {', '.join(fixed)} can't be given")

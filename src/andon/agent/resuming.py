# SPDX-License-Identifier: Apache-2.0
"""Going on with a run: one that waits for a person, one that was cut; and taking one back.

A paused run goes on under its own id, here or, on a store that several processes share, in another process than the one
that paused it. A cut one goes on as a new run that names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Unpack

from andon.agent.carry import Earlier, take_up
from andon.agent.options import ContinueOptions, RunOptions, check_id
from andon.core.budget import Budget
from andon.core.events import RunEvent
from andon.core.pause import check_answers
from andon.core.receipt import RunResult
from andon.core.run import Run
from andon.core.runtime import Runtime
from andon.core.session import Session
from andon.core.states import RunStatus
from andon.core.store import Bookmark, RunRecord
from andon.errors import AnswersError, ConfigurationError, NotContinuableError, RunIdTakenError, UnknownRunError
from andon.messages import Message

if TYPE_CHECKING:
    from pydantic import BaseModel


class Resuming:
    """The part of an agent that goes on with its runs."""

    id: str
    runtime: Runtime
    _session: Session | None

    def _make(
        self,
        messages: list[Message],
        options: RunOptions,
        earlier: Earlier | None = None,
        restored: tuple[RunRecord, list[Message], list[Message]] | None = None,
    ) -> Run:
        raise NotImplementedError

    def _own_session(self) -> Session:
        raise NotImplementedError

    async def continue_run(
        self,
        run_id: str,
        answers: Mapping[str, Any] | None = None,
        *,
        new_run_id: str | None = None,
        **options: Unpack[ContinueOptions],
    ) -> RunResult:
        """Go on with a run, and wait for its end.

        A paused one goes on under its own id with `answers`, one for each of its interrupts; `False`, or
        `Deny("why")`, refuses a call. Wrong or missing answers raise `AnswersError`, and nothing changes. One that was
        cancelled, failed or was lost goes on from where it was cut, as a new run, for which `options` are; its id is
        `new_run_id`, if you want to choose it. The same call with the same `new_run_id` makes no second run: it raises
        `RunIdTakenError`.
        """
        run = await self.resume_run(run_id, answers, new_run_id=new_run_id, **options)
        await run.attend()
        return await run.result()

    async def resume_run(
        self,
        run_id: str,
        answers: Mapping[str, Any] | None = None,
        *,
        new_run_id: str | None = None,
        **options: Unpack[ContinueOptions],
    ) -> Run:
        """The same, but return the handle of the run as soon as it goes on."""
        check_id("new_run_id", new_run_id)
        try:
            return await self._resume(run_id, answers or {}, new_run_id, options)
        except NotContinuableError:
            # Perhaps because the same call was made before: then the run that it made is worth more than the reason.
            if new_run_id not in (None, run_id) and await self._is_taken(new_run_id):
                raise RunIdTakenError(f"run id {new_run_id!r} is taken: run {run_id!r} may go on as that one") from None
            raise

    async def _resume(
        self, run_id: str, answers: Mapping[str, Any], new_run_id: str | None, options: ContinueOptions
    ) -> Run:
        if (run := self._own_run(run_id)) is not None:
            if run.is_paused:
                _check_own_id(run_id, new_run_id)
            if options:
                raise TypeError(f"a paused run keeps its options; {', '.join(options)} can't be given")
            await self.runtime.check_blocks(run.session.key)
            if (run := self._own_run(run_id)) is not None:  # it may have gone on elsewhere meanwhile
                await run.resume(answers)
                return run
        if self.runtime.keeper is not None:
            from andon.core.taking import given_back

            await given_back(self.runtime.keeper, run_id, self.runtime.bounds.settle_seconds)
        record = await self._find_record(run_id)
        if record.status is RunStatus.paused and self.runtime.keeper is not None:
            _check_own_id(run_id, new_run_id)
            await self.runtime.check_blocks(record.session)
            return await self._restore(record, answers, options.get("output_type"))
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
        named: RunOptions = {"session_id": key.session_id, "user_id": key.user_id, "run_id": new_run_id}
        run = self._make(take_up(left), {**options, **named}, earlier)
        await run.open()
        return run

    async def _restore(self, record: RunRecord, answers: Mapping[str, Any], output_type: type[BaseModel] | None) -> Run:
        """Go on with a run that was paused in another process, or in an earlier one."""
        from andon.agent.orphans import read_all  # like all that only shared stores need
        from andon.core.taking import take_paused_for

        check_answers(record.run_id, record.interrupts, record.interrupts, answers)
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
        options: RunOptions = {
            "session_id": record.session.session_id,
            "user_id": record.session.user_id,
            "run_id": record.run_id,
            "output_type": output_type,
            "timeout": mark.timeout,
            "max_turns": mark.max_turns,
            "budget": None if mark.tokens is mark.tool_calls is None else Budget(mark.tokens, mark.tool_calls),
            "metadata": record.metadata,
        }
        run = self._make([], options, restored=(record, base, messages))
        run.answer(answers)
        # Nobody must see it here before: someone else may be quicker, and what they make of the run is what it is.
        seconds = self.runtime.bounds.settle_seconds
        held = await take_paused_for(self.runtime.keeper, record.run_id, len(events), seconds)
        if held is None:
            raise NotContinuableError(quicker)
        run.begin_again(events, record.created_at, held)
        return run

    async def rollback_run(self, run_id: str) -> None:
        """Put the session back to what it was before that run. The run, with its receipt, stays on record."""
        if (run := self._own_run(run_id)) is not None:
            raise NotContinuableError(f"run {run_id!r} is {run.status.name}: cancel it, then take it back")
        record = await self._find_record(run_id)
        store, session = self.runtime.store, self.runtime.session(record.session)
        assert store is not None
        with session.changing():
            await store.take_back(run_id)
        session.refresh(await store.load(record.session))
        if self.runtime.keeper is not None and record.session == self._own_session().key:
            self._own_session().show(session.messages)

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

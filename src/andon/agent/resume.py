# SPDX-License-Identifier: Apache-2.0
"""Going on with a run that is paused or was cut, and rolling a run back.

A paused run goes on under its own id: in this process or, on a store that several processes share, in any of them. A
run that was cut goes on as a new run, whose record names it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from msgspec import Struct

from andon.agent.continuation import UNCHANGED, EarlierRun, ResumeOptions, messages_to_continue
from andon.agent.json_schema import JsonSchema
from andon.agent.options import ContinueOptions, RunOptions
from andon.agent.output import output_format
from andon.agent.sessions import changing
from andon.core.budget import Budget
from andon.core.events import Event, RunEvent
from andon.core.receipt import Interrupt
from andon.core.records import Bookmark, RequestKey, RunRecord
from andon.core.run.pause import check_answers, resume
from andon.core.run.run import LocalRun
from andon.core.run.waits import begin_and_wait
from andon.core.runtime import Runtime
from andon.core.session import Session
from andon.core.states import RunStatus
from andon.errors import AnswersError, ConfigurationError, NotContinuableError, RunIdTakenError, UnknownRunError
from andon.messages import Message

if TYPE_CHECKING:
    from andon.core.shared.claim import Claimed
    from andon.core.shared.link import StoreLink


T = TypeVar("T")


class MakeRun(Protocol):
    """Makes a run of the agent that has not begun."""

    def __call__(
        self,
        messages: list[Message],
        options: RunOptions,
        earlier: EarlierRun | None = None,
        restored: tuple[RunRecord, list[Message], list[Message]] | None = None,
        output_type: Any = None,
    ) -> LocalRun: ...


class ContinueRequest(Struct, frozen=True):
    """What a caller gives to `agent.resume_run`."""

    run_id: str
    answers: Mapping[str, Any]
    new_run_id: str | None
    options: ContinueOptions
    output_type: Any
    request_key: RequestKey | None
    check: Callable[[], object]


class RunContinuer:
    """Goes on with the runs of one agent, on one runtime. It has no state of its own."""

    __slots__ = ("_agent_id", "_check_setup", "_make_run", "_own_session", "_runtime")

    def __init__(
        self,
        agent_id: str,
        runtime: Runtime,
        own_session: Callable[[], Session],
        make_run: MakeRun,
        check_setup: Callable[[str, Sequence[Interrupt]], Awaitable[None]],
    ) -> None:
        self._agent_id, self._runtime, self._own_session = agent_id, runtime, own_session
        self._make_run = make_run
        self._check_setup = check_setup
        """Raises if the agent, or a sub-agent with an open question, is not set up. Called before answers are used."""

    async def resume(self, wanted: ContinueRequest) -> LocalRun:
        """Go on with the run, and return its handle."""
        try:
            return await self._resume(wanted)
        except NotContinuableError:
            run_id, new_run_id = wanted.run_id, wanted.new_run_id
            # If the same call was made before, say so: its run already has the new id.
            if new_run_id not in (None, run_id) and await self._is_taken(new_run_id):
                raise RunIdTakenError(f"run id {new_run_id!r} is taken: run {run_id!r} may go on as that one") from None
            raise

    async def _resume(self, wanted: ContinueRequest) -> LocalRun:
        run_id = wanted.run_id
        if (run := self._own_run(run_id)) is not None:
            if run.is_paused:
                _check_paused(wanted)
            replaced = ResumeOptions(wanted.options.get("deps", UNCHANGED), output_format(wanted.output_type))
            await self._runtime.check_blocks(run.session.key)
            await self._check_setup(run_id, run.interrupts)
            if (run := self._own_run(run_id)) is not None:  # another caller may have resumed it meanwhile
                wanted.check()
                await resume(run, wanted.answers, replaced, wanted.request_key)
                return run
        await self._runtime.backend.given_back(run_id, self._runtime.bounds.settle_seconds)
        record = await self._find_record(run_id)
        if record.status is RunStatus.paused and self._runtime.worker is not None:
            _check_paused(wanted)
            await self._runtime.check_blocks(record.session)
            return await self.restore(record, wanted)
        return await self._continue_ended(record, wanted)

    async def prepare(self, wanted: ContinueRequest) -> RunRecord | LocalRun:
        """Check that the run can go on. Returns the record of a paused one, or the new run for one that has ended."""
        record = await self._find_record(wanted.run_id)
        if record.status is not RunStatus.paused:
            return await self.make_continuing(record, wanted)
        _check_paused(wanted)
        await self._runtime.check_blocks(record.session)
        check_answers(record.run_id, record.interrupts, record.interrupts, wanted.answers)
        await self._check_setup(record.run_id, record.interrupts)
        wanted.check()
        return record

    async def _continue_ended(self, record: RunRecord, wanted: ContinueRequest) -> LocalRun:
        """Start a new run that goes on with one that was cancelled, failed or was lost."""
        run = await self.make_continuing(record, wanted)
        await begin_and_wait(run)
        return run

    async def make_continuing(
        self, record: RunRecord, wanted: ContinueRequest, conversation: list[Message] | None = None
    ) -> LocalRun:
        """Make the new run that goes on with one that was cancelled, failed or was lost. It has not begun.

        `conversation`: what comes before the new run, if the new run has its place in the session already.
        """
        run_id = record.run_id
        if record.status in (RunStatus.pending, RunStatus.running, RunStatus.cancelling):
            advice = "" if record.status is RunStatus.cancelling else ", or cancel it"
            raise NotContinuableError(f"run {run_id!r} is {record.status.name}: wait for its end{advice}")
        if record.status not in (RunStatus.cancelled, RunStatus.error):
            raise NotContinuableError(f"run {run_id!r} is {record.status.name}: to go on, send another prompt")
        if wanted.answers:
            raise AnswersError(f"run {run_id!r} has no open questions: it is {record.status.name}", interrupts=[])
        if wanted.new_run_id == run_id:
            raise RunIdTakenError(f"run {run_id!r} has ended, and goes on as a new run: give that one an id of its own")
        assert self._runtime.store is not None
        left = await self._runtime.store.added(run_id)
        if not left:
            raise NotContinuableError(f"run {run_id!r} is no longer part of its session: send another prompt")
        earlier = EarlierRun(run_id, left, record.cut_calls)
        if conversation is None:
            conversation = await self._runtime.store.load(record.session)
        earlier.remove_from(conversation)  # raises here if a new run would fail
        key = record.session
        wanted.check()
        named: RunOptions = {"session_id": key.session_id, "user_id": key.user_id, "run_id": wanted.new_run_id}
        run = self._make_run(messages_to_continue(left), {**wanted.options, **named}, earlier, None, wanted.output_type)
        run.request_key = wanted.request_key
        return run

    async def restore(self, record: RunRecord, wanted: ContinueRequest, claimed: Claimed | None = None) -> LocalRun:
        """Resume a run that was paused in another process, or before this process started.

        `claimed`: this process has claimed it already, for these answers. Otherwise that is done here. If the run can't
        go on, it is given back, once.
        """
        from andon.core.shared.claim import claim_paused, give_back  # only shared stores need it
        from andon.core.shared.leased_run import LeasedRun

        assert self._runtime.worker is not None
        link = self._runtime.worker.link
        try:
            run, events = await self._make_restored(record, wanted, link, retries=claimed is not None)
        except BaseException:
            if claimed is not None:
                give_back(link, record.run_id, claimed)
            raise
        if claimed is None:
            # Not visible here before it is claimed: another process may be quicker, and then the run goes on there.
            seconds = self._runtime.bounds.settle_seconds
            claimed = await claim_paused(link, record.run_id, len(events), seconds, wanted.request_key)
        if claimed is None:
            raise _too_late(record)
        assert isinstance(run.storage, LeasedRun)
        run.storage.begin_claimed(events, record, claimed)  # it gives back a run that is not let in
        return run

    async def _make_restored(
        self, record: RunRecord, wanted: ContinueRequest, link: StoreLink, *, retries: bool
    ) -> tuple[LocalRun, list[Event]]:
        """The run as it was when it paused, with its answers; and its events. It is not visible yet."""
        from andon.core.shared.remote import read_all

        check_answers(record.run_id, record.interrupts, record.interrupts, wanted.answers)
        await self._check_setup(record.run_id, record.interrupts)
        mark = record.bookmark or Bookmark(0)
        store, read = link.store, link.retry if retries else _once
        base: list[Message] = []
        for earlier, messages in await read(lambda: store.history(record.session)):
            if earlier.run_id == record.run_id:
                break
            base += messages
        else:
            raise NotContinuableError(f"run {record.run_id!r} is no longer part of its session: send another prompt")
        events = await read(lambda: read_all(store, record.run_id))
        asked = [event.interrupts for event in events if event.event is RunEvent.run_paused]
        if asked[-1:] != [record.interrupts]:
            raise _too_late(record)
        # An earlier version stored only what is left of the budget.
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
        if "deps" in wanted.options:
            options["deps"] = wanted.options["deps"]
        output_type = wanted.output_type
        if output_type is None and mark.output_schema is not None:
            output_type = JsonSchema(mark.output_schema)
        run = self._make_run([], options, restored=(record, base, messages), output_type=output_type)
        run.request_key = record.request_key
        assert run.work is not None
        run.work.answer(wanted.answers)
        wanted.check()
        return run, events

    async def roll_back(self, run_id: str) -> None:
        """Put the session back to what it was before the run."""
        if (run := self._own_run(run_id)) is not None:
            raise NotContinuableError(f"run {run_id!r} is {run.status.name}: cancel it, then take it back")
        record = await self._find_record(run_id)
        store, session = self._runtime.store, self._runtime.session(record.session)
        assert store is not None
        with changing(self._runtime, session):
            await store.rollback(run_id)
        session.refresh(await store.load(record.session))
        if self._runtime.backend.copies_conversations and record.session == self._own_session().key:
            self._own_session().show(session.messages)

    def _own_run(self, run_id: str) -> LocalRun | None:
        """The run, if it has not ended and is this agent's."""
        run = self._runtime.find(run_id)
        return run if run is not None and run.agent_id == self._agent_id else None

    async def _is_taken(self, run_id: str) -> bool:
        assert self._runtime.store is not None
        return self._runtime.find(run_id) is not None or await self._runtime.store.find(run_id) is not None

    async def _find_record(self, run_id: str) -> RunRecord:
        assert self._runtime.store is not None
        record = await self._runtime.store.find(run_id)
        if record is None or record.session.agent_id != self._agent_id:
            raise UnknownRunError(f"agent {self._agent_id!r} has no run {run_id!r}")
        return record


def _too_late(record: RunRecord) -> NotContinuableError:
    return NotContinuableError(
        f"run {record.run_id!r} is not paused any more, or asks something else: another process was quicker"
    )


async def _once(make: Callable[[], Awaitable[T]]) -> T:
    return await make()


def _check_paused(wanted: ContinueRequest) -> None:
    """Raise if the request has what a paused run can't take: another id, or options that the run has already."""
    run_id, new_run_id = wanted.run_id, wanted.new_run_id
    if new_run_id not in (None, run_id):
        detail = f"run {run_id!r} is paused, and goes on under its own id, not as {new_run_id!r}"
        raise ConfigurationError(f"{detail}: leave the new id out. Nothing has changed")
    if fixed := sorted(wanted.options.keys() - {"deps"}):
        raise TypeError(f"a paused run keeps its options; {', '.join(fixed)} can't be given")

# SPDX-License-Identifier: Apache-2.0
"""Runs that one process accepts and another one executes: what is put into the queue, and what is made of it there.

A run is checked where it is accepted, exactly as if it were executed there. The worker process makes the run again,
from the request, with its own agent of the same id. So model, tools, `deps` and defaults are those of the worker.
"""

from __future__ import annotations

import functools
import hashlib
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec
from msgspec import UNSET, Struct, UnsetType

from andon.agent.json_schema import JsonSchema
from andon.agent.loop import Loop
from andon.agent.options import ContinueOptions, RunOptions
from andon.agent.resume import ContinueRequest, MakeRun, RunContinuer
from andon.agent.settle import settle
from andon.core.budget import Budget
from andon.core.events import Event, RunEvent
from andon.core.jsonable import dump
from andon.core.receipt import CancelRequest, Deny
from andon.core.records import Bookmark, RunRecord
from andon.core.run.ending import make_record
from andon.core.run.run import LocalRun
from andon.core.run.work import Settlement
from andon.core.runtime import Runtime
from andon.core.shared.claim import Claimed
from andon.core.shared.leased_run import LeasedRun
from andon.core.shared.link import StoreLink
from andon.core.shared.remote import read_all
from andon.core.shared.run_queue import ClaimedRun, CutOff, QueuedStart, Route
from andon.core.signal import Failed
from andon.core.states import CancelCause, RunStatus, StopReason
from andon.errors import StoreError, UnknownRunError, confide
from andon.messages import Message, Usage


class QueuedRequest(Struct, frozen=True, omit_defaults=True):
    """All that a worker needs to execute a run, or to go on with a paused one."""

    messages: list[Message] = []
    """The prompt. The session has it too, for a run that is cancelled before it begins; but it may be deleted there."""
    history: list[Message] | None = None
    """The messages that replace what the session has."""
    continues: str | None = None
    """The run that was cut, which this one continues."""
    answers: dict[str, Any] | None = None
    """The answers to a paused run's questions."""
    call: str = ""
    """Names the call that has brought the answers. Another call with the same answers comes too late."""
    timeout: float | UnsetType | None = UNSET
    max_turns: int | UnsetType | None = UNSET
    budget: Budget | UnsetType | None = UNSET
    output_schema: dict[str, Any] | None = None
    lives: int = 1
    """How many runs there were so far, each of which went on after a worker was lost."""

    def encode(self) -> bytes:
        return dump(self).encode()


CONTINUED_AT_MOST = 3
"""How often a run goes on after its worker was lost."""

CHANNEL_BYTES = 40
"""The engine notifies on a channel of Postgres, whose name has 63 bytes, of which it needs 23."""


def route_of(queue: str, agent_id: str, priority: int) -> Route:
    return Route(channel_of(queue, agent_id), priority, queue)


def channel_of(queue: str, agent_id: str) -> str:
    """The engine's queue for the runs of an agent in a queue of ours. A worker listens to those of its own agents, so
    it never takes a job that it can't execute.
    """
    name = f"andon:{queue}:{agent_id}"
    if len(name.encode()) <= CHANNEL_BYTES and name.isascii() and name.isprintable():
        return name
    return f"andon:{hashlib.sha256(name.encode(errors='surrogatepass')).hexdigest()[:32]}"


read_request = msgspec.json.Decoder(QueuedRequest).decode


def queued_start(run: LocalRun, options: Mapping[str, Any], route: Route, *, waits: bool, goes_on: bool) -> QueuedStart:
    """A run that was made, and has not begun, for the queue. It does not begin here."""
    loop = run.work
    assert isinstance(loop, Loop)
    earlier = None if loop.earlier is None else loop.earlier.run_id
    # The timeout counts from now on, also one that is the agent's.
    limits: dict[str, Any] = {"timeout": run.limits.timeout}
    if "max_turns" in options:
        limits["max_turns"] = options["max_turns"]
    if "budget" in options:
        limits["budget"] = Budget.of(options["budget"])
    request = QueuedRequest(
        [] if earlier is not None else loop.messages,
        loop.plan.history,
        earlier,
        output_schema=run.output_schema,
        **limits,
    )
    record = make_record(run, RunStatus.pending, Settlement([], "", Usage(), [], []))
    # The messages of a run that continues another one are part of the session already.
    record = msgspec.structs.replace(record, continues=None)
    first, timeout = _started(record), run.limits.timeout
    return QueuedStart(
        record, request.messages, first, request.encode(), route, run.on_busy, waits, timeout, goes_on, earlier
    )


def _started(record: RunRecord) -> Event:
    key = record.session
    return Event(RunEvent.run_started, record.run_id, key.session_id, key.agent_id, 1, time.time())


def continuing_start(cut: CutOff) -> QueuedStart | None:
    """The run that goes on with this one, whose worker was lost or shut down. None if it ended for another reason, or
    if it has gone on often enough.
    """
    before = cut.record
    receipt = before.receipt
    if receipt is None or receipt.cause not in (CancelCause.lost, CancelCause.shutdown):
        return None
    earlier = read_request(cut.request)
    lives = earlier.lives + 1
    if lives > CONTINUED_AT_MOST + 1:
        return None
    run_id = f"{before.run_id.removesuffix(f'~{earlier.lives}') if earlier.lives > 1 else before.run_id}~{lives}"
    # One that was cut before it began has left nothing to go on from, but what it was to continue.
    continues = earlier.continues if cut.left_nothing and earlier.continues is not None else before.run_id
    request = msgspec.structs.replace(
        earlier, messages=[], history=None, answers=None, continues=continues, lives=lives
    )
    record = RunRecord(
        run_id,
        before.session,
        RunStatus.pending,
        time.time(),
        before.metadata,
        usage=Usage(),
        output_schema=before.output_schema,
    )
    timeout = None if request.timeout is UNSET else request.timeout
    return QueuedStart(
        record, [], _started(record), request.encode(), cut.route, "queue", waits=True, timeout=timeout, goes_on=True
    )


def encode_answers(answers: Mapping[str, Any], record: RunRecord) -> bytes:
    """The run keeps its limits in the store. They are here for a run that continues it, if its worker is lost."""
    mark = record.bookmark or Bookmark(0)
    given = {key: {"deny": value.reason} if isinstance(value, Deny) else value for key, value in answers.items()}
    return QueuedRequest(
        answers=given,
        call=uuid.uuid4().hex,
        timeout=mark.timeout,
        max_turns=mark.max_turns,
        budget=mark.budget,
        output_schema=mark.output_schema,
    ).encode()


def read_answers(request: QueuedRequest) -> dict[str, Any]:
    return {key: _read_answer(value) for key, value in (request.answers or {}).items()}


def _read_answer(value: Any) -> Any:
    return Deny(str(value["deny"])) if isinstance(value, dict) and value.keys() == {"deny"} else value


def options_of(record: RunRecord, request: QueuedRequest, waited: float) -> RunOptions:
    """The options of the run. The time that it has waited in the queue counts against its `timeout`."""
    key = record.session
    options: RunOptions = {
        "session_id": key.session_id,
        "user_id": key.user_id,
        "run_id": record.run_id,
        "metadata": record.metadata,
    }
    if request.history is not None:
        options["messages"] = request.history
    if request.timeout is not UNSET:
        options["timeout"] = None if request.timeout is None else max(0.0, request.timeout - waited)
    if request.max_turns is not UNSET:
        options["max_turns"] = request.max_turns
    if request.budget is not UNSET:
        options["budget"] = request.budget
    return options


def schema_of(request: QueuedRequest) -> JsonSchema | None:
    return None if request.output_schema is None else JsonSchema(request.output_schema)


async def begin_queued(make_run: MakeRun, continuer: RunContinuer, runtime: Runtime, claimed: ClaimedRun) -> LocalRun:
    """Begin a run that this process has claimed, or go on with it. If a new run can't begin, it has failed; one that
    can't go on stays paused.
    """
    assert runtime.worker is not None
    link, taken = runtime.worker.link, claimed.taken
    store, record, request = link.store, taken.record, read_request(claimed.request)
    held = Claimed(taken.lease, taken.since, claimed.owner)
    run: LocalRun | None = None
    if request.answers is not None:
        wanted = ContinueRequest(record.run_id, read_answers(request), None, {}, None, None, _do_nothing)
        return await continuer.restore(record, wanted, held)
    try:
        options, schema = options_of(record, request, claimed.waited), schema_of(request)
        if request.continues is None:
            run = make_run(request.messages, options, None, None, schema)
        else:
            run = await _make_continuing(continuer, link, request.continues, options, schema)
        run.request_key = record.request_key
        run.output_schema = request.output_schema
        events = claimed.events
        if events is None:
            events = await link.retry(lambda: read_all(store, record.run_id))
        assert isinstance(run.storage, LeasedRun)
        run.storage.begin_claimed(events, record, held, is_new=True, is_fresh=claimed.is_fresh)
    except StoreError:  # the runtime was closed
        raise
    except Exception as error:
        if run is None or not run.storage.is_admitted:  # else the run itself ends
            await link.retry(functools.partial(end_unstarted, link, claimed, error))
        raise
    return run


async def _make_continuing(
    continuer: RunContinuer, link: StoreLink, run_id: str, options: RunOptions, schema: JsonSchema | None
) -> LocalRun:
    before = await link.retry(lambda: link.store.find(run_id))
    if before is None:
        raise UnknownRunError(f"run {run_id!r}, which was to be continued, is not kept any more")
    own = ("session_id", "user_id", "run_id", "messages")
    given = cast(ContinueOptions, {name: value for name, value in options.items() if name not in own})
    wanted = ContinueRequest(run_id, {}, options["run_id"], given, schema, None, _do_nothing)
    conversation: list[Message] = []
    for record, messages in await link.retry(lambda: link.store.history(before.session)):
        if record.run_id == options["run_id"]:  # behind it, others may wait for their turns
            break
        conversation += messages
    return await link.retry(lambda: continuer.make_continuing(before, wanted, conversation))


def _do_nothing() -> None:
    pass


async def end_unstarted(link: StoreLink, claimed: ClaimedRun, error: Exception) -> None:
    """End a claimed run that can't be made here, for example because a key is missing: it has failed."""
    taken, said = claimed.taken, confide(error)
    messages: Sequence[Message] = settle(taken.messages, (), (), Failed(error)) if taken.messages else []
    record = msgspec.structs.replace(
        taken.record, status=RunStatus.error, stop_reason=StopReason.error, error=said, usage=Usage()
    )
    key = record.session
    last = Event(
        RunEvent.run_error,
        record.run_id,
        key.session_id,
        key.agent_id,
        taken.last_seq + 1,
        time.time(),
        status=RunStatus.error,
        usage=Usage(),
        error=said,
    )
    answer = await link.store.finish(taken.lease, record, messages, [last])
    if isinstance(answer, CancelRequest):  # it was cancelled meanwhile
        await link.end_orphan(taken, answer)

# SPDX-License-Identifier: Apache-2.0
"""Shared by all routes: the agents, their runs, the limits, and whether the server is shutting down.

No request owns a run. A run is started on the server's event loop and held by its runtime; a request only reads it. If
a client disconnects, the run is cancelled only if the request that started it asked for that. Nothing here has to be
started: an app that is mounted into another one works without its lifespan, which only adds an orderly shutdown.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable
from weakref import WeakValueDictionary

from andon.agent.agent import Agent, RunOptions
from andon.agent.json_schema import JsonSchema
from andon.agent.options import ContinueOptions
from andon.agent.prompt import Prompt
from andon.agent.resume import ContinueRequest
from andon.core.events import RunEvent
from andon.core.receipt import CancelRequest
from andon.core.records import RequestKey, RunRecord, SessionKey
from andon.core.run.handle import local_run
from andon.core.run.run import LocalRun
from andon.core.run.waits import wait_admitted, wait_result, was_admitted
from andon.core.runtime import Runtime
from andon.core.shared.run_queue import QueueLimits
from andon.core.shared.store import SharedStore
from andon.core.states import CancelCause
from andon.core.store import SessionStore
from andon.errors import AndonError, ConfigurationError, KeyUsedError, RunIdTakenError, SetupError
from andon.models.base import check_setup
from andon.server.agent_directory import AgentDirectory
from andon.server.idempotency_keys import IdempotencyKeys
from andon.server.pending_answers import PendingAnswers, shutting_down
from andon.server.problems import Problem, problem_of
from andon.server.prompts import characters_of
from andon.server.quotas import Quotas
from andon.server.readiness import Readiness
from andon.server.run_slots import RunSlots
from andon.server.settings import Settings

if TYPE_CHECKING:
    from andon.server.queued_runs import AcceptedRun, QueuedRuns

log = logging.getLogger(__name__)

SETTLE_SECONDS = 5.0
"""How long a shutdown waits for runs to end after it has cancelled them."""


@runtime_checkable
class HasMaxState(Protocol):
    """A store with a limit on the state of a session."""

    max_state: int


def _warn_of_setup(agent: Agent) -> None:
    """Log what would make each run of this agent fail. It is not an error: a key may be set later."""
    try:
        check_setup(agent.model)
        check_setup(agent.context)
    except SetupError as error:
        log.warning("agent %r can't run as it is set up: %s", agent.id, error)


class Host:
    """The served agents by id, and their runs."""

    def __init__(
        self, agents: Iterable[Agent], runtime: Runtime | None, settings: Settings, *, execute: bool = True
    ) -> None:
        for name in Settings.__struct_fields__:
            if not getattr(settings, name) >= 0:
                raise ConfigurationError(f"{name} is {getattr(settings, name)!r}; it must be 0 or more")
        if settings.heartbeat == 0:
            raise ConfigurationError("heartbeat is 0; it is a number of seconds, more than 0")
        self.settings = settings
        self.draining = False
        """Set at a shutdown: no new run is started."""
        self.agents: dict[str, Agent] = {}
        self.directory = AgentDirectory(self.agents)
        for agent in agents:
            self._admit(agent, runtime)
        if not self.agents:
            raise ConfigurationError("there is no agent to serve: create_app([agent, ...])")
        for agent in {id(agent): agent for agent, _ in self.directory}.values():
            _warn_of_setup(agent)
        self.runtimes: list[Runtime] = list(
            {id(agent.runtime): agent.runtime for agent in self.agents.values()}.values()
        )
        for each in self.runtimes:
            each.keep_ended()
            each.max_events = each.max_events or settings.max_events
            each.max_event_bytes = each.max_event_bytes or settings.max_event_bytes
            if settings.max_state and isinstance(each.store, HasMaxState):
                each.store.max_state = settings.max_state
        self._queued = queued = None if execute else self._make_queue(settings)
        """The queue in which runs wait for worker processes, if this server executes none itself."""
        count_open = None if queued is None else queued.count_open
        self._run_slots = RunSlots(settings, self.runtimes, lambda: self.live, count_open)
        self._pending_answers = PendingAnswers()
        self.readiness = Readiness(self._stores)
        self.started = 0
        self.idempotency_keys = IdempotencyKeys()
        self._session_quotas = Quotas()
        self._key_locks: WeakValueDictionary[tuple[str, str | None, str], asyncio.Lock] = WeakValueDictionary()

    def _admit(self, agent: Agent, runtime: Runtime | None) -> None:
        if not isinstance(agent, Agent):
            raise ConfigurationError(f"{agent!r} is no agent: create_app takes a list of them")
        if agent.model is None:
            raise ConfigurationError(f"agent {agent.name!r} has no model: give it one with Agent(name=..., model=...)")
        if agent.id in self.agents:
            raise ConfigurationError(
                f"two agents have the id {agent.id!r}: give one of them another with Agent(id=...)"
            )
        if runtime is not None and agent.runtime is not runtime:
            agent.move_to(runtime)
        self.agents[agent.id] = agent

    def _make_queue(self, settings: Settings) -> QueuedRuns:
        from andon.server.queued_runs import QueuedRuns  # needs an extra

        if len(self.runtimes) > 1:
            raise ConfigurationError(
                "a server that does not execute runs has all of its agents on one runtime: give it"
            )
        most = settings.max_runs, settings.max_user_runs, settings.max_agent_runs, settings.max_waiting_runs
        return QueuedRuns(self.runtimes[0], QueueLimits(*most))

    def _stores(self) -> list[SharedStore]:
        return [runtime.worker.store for runtime in self.runtimes if runtime.worker is not None]

    # -- finding ------------------------------------------------------------------------------------------------------

    def agent(self, agent_id: str) -> Agent:
        try:
            return self.agents[agent_id]
        except KeyError:
            known = ", ".join(self.agents)
            raise Problem(404, f"there is no agent {agent_id!r}; there are: {known}") from None

    def agents_named(self, agent_id: str) -> list[Agent]:
        """The agents of this id, served or sub-agents, each on the runtime of its runs; at least one."""
        return self.directory.find(agent_id) or [self.agent(agent_id)]

    async def agent_of(self, agent_id: str, run_id: str) -> Agent:
        """The agent of this id that has the run; if none has it, any of them."""
        fitting = self.agents_named(agent_id)
        if len(fitting) > 1:
            for agent in fitting:
                if self.run(agent, run_id) is not None:
                    return agent
            for agent in fitting:
                record = None if agent.runtime.store is None else await agent.runtime.store.find(run_id)
                if record is not None and record.session.agent_id == agent_id:
                    return agent
        return fitting[0]

    def check_continuable(self, agent: Agent, found: LocalRun | RunRecord) -> None:
        """Raise if this run of a sub-agent can only be continued through the run that called it: if several agents have
        its id, or if it has ended, because the new run would have no caller.
        """
        caller = f"go on with run {found.parent_run_id!r}, which called it"
        if found.parent_run_id is not None and self.directory.count(agent) > 1:
            detail = f"several agents here have the id {agent.id!r}: {caller}"
            raise Problem(409, f"{detail}; or give each of them an id of its own with Agent(id=...)")
        if found.status.final and agent.id not in self.agents:
            detail = f"run {found.run_id!r} is {found.status.name}, and agent {agent.id!r} is not served"
            raise Problem(409, f"{detail}: {caller}")

    def run(self, agent: Agent, run_id: str) -> LocalRun | None:
        """A run of this agent that is live, or has ended recently."""
        run = agent.runtime.find_recent(run_id)
        return run if run is not None and run.agent_id == agent.id else None

    async def find(self, agent: Agent, run_id: str) -> LocalRun | RunRecord:
        """A run of this agent, or its record in the store. A refused run has no record; its id may be another's."""
        run = self.run(agent, run_id)
        if run is None or not await was_admitted(run):
            store = agent.runtime.store
            record = None if store is None else await store.find(run_id)
            if record is None or record.session.agent_id != agent.id:
                raise self.unknown(agent, run_id)
            run = self.run(agent, run_id)
            if run is None or not await was_admitted(run):
                return record
        return run

    def unknown(self, agent: Agent, run_id: str) -> Problem:
        return Problem(404, f"agent {agent.id!r} has no run {run_id!r}")

    @property
    def live(self) -> list[LocalRun]:
        """Every run of the served agents and their sub-agents that has not ended."""
        ids = set(self.directory.ids)
        return [run for runtime in self.runtimes for run in runtime.live_runs if run.agent_id in ids]

    @property
    def ended(self) -> list[LocalRun]:
        """The runs that have ended recently, oldest first."""
        ids = set(self.directory.ids)
        return [run for runtime in self.runtimes for run in runtime.recently_ended if run.agent_id in ids]

    # -- starting -----------------------------------------------------------------------------------------------------

    async def begin(
        self,
        agent: Agent,
        prompt: Prompt,
        options: RunOptions,
        output_type: Any = None,
        request_key: RequestKey | None = None,
        *,
        waits: bool = False,
    ) -> LocalRun | AcceptedRun:
        """Start a run, and return it once its store has admitted it; raises `Problem` otherwise.

        It is executed on this event loop, or, if this server does not execute runs, by a worker process. `waits`: then
        it waits if the limits leave no room. Without a session it gets a fresh one, never the agent's own.
        `KeyUsedError` is raised as it is.
        """
        if waits and self._queued is None:
            raise Problem(422, 'on_full="queue" needs worker processes, and this server executes its runs itself')
        self._check_open()
        if (size := characters_of(prompt)) > (limit := self.settings.max_message):
            raise Problem(413, f"the message has {size:,} characters, and may have {limit:,}")
        user_id, session_id = options.get("user_id"), options.get("session_id")
        async with self._run_slots.new_run_slot(user_id), self.session_slot(agent, user_id, session_id):
            if self._queued is None:  # else the store counts
                self._check_open()
                self._run_slots.check(user_id)
            try:
                run = local_run(agent.start(prompt, output_type=output_type, **_in_a_session(options)))
                run.request_key = request_key
                run.output_schema = output_type.kept if isinstance(output_type, JsonSchema) else None
                if self._queued is not None:
                    accepted = await self._queued.begin(agent, run, options, waits=waits)
                    self.started += 1
                    return accepted
                run.begin()
                self.started += 1
                await wait_admitted(run)
            except KeyUsedError:
                raise
            except AndonError as error:
                raise problem_of(error) from None
        return run

    async def resume_run(
        self,
        agent: Agent,
        run_id: str,
        answers: Mapping[str, Any],
        session: SessionKey,
        new_run_id: str | None,
        request_key: RequestKey | None = None,
        options: Mapping[str, Any] | None = None,
        *,
        anew: bool,
    ) -> tuple[LocalRun | AcceptedRun, int]:
        """Continue a run of this session; raises `Problem` if it can't. `KeyUsedError` is raised as it is. Also returns
        the number of its last event before that.

        `anew`: the run has ended, so this makes a new run, which gets the `options`.
        """
        self._check_open()
        entrance = self._run_slots.new_run_slot(session.user_id) if anew else contextlib.nullcontext()
        try:
            async with entrance:
                with (
                    self._run_slots.continued_run_slot(run_id, session.user_id, anew=anew),
                    self._pending_answers.waiting_for_store(),
                ):
                    if self._queued is not None:
                        given = dict(options or {})
                        form = given.pop("output_type", None)
                        limits = cast(ContinueOptions, given)
                        check = self._check_open
                        wanted = ContinueRequest(run_id, answers, new_run_id, limits, form, request_key, check)
                        return await self._queued.resume(agent, wanted, None if form is None else form.kept)
                    named = {"new_run_id": new_run_id, "request_key": request_key, **(options or {})}
                    run = local_run(await agent.resume_run(run_id, answers, check=self._check_open, **named))
                    paused = (event.seq for event in run.journal.events if event.event is RunEvent.run_paused)
                    return run, max(paused, default=0) if run.run_id == run_id else 0
        except KeyUsedError:
            raise
        except RunIdTakenError as error:
            raise await self._problem_of_taken_id(agent, new_run_id, session, error) from None
        except AndonError as error:
            raise problem_of(error) from None

    async def _problem_of_taken_id(
        self, agent: Agent, new_run_id: str | None, session: SessionKey, error: RunIdTakenError
    ) -> Problem:
        """The id is taken. If a run of this session has it, an earlier copy of this request probably made it."""
        with contextlib.suppress(Problem):
            found = await self.find(agent, new_run_id or "")
            if session_of(found) == session:
                detail = f"{error}. If this request was sent before, it made run {new_run_id!r}: watch that one"
                return Problem(409, detail, run_id=new_run_id, status=found.status)
        return problem_of(error)

    def _check_open(self) -> None:
        if self.draining:
            raise shutting_down()

    @contextlib.asynccontextmanager
    async def session_slot(self, agent: Agent, user_id: str | None, session_id: str | None) -> AsyncIterator[None]:
        """Create a session in this block. Raises if the user has the maximum. Without a user there is no limit."""
        store, limit = agent.runtime.store, self.settings.max_user_sessions
        if user_id is None or not isinstance(store, SessionStore):
            yield
            return
        async with self._session_quotas.reserve(
            (agent.id, user_id), limit, lambda: _count_sessions(agent, store, user_id)
        ) as granted:
            if not granted and (session_id is None or not await _has_session(agent, store, user_id, session_id)):
                detail = f"this user has {limit} sessions with {agent.id!r}, which is the limit"
                raise Problem(429, f"{detail}: use one of them, or delete some first")
            yield

    def max_state_body(self, agent: Agent) -> int:
        """How many bytes a request with the state of a session may have: a state that is surely too large is not read.
        JSON may write a character as six.
        """
        store, limit = agent.runtime.store, self.settings.max_body
        return min(limit, 6 * store.max_state + 4096) if isinstance(store, HasMaxState) else limit

    def key_lock(self, agent: Agent, user_id: str | None, key: str) -> asyncio.Lock:
        """The lock that requests with the same idempotency key take, so that only one of them starts a run."""
        return self._key_locks.setdefault((agent.id, user_id, key), asyncio.Lock())

    async def find_by_key(
        self, agent: Agent, user_id: str | None, wanted: RequestKey
    ) -> tuple[LocalRun | RunRecord, int] | None:
        """The run that this idempotency key has started or continued, if any, and the number of its last event before
        that.
        """
        worker = agent.runtime.worker
        if worker is None:
            use = self.idempotency_keys.find(agent.id, user_id, wanted.key)
        else:
            use = await worker.store.find_key(agent.id, user_id, wanted.key)
            # If the answer of that request was not accepted, the key will be free in a moment.
            if use is not None and await worker.given_back(use.run_id, agent.runtime.bounds.settle_seconds):
                use = await worker.store.find_key(agent.id, user_id, wanted.key)
        if use is None:
            return None
        named = f"the idempotency key {wanted.key!r}"
        if use.said != wanted.said:
            detail = f"{named} was used for a different request: use a new one"
            raise Problem(422, detail, run_id=use.run_id)
        try:
            return await self.find(agent, use.run_id), use.after
        except Problem as problem:
            if problem.status_code != 404:
                raise
        # A second run would be wrong: the first one was started, and only its record is gone.
        detail = f"{named} was used before, for run {use.run_id!r}, of which nothing is kept: use a new one"
        raise Problem(409, f"{detail} to run it again", run_id=use.run_id)

    def remember(self, agent: Agent, user_id: str | None, wanted: RequestKey, run_id: str, after: int) -> None:
        """Store which run this key has started. A shared store knows it already."""
        if agent.runtime.worker is None:
            self.idempotency_keys.keep(agent.id, user_id, wanted, run_id, after)

    # -- ending -------------------------------------------------------------------------------------------------------

    async def shut_down(self, drain: float | None = None) -> None:
        """Start no new runs, let runs finish for `drain` seconds, cancel the others, and wait until they have ended.

        A paused run stays paused if its store outlives this process: it can be answered later. So does a run whose
        answer the store has not accepted by the end of the drain.
        """
        self.draining = True
        if self._queued is not None:
            self._queued.draining = True
        await self._rested(self._pending_answers.waiting, self.settings.drain if drain is None else drain)
        paused, kept = 0, 0
        for run in self.live:
            counts = run.is_paused and run.parent_run_id is None  # sub-agents ask through the top run
            if run.may_be_elsewhere:
                kept += counts
            elif run.cancel_for(CancelCause.shutdown):
                paused += counts
        await self._rested(self._pending_answers.reject_all(), SETTLE_SECONDS)
        if finishing := [run for run in self.live if run.is_cancelling and run.children.patience > 0]:
            for run in finishing:  # what a cancel lets finish has had its time
                run.request_cancel(CancelRequest.make(CancelCause.shutdown, force=True))
            await self._rested((), SETTLE_SECONDS)
        if kept:
            log.info("paused runs that can be answered after a restart: %d", kept)
        if paused:
            log.warning("paused runs that were cancelled, because they are kept in memory alone: %d", paused)

    async def _rested(self, answers: Collection[asyncio.Future[None]], seconds: float) -> None:
        """Wait until these answers are accepted or rejected, and then until no run is working; at most this time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                if answers:
                    await asyncio.wait(answers)
                for run in self.live:
                    with contextlib.suppress(AndonError):  # it was refused
                        await wait_result(run)

    async def prepare(self) -> None:
        """Check the queue of a server that executes nothing, before it listens. Raises a `ConfigurationError` or a
        `SchemaError` if it can't be used.
        """
        if self._queued is not None:
            await self._queued.prepare()

    @contextlib.asynccontextmanager
    async def lifespan(self, app: Any = None) -> AsyncIterator[None]:
        """The lifespan of the app. An app that mounts this one should enter it in its own lifespan."""
        self.draining = False
        for runtime in self.runtimes:
            runtime.backend.start()  # it also ends orphaned runs of other processes
        try:
            async with contextlib.nullcontext() if self._queued is None else self._queued.maintained():
                yield
        finally:
            # `andon serve` has drained already; then this does not wait again.
            await self.shut_down(0 if self.draining else None)


async def _count_sessions(agent: Agent, store: SessionStore, user_id: str) -> int:
    """How many sessions a user has with an agent. A shared store has those of new runs too; another store has a session
    once its first run has written something.
    """
    counted = await store.count_sessions(agent.id, user_id)
    if agent.runtime.worker is None:
        begun = {run.session.key for run in agent.runtime.live_runs if run.session.key[:2] == (agent.id, user_id)}
        counted += sum([await store.find_session(key) is None for key in begun])
    return counted


async def _has_session(agent: Agent, store: SessionStore, user_id: str, session_id: str) -> bool:
    key = SessionKey(agent.id, user_id, session_id)
    return any(run.session.key == key for run in agent.runtime.live_runs) or await store.find_session(key) is not None


def store_of(agent: Agent) -> SessionStore:
    store = agent.runtime.store
    if not isinstance(store, SessionStore):
        detail = f"the store of {agent.id!r} keeps runs and no sessions: address its runs, or give it a SessionStore"
        raise Problem(501, detail)
    return store


def user_of(found: LocalRun | RunRecord) -> str | None:
    return found.session.user_id if isinstance(found, RunRecord) else found.user_id


def session_of(found: LocalRun | RunRecord) -> SessionKey:
    return found.session if isinstance(found, RunRecord) else found.session.key


def _in_a_session(options: RunOptions) -> RunOptions:
    return options if options.get("session_id") else {**options, "session_id": uuid.uuid4().hex}

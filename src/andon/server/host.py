# SPDX-License-Identifier: Apache-2.0
"""What the routes share: the agents, their runs, the limits, and whether the server is going down.

No request owns a run. A run is started on the server's loop and held by its runtime; a request is one of its readers,
and its leaving matters only if the request that started the run said so. Nothing here has to be started: an app that is
mounted into another one works without its lifespan, which only adds an orderly end.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import uuid
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any
from weakref import WeakValueDictionary

from msgspec import Struct

from andon.agent.agent import Agent, RunOptions
from andon.core.run import Run
from andon.core.runtime import Runtime
from andon.core.shared import SharedStore
from andon.core.states import CancelCause
from andon.core.store import RunRecord, SessionKey
from andon.errors import AndonError, ConfigurationError, RunIdTakenError
from andon.server.problems import Problem, problem_of
from andon.server.readiness import Readiness

SETTLE_SECONDS = 5.0
"""What runs get to end in after a shutdown has cancelled them."""

KEYS_KEPT = 10_000

BEHIND_SECONDS = 5.0
"""A run that would have to wait longer than this for the database to take it in is refused."""


class Settings(Struct, frozen=True, kw_only=True):
    """The bounds of a server. See `create_app` for what each means."""

    max_body: int
    max_message: int
    max_runs: int
    max_user_runs: int
    max_events: int
    heartbeat: float
    drain: float
    guarded: bool = False
    """There are tokens."""


class Host:
    """The agents that are served, by id, and what is known of their runs."""

    def __init__(self, agents: Iterable[Agent], runtime: Runtime | None, settings: Settings) -> None:
        for name in Settings.__struct_fields__:
            if not getattr(settings, name) >= 0:
                raise ConfigurationError(f"{name} is {getattr(settings, name)!r}; it must be 0 or more")
        if settings.heartbeat == 0:
            raise ConfigurationError("heartbeat is 0; it is a number of seconds, more than 0")
        self.settings = settings
        self.draining = False
        """Set when the server goes down: nothing new is started."""
        self.agents: dict[str, Agent] = {}
        for agent in agents:
            self._admit(agent, runtime)
        if not self.agents:
            raise ConfigurationError("there is no agent to serve: create_app([agent, ...])")
        self.runtimes: list[Runtime] = list(
            {id(agent.runtime): agent.runtime for agent in self.agents.values()}.values()
        )
        for each in self.runtimes:
            each.keep_ended()
            each.max_events = each.max_events or settings.max_events
        self.readiness = Readiness(self._stores)
        self.started = 0
        self._keys: OrderedDict[tuple[str, str | None, str], tuple[bytes, str, int]] = OrderedDict()
        self._turns: WeakValueDictionary[tuple[str, str | None, str], asyncio.Lock] = WeakValueDictionary()

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

    def _stores(self) -> list[SharedStore]:
        return [runtime.keeper.store for runtime in self.runtimes if runtime.keeper is not None]

    # -- finding ------------------------------------------------------------------------------------------------------

    def agent(self, agent_id: str) -> Agent:
        try:
            return self.agents[agent_id]
        except KeyError:
            known = ", ".join(self.agents)
            raise Problem(404, f"there is no agent {agent_id!r}; there are: {known}") from None

    def run(self, agent: Agent, run_id: str) -> Run | None:
        """A run of this agent that is going on, or has ended not long ago."""
        run = agent.runtime.recent(run_id)
        return run if run is not None and run.agent_id == agent.id else None

    async def find(self, agent: Agent, run_id: str) -> Run | RunRecord:
        """A run of this agent, or what the store has of it. One that is refused never was; the id may be another's."""
        run = self.run(agent, run_id)
        if run is None or not await run.entered():
            store = agent.runtime.store
            record = None if store is None else await store.find(run_id)
            if record is None or record.session.agent_id != agent.id:
                raise self.unknown(agent, run_id)
            run = self.run(agent, run_id)
            if run is None or not await run.entered():
                return record
        return run

    def unknown(self, agent: Agent, run_id: str) -> Problem:
        return Problem(404, f"agent {agent.id!r} has no run {run_id!r}")

    @property
    def live(self) -> list[Run]:
        """Every run of the served agents that has not ended."""
        return [run for runtime in self.runtimes for run in runtime.runs if run.agent_id in self.agents]

    @property
    def ended(self) -> list[Run]:
        """Those that have ended not long ago, oldest first."""
        return [run for runtime in self.runtimes for run in runtime.ended if run.agent_id in self.agents]

    # -- starting -----------------------------------------------------------------------------------------------------

    def start(self, agent: Agent, message: str, options: RunOptions) -> Run:
        """Begin a run on this loop, or say why not. Without a session it gets a fresh one, never the agent's own."""
        self._check_room(options.get("user_id"))
        if len(message) > (limit := self.settings.max_message):
            raise Problem(413, f"the message has {len(message):,} characters, and may have {limit:,}")
        if not options.get("session_id"):
            options = {**options, "session_id": uuid.uuid4().hex}
        try:
            run = agent.start(message, **options)
            run.begin()
        except AndonError as error:
            raise problem_of(error) from None
        self.started += 1
        return run

    async def admitted(self, run: Run) -> Run:
        """The run, once its store has taken it in; or say why it did not."""
        try:
            await run.admitted()
        except AndonError as error:
            raise problem_of(error) from None
        return run

    async def go_on(
        self, agent: Agent, run_id: str, answers: Mapping[str, Any], session: SessionKey, new_run_id: str | None
    ) -> Run:
        """Go on with a run of this session, on this loop, or say why not."""
        self._check_room(session.user_id)
        try:
            return await agent.resume_run(run_id, answers, new_run_id=new_run_id)
        except RunIdTakenError as error:
            raise await self._made_before(agent, new_run_id, session, error) from None
        except AndonError as error:
            raise problem_of(error) from None

    async def _made_before(
        self, agent: Agent, new_run_id: str | None, session: SessionKey, error: RunIdTakenError
    ) -> Problem:
        """The id is taken. If by a run of this very session, that is most likely what the same request made before."""
        with contextlib.suppress(Problem):
            found = await self.find(agent, new_run_id or "")
            if session_of(found) == session:
                detail = f"{error}. If this request was sent before, it made run {new_run_id!r}: watch that one"
                return Problem(409, detail, run_id=new_run_id, status=found.status)
        return problem_of(error)

    def _check_room(self, user_id: str | None) -> None:
        if self.draining:
            raise Problem(503, "the server is shutting down and takes no new runs", {"retry-after": "5"})
        if max(runtime.lag for runtime in self.runtimes) > BEHIND_SECONDS:
            detail = "the database is behind with the runs that this server has already: try again later"
            raise Problem(429, detail, {"retry-after": str(math.ceil(BEHIND_SECONDS))})
        if self._is_full(self.settings.max_runs):
            detail = f"{self.settings.max_runs} runs are going on, as many as this server takes: try again later"
            raise Problem(429, detail, {"retry-after": "1"})
        if user_id is not None and self._is_full(self.settings.max_user_runs, user_id):
            detail = f"{self.settings.max_user_runs} runs of this user are going on, as many as one may have"
            raise Problem(429, f"{detail}: cancel one, or try again later", {"retry-after": "1"})

    def _is_full(self, limit: int, user_id: str | None = None) -> bool:
        """Are so many runs at work, or, with a user, of that one? Paused runs hold nothing, and a sub-agent's run
        belongs to its parent's.
        """
        if sum(runtime.live for runtime in self.runtimes) < limit:  # by far the most frequent case, and quickly told
            return False
        theirs = [run for run in self.live if user_id is None or run.user_id == user_id]
        return sum(not run.is_paused and run.parent_run_id is None for run in theirs) >= limit

    def turn(self, agent: Agent, user_id: str | None, key: str) -> asyncio.Lock:
        """Requests with the same idempotency key that have to wait for something wait for one another, too."""
        return self._turns.setdefault((agent.id, user_id, key), asyncio.Lock())

    async def known_by(
        self, agent: Agent, user_id: str | None, key: str, said: bytes
    ) -> tuple[Run | RunRecord, int] | None:
        """The run that was set going with this idempotency key, if there is one and anything is known of it; and the
        number of the event after which that was.
        """
        while (kept := self._keys.get((agent.id, user_id, key))) is not None:
            if kept[0] != said:
                detail = (
                    f"the idempotency key {key!r} was used for another request, which was not the same: use a new one"
                )
                raise Problem(422, detail)
            with contextlib.suppress(Problem):  # nobody knows that run any more, so nobody would be told twice
                found = await self.find(agent, kept[1])
                # What was asked for may have been refused, because the id was another user's.
                if user_of(found) == user_id:
                    return found, kept[2]
            if self._keys.get((agent.id, user_id, key)) == kept:
                del self._keys[agent.id, user_id, key]
        return None

    def remember(self, agent: Agent, user_id: str | None, key: str, said: bytes, run_id: str, after: int) -> None:
        """Know the run from here on by this key, as long as the same is said with it."""
        self._keys[agent.id, user_id, key] = said, run_id, after
        if len(self._keys) > KEYS_KEPT:
            self._keys.popitem(last=False)

    # -- ending -------------------------------------------------------------------------------------------------------

    async def shut_down(self, drain: float | None = None) -> None:
        """Take nothing new, let runs finish for a while, cancel the others, and wait until they have ended."""
        self.draining = True
        await _ended(self.live, self.settings.drain if drain is None else drain)
        for run in self.live:
            run.cancel_for(CancelCause.shutdown)
        await _ended(self.live, SETTLE_SECONDS)

    @contextlib.asynccontextmanager
    async def lifespan(self, app: Any = None) -> AsyncIterator[None]:
        """The server's life: what an app does that mounts this one is to enter it in its own."""
        self.draining = False
        for runtime in self.runtimes:
            if runtime.keeper is not None:
                runtime.keeper.start()  # it also ends what others have left behind
        try:
            yield
        finally:
            # Whoever has drained it already, as `andon serve` does, need not wait once more.
            await self.shut_down(0 if self.draining else None)


def user_of(found: Run | RunRecord) -> str | None:
    return found.session.user_id if isinstance(found, RunRecord) else found.user_id


def session_of(found: Run | RunRecord) -> SessionKey:
    return found.session if isinstance(found, RunRecord) else found.session.key


async def _ended(runs: list[Run], seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            for run in runs:
                await run.result()
    except TimeoutError:
        pass

# SPDX-License-Identifier: Apache-2.0
"""The host with the rights of one principal. Routes get this and never the host, so that none can forget a check.

The response about a run or session of another user is the same as for one that does not exist.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple

import msgspec
from starlette.requests import HTTPConnection

from andon.agent.agent import Agent, RunOptions
from andon.agent.json_schema import JsonSchema
from andon.agent.options import ContinueOptions
from andon.agent.prompt import Prompt
from andon.core.cancel_runs import Sweep, cancel_fitting
from andon.core.log_text import escaped
from andon.core.receipt import CancelRequest, Receipt
from andon.core.records import RequestKey, RunRecord, SessionKey
from andon.core.run.run import LocalRun
from andon.core.run.waits import wait_result
from andon.core.runtime import Runtime
from andon.core.selection import Block, BlockKind, CancelEntry, Selection
from andon.core.shared.remote import RemoteRun
from andon.core.shared.run_queue import RunQueue
from andon.core.states import CancelOutcome
from andon.scale.inspection import holders, look, queue_at
from andon.scale.overview import Overview
from andon.server.access import Principal, principal_of
from andon.server.host import Host, session_of, user_of
from andon.server.pages import Position
from andon.server.problems import Problem
from andon.server.queued_runs import AcceptedRun
from andon.server.remote_runs import wait_until_gone
from andon.server.run_location import run_headers, run_path
from andon.server.settings import Settings

log = logging.getLogger(__name__)

RUN_STATE_KEY = "andon.run"
"""The key in the state of the scope for the run that a request is about. The access log reads it."""


def host_of(connection: HTTPConnection) -> AuthorizedHost:
    """The host for the principal of this request. Raises if the path has another user."""
    host = connection.app.state.andon
    assert isinstance(host, Host)
    authorized = AuthorizedHost(host, principal_of(connection), connection)
    user = connection.path_params.get("user")
    if user is not None and not authorized.principal.may_see(user):
        app, session = connection.path_params.get("app"), connection.path_params.get("session")
        raise unknown_user(user) if session is None else unknown_session(SessionKey(str(app), user, session))
    return authorized


class CancelledRun(NamedTuple):
    """A run that was asked to stop."""

    outcome: CancelOutcome
    found: LocalRun | RemoteRun | RunRecord | None
    """None: another process has the run, and it was not looked up. A record: the run ended before."""
    stored: bool = True
    """False: the run is stopped, and the store does not know yet."""


class AuthorizedHost:
    """The runs, sessions and agents that one request may use."""

    def __init__(self, host: Host, principal: Principal, connection: HTTPConnection) -> None:
        self._host, self.principal, self._connection = host, principal, connection

    @property
    def settings(self) -> Settings:
        return self._host.settings

    @property
    def draining(self) -> bool:
        return self._host.draining

    @property
    def agents(self) -> dict[str, Agent]:
        return self._host.agents

    def agent(self, agent_id: str) -> Agent:
        """The served agent of this id."""
        return self._host.agent(agent_id)

    @property
    def all_agents(self) -> list[Agent]:
        """The served agents and their sub-agents."""
        return self._host.directory.find()

    def agent_ids_on(self, runtime: Runtime) -> set[str]:
        """The ids of the agents whose runs this runtime has."""
        return {agent.id for agent, where in self._host.directory if where is runtime}

    def agents_named(self, agent_id: str) -> list[Agent]:
        """The same, of one id."""
        return self._host.agents_named(agent_id)

    async def agent_of(self, agent_id: str, run_id: str) -> Agent:
        """The agent of this id that has the run."""
        return await self._host.agent_of(agent_id, run_id)

    # -- finding ------------------------------------------------------------------------------------------------------

    def run(self, agent: Agent, run_id: str) -> LocalRun | None:
        """A run that is live, or has ended recently."""
        run = self._host.run(agent, run_id)
        return self._note_run(run) if run is not None and self.principal.may_see(run.user_id) else None

    async def find(self, agent: Agent, run_id: str) -> LocalRun | RunRecord:
        """A run, or its record in the store."""
        found = await self._host.find(agent, run_id)
        if not self.principal.may_see(user_of(found)):
            raise self._host.unknown(agent, run_id)
        return self._note_run(found) if isinstance(found, LocalRun) else found

    @property
    def live(self) -> list[LocalRun]:
        """The runs that have not ended."""
        return [run for run in self._host.live if self.principal.may_see(run.user_id)]

    @property
    def ended(self) -> list[LocalRun]:
        """The runs that have ended recently, oldest first."""
        return [run for run in self._host.ended if self.principal.may_see(run.user_id)]

    async def find_anywhere(self, agent: Agent, run_id: str) -> LocalRun | RemoteRun | RunRecord:
        """A run of any process; or, if the store is not shared, the record of a run that has ended."""
        found = await self.find(agent, run_id)
        return (self.stored_run(agent, found) or found) if isinstance(found, RunRecord) else found

    def stored_run(self, agent: Agent, record: RunRecord) -> RemoteRun | None:
        """The run of this record, if the store is shared."""
        return agent.runtime.backend.remote_run(record)

    async def reread_ended(self, agent: Agent, run: LocalRun) -> LocalRun | RemoteRun:
        """A run that had ended before the cancel. A shared store knows how it ended; the `Run` may not know yet."""
        if agent.runtime.worker is None:
            if run.signal.request is None:
                await wait_result(run)
            return run
        record = await agent.runtime.worker.store.find(run.run_id)
        if record is None or record.session.agent_id != agent.id or not self.principal.may_see(record.session.user_id):
            raise self._host.unknown(agent, run.run_id)  # it was refused
        return RemoteRun(agent.runtime.worker.link, record)

    async def stored_runs(self, which: Selection, limit: int, before: Position | None = None) -> list[RunRecord]:
        """The runs in the shared stores: of each agent the newest `limit` before this position."""
        wanted = [
            msgspec.structs.replace(which, agent_id=agent_id)
            for agent_id in self._host.directory.ids
            if which.agent_id in (None, agent_id)
        ]
        found = [
            each
            for runtime in self._host.runtimes
            for one in wanted
            for each in await runtime.backend.list_records(one, limit, before)
        ]
        return [each for each in found if self.principal.may_see(each.session.user_id)]

    async def ping(self) -> None:
        """Raise `StoreError` or `SchemaError` if a shared store can't be reached, or is read-only."""
        await self._host.readiness.check()

    def location_headers(self, agent: Agent, run_id: str) -> dict[str, str]:
        """The headers `Location` and `Andon-Run-Id`."""
        return {"Location": run_path(self._connection, agent.id, run_id), **run_headers(run_id)}

    def _note_run(self, run: LocalRun) -> LocalRun:
        self._connection.scope["state"][RUN_STATE_KEY] = run.steps.facts
        return run

    # -- starting -----------------------------------------------------------------------------------------------------

    async def begin(
        self,
        agent: Agent,
        prompt: Prompt,
        options: RunOptions,
        form: JsonSchema | None = None,
        request_key: RequestKey | None = None,
        *,
        waits: bool = False,
    ) -> LocalRun | AcceptedRun:
        """Start a run of a user that the principal may act for."""
        if not self.principal.may_see(user_id := options.get("user_id")):
            raise unknown_user(user_id)
        run = await self._host.begin(agent, prompt, options, form, request_key, waits=waits)
        return self._note_run(run) if isinstance(run, LocalRun) else run

    def max_state_body(self, agent: Agent) -> int:
        return self._host.max_state_body(agent)

    def session_slot(
        self, agent: Agent, user_id: str | None, session_id: str | None
    ) -> AbstractAsyncContextManager[None]:
        return self._host.session_slot(agent, user_id, session_id)

    async def resume_run(
        self,
        agent: Agent,
        run_id: str,
        answers: Mapping[str, Any],
        new_run_id: str | None,
        request_key: RequestKey | None = None,
        options: ContinueOptions | None = None,
        form: JsonSchema | None = None,
    ) -> tuple[LocalRun | AcceptedRun, int]:
        """Continue a run. Also returns the number of its last event before that.

        `options` and `form` are for the new run that is made after a cut; without a form it keeps the schema of the run
        before.
        """
        found = await self.find(agent, run_id)
        self._host.check_continuable(agent, found)
        if form is None and found.status.final and found.output_schema is not None:
            form = JsonSchema(found.output_schema)
        given: dict[str, Any] = {"output_type": form, **(options or {})}
        session, anew = session_of(found), found.status.final
        run, after = await self._host.resume_run(
            agent, run_id, answers, session, new_run_id, request_key, given, anew=anew
        )
        if not isinstance(run, LocalRun):
            return run, after
        run.output_schema = found.output_schema if form is None else form.kept
        return self._note_run(run), after

    def key_lock(self, agent: Agent, user_id: str | None, key: str) -> asyncio.Lock:
        return self._host.key_lock(agent, user_id, key)

    async def find_by_key(
        self, agent: Agent, user_id: str | None, wanted: RequestKey
    ) -> tuple[LocalRun | RunRecord, int] | None:
        return await self._host.find_by_key(agent, user_id, wanted) if self.principal.may_see(user_id) else None

    def remember(self, agent: Agent, user_id: str | None, wanted: RequestKey, run_id: str, after: int) -> None:
        self._host.remember(agent, user_id, wanted, run_id, after)

    # -- cancelling ----------------------------------------------------------------------------------------------------

    async def cancel_run(self, agent: Agent, run_id: str, asked: CancelRequest, *, look_up: bool) -> CancelledRun:
        """Cancel one run, in this process or another one. With `look_up`, the result always has the run."""
        if not look_up and await self.cancel_elsewhere(agent, run_id, asked):
            return CancelledRun(CancelOutcome.requested, None)
        here = self.run(agent, run_id)
        # A live run of this process is asked first, before its store: that may not have admitted the run yet.
        found = here if here is not None and not here.status.final else await self.find_anywhere(agent, run_id)
        if isinstance(found, RunRecord):
            return CancelledRun(CancelOutcome.already_finished, found)
        outcome, stored = await self.cancel(agent, found, asked)
        if isinstance(found, LocalRun) and (not outcome or found.was_refused):
            found = await self.reread_ended(agent, found)
        return CancelledRun(outcome, found, stored)

    async def cancel(self, agent: Agent, run: LocalRun | RemoteRun, asked: CancelRequest) -> tuple[CancelOutcome, bool]:
        """Cancel a run that was found. The second value is False if a shared store does not have the cancel yet."""
        if isinstance(run, LocalRun) and agent.runtime.worker is None:
            return run.request_cancel(asked), True
        # If the store has not taken it in, its id may be another user's. A cancel must not reach that one.
        key = run.session.key if isinstance(run, LocalRun) else run.record.session
        outcomes = await cancel_fitting(agent.runtime, Selection(run.run_id, None, key.user_id, key.agent_id), asked)
        outcome = outcomes.get(run.run_id, CancelOutcome.already_finished)
        if isinstance(run, RemoteRun):
            await run.asked(outcome)
        return outcome, outcomes.stored

    async def wait_until_gone(
        self, agent: Agent, run: LocalRun | RemoteRun, seconds: float
    ) -> tuple[LocalRun | RemoteRun, Receipt | None]:
        """Wait until a run that was cancelled is gone, for at most this time. If the store has refused it, another
        process has the run of that id: it is waited for that one.
        """
        until = time.monotonic() + seconds
        receipt = await wait_until_gone(run, seconds)
        if isinstance(run, LocalRun) and run.was_refused:
            run = await self.reread_ended(agent, run)
            receipt = await wait_until_gone(run, max(0.0, until - time.monotonic()))
        return run, receipt

    async def cancel_elsewhere(self, agent: Agent, run_id: str, asked: CancelRequest) -> bool:
        """Cancel a run of another process without looking it up first. False if it was cancelled before or had ended,
        or if the principal may see no such run of this agent.
        """
        if agent.runtime.find_recent(run_id) is not None:
            return False
        principal = self.principal
        if not principal.admin and not principal.user_id:
            return False
        user_id = None if principal.admin else principal.user_id
        outcomes = await cancel_fitting(agent.runtime, Selection(run_id, None, user_id, agent.id), asked)
        return outcomes.get(run_id) is CancelOutcome.requested

    # -- cancelling many, and blocking ---------------------------------------------------------------------------------

    def sweep(self, agent: Agent, *, user_id: str | None, session_id: str | None) -> Sweep:
        """A cancel of every matching run of this agent."""
        if not self.principal.may_see(user_id):
            raise unknown_user(user_id)
        return Sweep(agent.runtime, Selection(None, session_id, user_id, agent.id))

    def log_cancel(
        self, asked: CancelRequest, agent_id: str | None, user_id: str | None, session_id: str | None
    ) -> None:
        """Log who cancels many runs. One session is routine, such as a Stop button, so that is INFO only."""
        fields = (("agent", agent_id), ("user", user_id), ("session", session_id))
        which = ", ".join(f"{name} {value!r}" for name, value in fields if value)
        log.log(
            logging.INFO if session_id else logging.WARNING,
            "%s cancels all runs%s (%s)",
            escaped(asked.by or self.principal.by or "someone"),
            f" of {which}" if which else "",
            escaped(asked.reason or "no reason given"),
        )

    async def block(self, kind: BlockKind, id: str, by: str | None, reason: str | None) -> None:
        blocking = [runtime.block(kind, id, by, reason) for runtime in self.runtimes]
        for done in await asyncio.gather(*blocking, return_exceptions=True):  # one failure must not stop the others
            if isinstance(done, BaseException):
                raise done
        by, reason = escaped(by or "someone"), escaped(reason or "no reason given")
        log.warning("%s %r was blocked by %s (%s)", kind, id, by, reason)

    async def unblock(self, kind: BlockKind, id: str) -> bool:
        lifted = [await runtime.unblock(kind, id) for runtime in self.runtimes]
        if any(lifted):
            log.warning("%s %r was unblocked by %s", kind, id, escaped(self.principal.by or "someone"))
        return any(lifted)

    async def blocks(self) -> list[Block]:
        """The blocks of all runtimes. They are the same in each, unless the program itself blocked in one of them."""
        return list({(block.kind, block.id): block for each in self.runtimes for block in await each.blocks()}.values())

    async def cancel_log(self, which: Selection, limit: int) -> list[CancelEntry]:
        """The log of cancels, newest first."""
        entries = [entry for runtime in self.runtimes for entry in await runtime.cancel_log(which, limit)]
        return sorted(entries, key=lambda entry: -entry.request.requested_at)[:limit]

    # -- worker processes ---------------------------------------------------------------------------------------------

    @property
    def _queues(self) -> list[RunQueue]:
        """For admins only."""
        found = {id(runtime.store): queue_at(runtime.store) for runtime in self.runtimes}
        return [queue for queue in found.values() if queue is not None]

    async def workers(self) -> Overview:
        """The worker processes on the databases of this server, and what waits for them."""
        found = [await look(queue) for queue in self._queues]
        return Overview(
            [worker for each in found for worker in each.workers], [queue for each in found for queue in each.queues]
        )

    async def has_queue(self) -> bool:
        """Whether worker processes have been used with a database of this server."""
        return any([await queue.is_there() for queue in self._queues])

    async def drain_worker(self, name: str) -> bool:
        """Ask a worker process to stop. False if there is none of this name."""
        asked = any([await queue.drain(name) for queue in self._queues])
        if asked:
            log.warning("worker %r was asked to drain by %s", name, escaped(self.principal.by or "someone"))
        return asked

    async def holders(self, run_ids: Sequence[str]) -> Mapping[str, str]:
        """Which process holds each of these runs, which this principal may see. Runs that none holds are left out."""
        stores = {id(each.store): each.store for each in self._host.runtimes if each.worker is not None}
        return {run_id: name for store in stores.values() for run_id, name in (await holders(store, run_ids)).items()}

    @property
    def runtimes(self) -> list[Runtime]:
        """All runtimes, which users share: for admins only."""
        self.principal.require_admin()
        return self._host.runtimes


def unknown_user(user: str | None) -> Problem:
    return Problem(404, f"there is no user {user!r} here")


def unknown_session(key: SessionKey) -> Problem:
    detail = f"user {key.user_id!r} has no session {key.session_id!r} with {key.agent_id!r}: create it first"
    return Problem(404, detail)

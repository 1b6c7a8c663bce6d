# SPDX-License-Identifier: Apache-2.0
"""Finding runs, and waiting for their end, whichever process has them."""

from __future__ import annotations

from collections.abc import Iterable

from andon.agent.agent import Agent
from andon.core.backend import Backend
from andon.core.receipt import Receipt
from andon.core.records import RunRecord, SessionKey
from andon.core.run.run import LocalRun
from andon.core.run.waits import wait_gone
from andon.core.selection import Selection
from andon.core.shared.remote import RemoteRun
from andon.core.states import RunStatus


async def wait_until_gone(run: LocalRun | RemoteRun, seconds: float) -> Receipt | None:
    """Wait until the run has ended and nothing of it is left, for at most this time."""
    return await wait_gone(run, seconds) if isinstance(run, LocalRun) else await run.gone(seconds)


async def find_many(agent: Agent, run_ids: Iterable[str]) -> dict[str, RemoteRun]:
    """Those of these runs that the store knows, if it is one that processes share."""
    backend = agent.runtime.backend
    return _remote_runs(backend, [record for run_id in run_ids if (record := await backend.find_record(run_id))])


async def live_in(agent: Agent, key: SessionKey) -> list[RemoteRun]:
    """The runs of a session that have not ended, in any process, if the store is one that processes share."""
    going = tuple(status for status in RunStatus if not status.final)
    which = Selection(session_id=key.session_id, agent_id=key.agent_id, statuses=going)
    backend = agent.runtime.backend
    found = [record for record in await backend.list_records(which, 100) if record.session == key]
    return list(_remote_runs(backend, found).values())


def _remote_runs(backend: Backend, records: Iterable[RunRecord]) -> dict[str, RemoteRun]:
    return {record.run_id: run for record in records if (run := backend.remote_run(record)) is not None}

# SPDX-License-Identifier: Apache-2.0
"""Finding runs, and waiting for their end, whichever process has them."""

from __future__ import annotations

from collections.abc import Iterable

from andon.agent.agent import Agent
from andon.core.receipt import Receipt
from andon.core.records import SessionKey
from andon.core.run.run import LocalRun
from andon.core.run.waits import wait_gone
from andon.core.selection import Selection
from andon.core.shared.remote import RemoteRun
from andon.core.states import RunStatus


async def wait_until_gone(run: LocalRun | RemoteRun, seconds: float) -> Receipt | None:
    """Wait until the run has ended and nothing of it is left, for so long at the most."""
    return await wait_gone(run, seconds) if isinstance(run, LocalRun) else await run.gone(seconds)


async def find_many(agent: Agent, run_ids: Iterable[str]) -> dict[str, RemoteRun]:
    """Those of these runs that the store knows, if it is one that processes share."""
    worker = agent.runtime.worker
    if worker is None:
        return {}
    records = [await worker.store.find(run_id) for run_id in run_ids]
    return {record.run_id: RemoteRun(worker.link, record) for record in records if record is not None}


async def live_in(agent: Agent, key: SessionKey) -> list[RemoteRun]:
    """The runs of a session that have not ended, wherever they are, if the store is one that processes share."""
    worker = agent.runtime.worker
    if worker is None:
        return []
    going = tuple(status for status in RunStatus if not status.final)
    which = Selection(session_id=key.session_id, agent_id=key.agent_id, statuses=going)
    found = await worker.store.list_runs(which, 100)
    return [RemoteRun(worker.link, record) for record in found if record.session == key]

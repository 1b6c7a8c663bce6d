# SPDX-License-Identifier: Apache-2.0
"""The runs that were started inside a run, and those inside them; and the run's prompt."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from andon.agent.agent import Agent
from andon.core.records import RunRecord
from andon.core.run.run import LocalRun
from andon.core.shared.overview import OverviewStore, StoredRun
from andon.messages import Message
from andon.scale.inspection import holder_name, worker_names
from andon.server.authorized_host import AuthorizedHost
from andon.server.board.board import Board
from andon.server.board.lines import Activity, Line, ended_line, head_of, live_line
from andon.server.host import session_of

MOST_RUNS = 500


async def prompt_of(agent: Agent, found: LocalRun | RunRecord) -> str:
    """The prompt of the run. Empty if it is not known, or not yet."""
    store = agent.runtime.store
    messages: list[Message] | None = None
    if isinstance(found, LocalRun):
        messages = found.own_messages
    elif store is not None:
        messages = await store.added(found.run_id)
    return next((message.text for message in reversed(messages or []) if message.role == "user"), "")


async def run_tree(board: Board, host: AuthorizedHost, agent: Agent, found: LocalRun | RunRecord) -> list[Line]:
    """The line of this run, and then those of the runs below it, oldest first; at most `MOST_RUNS` and one more.

    All of them are on the runtime of this agent: on another one, another run may have the same id.
    """
    known = await _ended_and_stored(board, host, agent, found.run_id)
    live = {run.run_id: run for run in host.live if run.runtime is agent.runtime}
    parents = {line.run_id: line.parent_run_id for line in known.values()}
    parents |= {run.run_id: run.parent_run_id for run in live.values()}
    below = defaultdict[str | None, list[str]](list)
    for run_id, parent in parents.items():
        if parent != run_id:
            below[parent].append(run_id)

    def line_of(run_id: str) -> Line:
        run = live.get(run_id)
        return known[run_id] if run is None else board.feed.live_line(run)

    tree = [_top(board, found, known)]
    level = [found.run_id]
    while level and len(tree) <= MOST_RUNS:
        level = [child for run_id in level for child in below.pop(run_id, ())]
        tree += sorted(map(line_of, level[:MOST_RUNS]), key=lambda line: line.created_at)
    return tree[: MOST_RUNS + 1]


async def _ended_and_stored(board: Board, host: AuthorizedHost, agent: Agent, run_id: str) -> dict[str, Line]:
    """The lines of runs of this runtime: those in the history, and from the store all of the tree of this run."""
    agent_ids, may_see = host.agent_ids_on(agent.runtime), host.principal.may_see
    lines = {each.run_id: each for each in board.history.lines if each.agent_id in agent_ids and may_see(each.user_id)}
    if isinstance(store := agent.runtime.store, OverviewStore):
        names = await worker_names(store)
        stored = [_line_of(board, each, names) for each in await store.run_tree(run_id, MOST_RUNS + 1)]
        lines |= {each.run_id: each for each in stored if may_see(each.user_id)}
    return lines


def _top(board: Board, found: LocalRun | RunRecord, known: Mapping[str, Line]) -> Line:
    if isinstance(found, LocalRun) and not found.status.final:
        return board.feed.live_line(found)
    if (line := known.get(found.run_id)) is not None and line.agent_id == session_of(found).agent_id:
        return line
    if isinstance(found, LocalRun):
        return board.feed.live_line(found)
    return _line_of(board, StoredRun(found, None, None), {})


def _line_of(board: Board, stored: StoredRun, names: Mapping[str, str]) -> Line:
    record, owner = stored.record, stored.owner
    if record.status.final:
        return ended_line(stored)
    known = board.feed.known_line((record.session.agent_id, record.run_id))
    if known is not None and known.status is record.status:
        return known  # it says what the run does
    server = None if owner is None else holder_name(owner, names)
    return live_line(head_of(record), record.status, Activity(), server, asks=record.interrupts)

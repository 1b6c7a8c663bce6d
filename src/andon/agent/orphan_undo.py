# SPDX-License-Identifier: Apache-2.0
"""Undoes the calls of a run whose worker process is gone, by the process that ends the run.

Only the functions that tools were defined with can be called: what a call has registered itself went with its process.
What must stay true: a call is undone at most once. That it is undone is written first, under the run's lease. If the
lease is lost by then, or another process has begun to undo the call, it is not undone here.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from andon.agent.undoing import Undoing, definition_step
from andon.core.events import Event, RunEvent, ToolView
from andon.core.portal import portal
from andon.core.shared.remote import read_all
from andon.core.shared.store import Progress, SharedStore, Taken
from andon.messages import ToolCall
from andon.tools.base import Tool, traits_of

log = logging.getLogger(__name__)

BEGUN_ELSEWHERE = "another process had begun to undo it, and is gone; how far it came is unknown"


class KnownAgent(Protocol):
    """An agent of this process, whose tools may have undo functions."""

    tools: list[Tool]
    deps: Any

    @property
    def undo_seconds(self) -> float: ...


class LeaseIsLost(Exception):  # noqa: N818 - no failure: another process ends the run
    """Another process has the run by now."""


async def undo_orphan(
    store: SharedStore, taken: Taken, calls: Sequence[ToolCall], started: set[str], agent: KnownAgent | None
) -> tuple[Taken, dict[str, str | None]]:
    """Undo those of these calls that had started and can be undone.

    Returns what was taken, with the number of its last event now, and by the id of each such call None, or why it was
    not undone. Raises `LeaseIsLost`.
    """
    tools = {} if agent is None else {tool.name: tool for tool in agent.tools if traits_of(tool).undo is not None}
    if agent is None or not any(call.name in tools for call in calls):
        return taken, {}
    told = await read_all(store, taken.record.run_id)
    own = [event for event in told if event.run_id == taken.record.run_id and event.tool is not None]
    started = started | _calls_in(own, RunEvent.tool_call_started)
    begun = _calls_in(own, RunEvent.tool_undo_started)
    these = [call for call in calls if call.name in tools and call.id in started]
    fresh = [call for call in these if call.id not in begun]
    undone: dict[str, str | None] = {call.id: BEGUN_ELSEWHERE for call in these if call.id in begun}
    if fresh:
        events = [_event(taken, number, call) for number, call in enumerate(fresh, 1)]
        if await store.write([Progress(taken.lease, None, events)]):
            raise LeaseIsLost
        taken = taken._replace(last_seq=taken.last_seq + len(events))
        work = functools.partial(_undo_all, taken, fresh, tools, agent)
        undone |= await asyncio.shield(asyncio.wrap_future(portal.submit(work)))
    return taken, undone


def _calls_in(events: Sequence[Event], kind: RunEvent) -> set[str]:
    return {event.tool.call_id for event in events if event.event is kind and event.tool is not None}


def _event(taken: Taken, number: int, call: ToolCall) -> Event:
    key, seq = taken.record.session, taken.last_seq + number
    view = ToolView(call.id, call.name, call.arguments)
    kind, run_id = RunEvent.tool_undo_started, taken.record.run_id
    return Event(kind, run_id, key.session_id, key.agent_id, seq, time.time(), tool=view)


class _NoHolder:
    """The run has no receipt any more that could name a thread: the log does."""

    def leave_behind(self, key: object, name: str) -> None:
        log.warning("%s is still running", name)

    def picked_up(self, key: object) -> None: ...


async def _undo_all(
    taken: Taken, calls: Sequence[ToolCall], tools: Mapping[str, Tool], agent: KnownAgent
) -> dict[str, str | None]:
    """On the portal's loop: an undo function that blocks must not keep the worker from renewing its leases."""
    record, seconds = taken.record, agent.undo_seconds
    facts = {
        "run_id": record.run_id,
        "session_id": record.session.session_id,
        "user_id": record.session.user_id,
        "deadline": None,
        "metadata": record.metadata,
        "deps": agent.deps,
    }

    def take(call: ToolCall) -> list[Callable[[], Any]]:
        step = definition_step(tools[call.name], call, facts)
        return [] if step is None else [step]

    undoings = {call.id: Undoing(call, seconds, _NoHolder(), functools.partial(take, call)) for call in calls}
    await asyncio.wait([undoing.start() for undoing in undoings.values()], timeout=2 * seconds + 1)
    for undoing in undoings.values():
        undoing.fail("it does not end")
    return {call_id: undoing.failure for call_id, undoing in undoings.items()}

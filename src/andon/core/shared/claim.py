# SPDX-License-Identifier: Apache-2.0
"""Claims a run that is paused in a shared store, in order to continue it, and gives it back.

The caller may be cancelled before the store has answered, or the answer may be lost. Then the run is given back: it
stays paused. Otherwise it would be held without a process that works on it, and be lost when its lease expires.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
from typing import Any, NamedTuple

import msgspec

from andon.core.process_name import process_name
from andon.core.receipt import CancelRequest
from andon.core.records import RequestKey
from andon.core.shared.link import StoreLink
from andon.core.shared.store import Lease, Taken
from andon.core.states import RunStatus
from andon.errors import StoreError


class Claimed(NamedTuple):
    """A run that was claimed."""

    lease: Lease
    since: float
    """When its lease began, by `time.monotonic()`."""
    owner: str
    """The name under which the run is held."""


async def _claim(
    link: StoreLink, run_id: str, known: int, name: str, request_key: RequestKey | None = None
) -> Claimed | None:
    """Claim a paused run under this name. The caller knows its first `known` events.

    None if the run is not paused any more, was cancelled, or was answered elsewhere and paused again. In the last case
    it waits for other answers.
    """
    taken = await link.store.take_up(run_id, name, link.seconds, request_key)
    if taken is None:
        return None
    if taken.last_seq > known:
        await _give_back(link, taken)
        return None
    return Claimed(taken.lease, taken.since, name)


async def claim_paused(
    link: StoreLink, run_id: str, known: int, seconds: float, request_key: RequestKey | None = None
) -> Claimed | None:
    """The same for a caller that may be cancelled meanwhile, or may get no answer. Then the run stays paused.

    Each call claims under a name of its own. So it gives back only its own claim, and not what another caller of this
    process has claimed since. A cancelled caller waits until the run is given back, for at most `seconds`. The
    next caller waits for that too.
    """
    await given_back(link, run_id, seconds)
    name = f"{process_name()}:{os.urandom(8).hex()}"
    taking = link.submit(lambda: _claim(link, run_id, known, name, request_key))
    try:
        return await asyncio.shield(asyncio.wrap_future(taking))
    except asyncio.CancelledError:
        if taking.cancelled():  # by the end of the worker, not by the caller's host
            raise StoreError("the runtime was closed while the run was being claimed") from None
        with contextlib.suppress(StoreError):
            _leave(link, run_id, name, taking)
            await given_back(link, run_id, seconds)
        raise
    except StoreError:
        with contextlib.suppress(StoreError):
            _leave(link, run_id, name, taking)
        raise


def give_back(link: StoreLink, run_id: str, held: Claimed) -> None:
    """Give a claimed run back soon, so that it stays paused: its caller can't continue it."""
    taking: concurrent.futures.Future[Claimed] = concurrent.futures.Future()
    taking.set_result(held)
    _leave(link, run_id, held.owner, taking)


async def given_back(link: StoreLink, run_id: str, seconds: float) -> bool:
    """Wait until a run that is being given back is paused again, for at most `seconds`. False for any other run."""
    if (leaving := link.giving_back.get(run_id)) is None:
        return False
    await asyncio.wait([asyncio.wrap_future(leaving)], timeout=seconds)
    return True


def _leave(link: StoreLink, run_id: str, name: str, taking: concurrent.futures.Future[Any]) -> None:
    leaving = link.giving_back[run_id] = link.submit(lambda: _leave_paused(link, run_id, name, taking))

    def done(_: object) -> None:
        if link.giving_back.get(run_id) is leaving:
            link.giving_back.pop(run_id, None)

    leaving.add_done_callback(done)


async def _leave_paused(link: StoreLink, run_id: str, name: str, taking: concurrent.futures.Future[Any]) -> None:
    """Undo the claim, if it was successful. If its answer was lost, the store is asked."""
    with contextlib.suppress(StoreError):  # the worker is closed: then the run is lost when its lease expires
        try:
            if await asyncio.wrap_future(taking) is None:
                return
        except StoreError:
            pass
        record = await link.retry(lambda: link.store.find(run_id))
        if record is None or record.status is RunStatus.paused:  # there is nothing to give back
            return
        taken = await link.retry(lambda: link.store.take_up(run_id, name, link.seconds))
        if taken is not None:
            await link.retry(lambda: _give_back(link, taken))


async def _give_back(link: StoreLink, taken: Taken) -> None:
    """Pause a claimed run again. If it was cancelled meanwhile, end it."""
    # If it was claimed twice, because an answer was lost, its record says running, though it has not begun.
    taken = taken._replace(record=msgspec.structs.replace(taken.record, status=RunStatus.paused))
    answer = await link.store.finish(taken.lease, taken.record, taken.messages, [])
    if isinstance(answer, CancelRequest):
        await link.end_orphan(taken, answer)

# SPDX-License-Identifier: Apache-2.0
"""Claiming a run that is paused in a shared store, in order to go on with it; and giving it back.

The caller may be cancelled before the store has answered, or the answer may be lost. Then the run is given back: it
stays paused. A run that is held without anyone knowing would be lost when its lease runs out.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
from typing import Any, NamedTuple

import msgspec

from andon.core.receipt import CancelRequest
from andon.core.records import RequestKey
from andon.core.shared.link import StoreLink
from andon.core.shared.store import Lease, Taken
from andon.core.states import RunStatus
from andon.errors import StoreError


class Claimed(NamedTuple):
    """What the store has given."""

    lease: Lease
    since: float
    """From when on its lease counts, as `time.monotonic()` does."""
    owner: str
    """The name under which the run is held."""


async def _claim(
    link: StoreLink, run_id: str, known: int, name: str, request_key: RequestKey | None = None
) -> Claimed | None:
    """Claim a paused run of which so many events are known, under this name.

    None if the run is not paused any more, was cancelled, or was answered elsewhere and paused again: then it waits for
    other answers than these.
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
    """The same for a caller that may be cancelled meanwhile, or may get no answer: then the run stays paused.

    Each call claims under a name of its own. So what is given back is what was claimed under that name, and not what
    another caller of this process has claimed since. A cancelled caller waits for that, for so many seconds at the
    most; and so does the next caller.
    """
    await given_back(link, run_id, seconds)
    name = os.urandom(8).hex()
    taking = link.submit(lambda: _claim(link, run_id, known, name, request_key))
    try:
        return await asyncio.shield(asyncio.wrap_future(taking))
    except asyncio.CancelledError:
        if taking.cancelled():  # by the end of the worker, not by our host
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
    """Have a claimed run stay paused, soon: the caller that claimed it can't go on with it."""
    taking: concurrent.futures.Future[Claimed] = concurrent.futures.Future()
    taking.set_result(held)
    _leave(link, run_id, held.owner, taking)


async def given_back(link: StoreLink, run_id: str, seconds: float) -> bool:
    """Wait, for so many seconds at the most, until a run that was claimed in vain is paused again. False if no such
    run is being given back.
    """
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
    """Have the run as it was before the claim, if that was successful, which may not be known."""
    with contextlib.suppress(StoreError):  # the worker is closed: then the run is lost, like every run that is not held
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
    """Have a claimed run stay paused; or end, if it was cancelled meanwhile."""
    # If it was claimed twice, because an answer was lost, its record says running; but it has not begun to.
    taken = taken._replace(record=msgspec.structs.replace(taken.record, status=RunStatus.paused))
    answer = await link.store.finish(taken.lease, taken.record, taken.messages, [])
    if isinstance(answer, CancelRequest):
        await link.end_orphan(taken, answer)

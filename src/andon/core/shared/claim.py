# SPDX-License-Identifier: Apache-2.0
"""Taking up a run that is paused in a shared store, for whoever has brought the answers; and giving it back.

Whoever asks may be gone before the store has answered, or the answer may be lost: then the run waits on for a person,
as it did. Nobody is to hold it who does not know that, for then it would be lost when its lease is over.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from andon.core.receipt import CancelRequest
from andon.core.states import RunStatus
from andon.errors import StoreError

if TYPE_CHECKING:
    from andon.core.records import RequestKey
    from andon.core.shared.store import Lease, Taken
    from andon.core.shared.worker import Keeper


class Held(NamedTuple):
    """What the store has given."""

    lease: Lease
    since: float
    """From when on its lease counts, as `time.monotonic()` does."""
    owner: str
    """The name under which the run is held."""


async def take_paused(
    keeper: Keeper, run_id: str, known: int, name: str, request_key: RequestKey | None = None
) -> Held | None:
    """Hold a paused run of which so many events are known, under this name. None if it is not paused any more, was
    asked to stop, or was answered by someone else and paused again: then it waits on for other answers than these.
    """
    taken = await keeper.store.take_up(run_id, name, keeper.seconds, request_key)
    if taken is None:
        return None
    if taken.last_seq > known:
        await _give_back(keeper, taken)
        return None
    return Held(taken.lease, taken.since, name)


async def take_paused_for(
    keeper: Keeper, run_id: str, known: int, seconds: float, request_key: RequestKey | None = None
) -> Held | None:
    """The same for someone who may be cancelled meanwhile, or not be answered: then the run waits on, as it did.

    Each asks under a name of its own: what is given back is what was got under that name, and not what someone else in
    this process has got since. Whoever was cancelled waits for that, for so many seconds at the most; and so does
    whoever asks next.
    """
    await given_back(keeper, run_id, seconds)
    name = os.urandom(8).hex()
    taking = keeper.submit(lambda: take_paused(keeper, run_id, known, name, request_key))
    try:
        return await asyncio.shield(asyncio.wrap_future(taking))
    except asyncio.CancelledError:
        if taking.cancelled():  # which is what the end of the keeper does, and not our host
            raise StoreError("the runtime was closed while the run was taken up") from None
        with contextlib.suppress(StoreError):
            _leave(keeper, run_id, name, taking)
            await given_back(keeper, run_id, seconds)
        raise
    except StoreError:
        with contextlib.suppress(StoreError):
            _leave(keeper, run_id, name, taking)
        raise


def give_back(keeper: Keeper, run_id: str, held: Held) -> None:
    """Have a run that was taken up wait on for a person, soon: whoever took it up can't go on with it."""
    taking: concurrent.futures.Future[Held] = concurrent.futures.Future()
    taking.set_result(held)
    _leave(keeper, run_id, held.owner, taking)


async def given_back(keeper: Keeper, run_id: str, seconds: float) -> bool:
    """Wait, for so long, until a run that was taken up for somebody who is gone waits on for a person. False if no run
    is given back.
    """
    if (leaving := keeper.leaving.get(run_id)) is None:
        return False
    await asyncio.wait([asyncio.wrap_future(leaving)], timeout=seconds)
    return True


def _leave(keeper: Keeper, run_id: str, name: str, taking: concurrent.futures.Future[Any]) -> None:
    leaving = keeper.leaving[run_id] = keeper.submit(lambda: _leave_paused(keeper, run_id, name, taking))

    def done(_: object) -> None:
        if keeper.leaving.get(run_id) is leaving:
            keeper.leaving.pop(run_id, None)

    leaving.add_done_callback(done)


async def _leave_paused(keeper: Keeper, run_id: str, name: str, taking: concurrent.futures.Future[Any]) -> None:
    """Have it as it was before it was taken up, if it was: nobody may know."""
    with contextlib.suppress(StoreError):  # the keeper is closed: then it is lost, like all that nobody holds
        try:
            if await asyncio.wrap_future(taking) is None:
                return
        except StoreError:
            pass
        record = await keeper.ask(lambda: keeper.store.find(run_id))
        if record is None or record.status is RunStatus.paused:  # there is nothing to give back
            return
        taken = await keeper.ask(lambda: keeper.store.take_up(run_id, name, keeper.seconds))
        if taken is not None:
            await keeper.ask(lambda: _give_back(keeper, taken))


async def _give_back(keeper: Keeper, taken: Taken) -> None:
    """Have a run that was taken up wait on for a person; or end, if it was asked to meanwhile."""
    # Taken up twice, because an answer was lost, it is said to be running; but it has not begun to.
    taken = taken._replace(record=msgspec.structs.replace(taken.record, status=RunStatus.paused))
    answer = await keeper.store.finish(taken.lease, taken.record, taken.messages, [])
    if isinstance(answer, CancelRequest):
        await keeper.end_orphan(taken, answer)

# SPDX-License-Identifier: Apache-2.0
"""What a run leaves, and to whom: its messages to the session and the store, its place to the next in line.

Each part is done once, whoever does it: a task that is stopped in between is followed by the portal, which goes on with
what is missing. Nothing here decides how a run ends; that is done.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec

from andon.core.receipt import CancelRequest, Receipt
from andon.core.records import RequestKey, RunRecord
from andon.core.run.work import Settlement
from andon.core.signal import CancelSignal, Failed, Fate, stop_reason_of
from andon.core.states import Phase, RunStatus, StopReason
from andon.core.steps import Stepper
from andon.core.store import DONE
from andon.errors import confide
from andon.messages import UNKNOWN_USAGE, Message

if TYPE_CHECKING:
    from andon.core.runtime import Runtime
    from andon.core.session import Place, Session


class Estate(Stepper):
    """What a run leaves."""

    _conversation: list[Message]

    __slots__ = (
        "_added",
        "_conversation",
        "_cut_phase",
        "_metadata",
        "_place",
        "_receipt",
        "_record",
        "_settlement",
        "created_at",
        "output_schema",
        "phase",
        "request_key",
        "run_id",
        "runtime",
        "session",
    )

    def __init__(self, runtime: Runtime, session: Session, run_id: str, metadata: dict[str, Any]) -> None:
        super().__init__(CancelSignal(), runtime.bounds)
        self.runtime, self.session, self.run_id, self._metadata = runtime, session, run_id, metadata
        self.created_at = time.time()
        self.request_key: RequestKey | None = None
        """The idempotency key of the request that starts it. A shared store takes it in together with the run."""
        self.output_schema: dict[str, Any] | None = None
        """The JSON schema that a server's client asked for. It is kept with the run, for one that goes on with it."""
        self.phase = Phase.pending
        self._place: Place | None = None
        self._settlement: Settlement | None = None
        self._record: RunRecord | None = None
        self._receipt: Receipt | None = None
        self._cut_phase: Phase | None = None
        self._added = False

    @property
    def conversation(self) -> list[Message]:
        """All that was said in its session when it ended."""
        return self._conversation

    async def _put_away(self, status: RunStatus) -> None:
        """Store the end, and pass the session on."""
        place = self._place
        if place is None:  # done before, by a task that was stopped right after
            return
        self._record = self._make_record(status, self.settlement)
        if self.session.bequeath(place, self._write):  # still in the queue: whoever is ahead will write it
            self._conversation, self._place = self.settlement.messages, None
            return
        await self._write(self)
        self._conversation = self.session.base
        await self._pass_on()

    async def _pass_on(self) -> None:
        """Give the session to the next in line; what cancelled runs left in between is written first.

        Should this task be stopped here, the portal goes on with the place that was reached.
        """
        while (place := self._place) is not None:
            if place.bequest is not None:
                await place.bequest(self)
            heir = self.session.leave(place)
            self._place = heir if heir is not None and heir.bequest is not None else None

    async def _write(self, by: Estate) -> None:
        """Add what the run leaves to its session, here and in the store. Done by itself, or by whoever was ahead."""
        session, store = self.session, self.runtime.store
        assert store is not None
        assert self._record is not None
        if not self._added:
            self._added = True
            session.close(self.settlement.messages)
        if not await self._keep(by, self._record, self.settlement.messages):
            session.ahead = True
        if not session.loaded:  # it ended before it had read what came before
            base = await by.bounded(lambda: store.load(session.key), "the store", self.bounds.settle_seconds)
            if base is not None:
                own = self.settlement.messages
                if own and base[-len(own) :] != own:  # behind others that have not ended, it is no part of it yet
                    session.show(own)
                else:
                    session.open(base, [])

    async def _keep(self, by: Estate, record: RunRecord, messages: list[Message]) -> bool:
        """Have the store keep it, bounded. False if it could not."""
        if self.runtime.keeper is not None:  # they have agreed on it already
            return True
        store = self.runtime.store
        assert store is not None
        try:
            asked = store.save(record, messages)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - the boundary to a store that isn't ours
            by.warn("the store failed", error=error)
            return False
        if asked is DONE:
            return True
        first = [asked]  # it is awaited once; should that be cancelled, it is asked again

        async def keep() -> bool:
            await (first.pop() if first else store.save(record, messages))
            return True

        return bool(await by.bounded(keep, "the store", self.bounds.settle_seconds))

    def _make_record(self, status: RunStatus, left: Settlement) -> RunRecord:
        fate = self.signal.fate
        return RunRecord(
            self.run_id,
            self.session.key,
            status,
            self.created_at,
            self._metadata,
            _stop_reason(status, fate),
            left.content,
            left.usage,
            self._receipt,
            confide(fate.error) if isinstance(fate, Failed) else None,
            left.interrupts,
            self._continues(),
            self.parent_run_id,
            left.cut_calls,
            left.bookmark,
            left.output_data,
            left.shortened,
            self.request_key,
            self.output_schema,
        )

    def _make_receipt(self) -> Receipt:
        request = self.signal.request
        assert request is not None
        seen = self._settlement or self._sketch(request)
        tools, usage = ([], UNKNOWN_USAGE) if seen is None else (seen.tools, seen.usage)
        mode, phase = self.signal.mode or request.mode, self._cut_phase or self.phase
        return Receipt.of(request, mode, phase, tools, usage, self.leftovers)

    @property
    def names(self) -> dict[str, str | None]:
        key = self.session.key
        return {
            "run_id": self.run_id,
            "session_id": key.session_id,
            "agent_id": key.agent_id,
            "user_id": key.user_id,
        }

    @property
    def metadata(self) -> dict[str, Any]:
        """What was given with the prompt, as JSON has it. Each reader gets a copy: nobody changes what is kept."""
        copied: dict[str, Any] = msgspec.to_builtins(self._metadata)
        return copied

    @property
    def receipt(self) -> Receipt | None:
        """What the cancel found, once the run has ended by one."""
        return self._receipt

    @property
    def parent_run_id(self) -> str | None:
        raise NotImplementedError

    def _continues(self) -> str | None:
        raise NotImplementedError

    @property
    def continues(self) -> str | None:
        """The run that this one went on with, once it has ended."""
        return None if self._record is None else self._record.continues

    def _sketch(self, request: CancelRequest) -> Settlement | None:
        """What it would leave if it ended now, if that can be said from here."""
        raise NotImplementedError

    @property
    def settlement(self) -> Settlement:
        assert self._settlement is not None
        return self._settlement


def _stop_reason(status: RunStatus, fate: Fate | None) -> StopReason | None:
    if status is RunStatus.paused:
        return StopReason.interrupt
    return stop_reason_of(fate) if status.final else None

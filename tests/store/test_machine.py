# SPDX-License-Identifier: Apache-2.0
"""Any order of calls, by several workers and others, against a model of what must be so: one writer, one end."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from andon import CancelOutcome, RunRecord, RunStatus
from andon.core.receipt import CancelRequest
from andon.core.selection import Selection
from andon.core.shared.store import Lease, Progress
from andon.core.states import CancelMode
from andon.errors import LeaseLostError, SessionBusyError
from andon.store.sql import SQLStore
from tests.store.making import KEY, LONG, PAST, asking, events, record, said

pytestmark = pytest.mark.no_cover  # others cover what it reaches, and half of its time would be the tracer's

T = TypeVar("T")
FINAL = (RunStatus.completed, RunStatus.cancelled, RunStatus.error)


class Known:
    """A run, as the model has it."""

    def __init__(self, run_id: str, session: str, expired: bool) -> None:
        self.run_id, self.session, self.expired = run_id, session, expired
        self.epoch, self.status, self.asked = 1, RunStatus.pending, False
        self.ends, self.owner = 0, "w"

    @property
    def over(self) -> bool:
        return self.status in FINAL

    @property
    def held(self) -> bool:
        return self.status in (RunStatus.pending, RunStatus.running)


class Machine(RuleBasedStateMachine):
    leases: Bundle[Lease] = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=False)
        self.runner = asyncio.Runner()
        self.store = SQLStore(f"sqlite:///{Path(self.folder.name)}/andon.db")
        self.runs: dict[str, Known] = {}

    def teardown(self) -> None:
        self.do(self.store.close())
        self.runner.close()
        self.folder.cleanup()

    def do(self, call: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(call)

    def _key(self, session: str) -> Any:
        return KEY._replace(session_id=session)

    def _good(self, lease: Lease) -> bool:
        known = self.runs[lease.run_id]
        return known.held and known.epoch == lease.epoch

    def _line(self, session: str) -> list[Known]:
        return [known for known in self.runs.values() if known.session == session and not known.over]

    @rule(
        target=leases,
        session=st.sampled_from(["s1", "s2"]),
        alive=st.booleans(),
        on_busy=st.sampled_from(["reject", "queue", "cancel"]),
    )
    def enter(self, session: str, alive: bool, on_busy: Any) -> Lease:
        run_id, line = f"r{len(self.runs)}", self._line(session)
        busy = [each for each in line if not each.asked and not (each.held and each.expired)]
        entering = self.store.enter(record(run_id, session=self._key(session)), "w", LONG if alive else PAST, on_busy)
        if on_busy == "reject" and busy:
            with pytest.raises(SessionBusyError) as refused:
                self.do(entering)
            assert refused.value.run_id == busy[0].run_id
            # Lest the machine has nothing to hand on, it goes to the end of the line.
            entering = self.store.enter(
                record(run_id, session=self._key(session)), "w", LONG if alive else PAST, "queue"
            )
        elif on_busy == "cancel":
            for each in line:
                each.asked = True
        lease = self.do(entering)
        self.runs[run_id] = Known(run_id, session, not alive)
        assert lease.has_turn is (not line)
        if lease.has_turn:
            self.runs[run_id].status = RunStatus.running
        return lease

    @rule(lease=leases)
    def take_turn(self, lease: Lease) -> None:
        known = self.runs[lease.run_id]
        if not self._good(lease):
            with pytest.raises(LeaseLostError):
                self.do(self.store.take_turn(lease))
            return
        first = known.status is RunStatus.running or self._line(known.session)[0] is known
        assert self.do(self.store.take_turn(lease)) is first
        if first:
            known.status = RunStatus.running

    @rule(lease=leases, seconds=st.sampled_from([LONG, PAST, None]))
    def renew(self, lease: Lease, seconds: float | None) -> None:
        known = self.runs[lease.run_id]
        mine = known.epoch == lease.epoch and not known.over
        answer = self.do(self.store.renew([lease], seconds))
        assert answer.lost == ([] if mine else [lease.run_id])
        assert list(answer.cancels) == ([lease.run_id] if mine and known.asked else [])
        if mine and known.held and seconds is not None:
            known.expired = seconds is PAST

    @rule(lease=leases)
    def write(self, lease: Lease) -> None:
        progress = Progress(lease, said(lease.run_id), events(lease.run_id, (lease.epoch,)))
        assert self.do(self.store.write([progress])) == ([] if self._good(lease) else [lease.run_id])

    @rule(lease=leases, status=st.sampled_from([*FINAL, RunStatus.paused]))
    def finish(self, lease: Lease, status: RunStatus) -> None:
        known = self.runs[lease.run_id]
        end = record(lease.run_id, status, self._key(known.session), content=f"{lease.epoch}")
        answer = self.do(self.store.finish(lease, end, said(lease.run_id), []))
        # Whoever has paused a run may still say that it was cancelled.
        late = (known.epoch, known.status, status) == (lease.epoch, RunStatus.paused, RunStatus.cancelled)
        if not self._good(lease) and not late:
            again = known.epoch == lease.epoch and known.status is status
            assert answer is None if again else isinstance(answer, RunRecord)
        elif known.asked and status is not RunStatus.cancelled:
            assert isinstance(answer, CancelRequest)
        else:
            assert answer is None
            known.status = status
            known.ends += known.over

    @rule(number=st.integers(0, 9), mode=st.sampled_from(list(CancelMode)))
    def cancel(self, number: int, mode: CancelMode) -> None:
        known = self.runs.get(f"r{number}")
        expected = CancelOutcome.unknown
        if known is not None:
            expected = CancelOutcome.already_requested if known.asked else CancelOutcome.requested
            if known.over:
                expected = CancelOutcome.already_finished
            known.asked = known.asked or not known.over
        answer = self.do(self.store.request_cancel(Selection(run_id=f"r{number}"), asking(mode=mode)))
        assert answer == {f"r{number}": expected}

    @rule(target=leases, number=st.integers(0, 9), twice=st.booleans())
    def take_up(self, number: int, twice: bool) -> Any:
        known = self.runs.get(f"r{number}")
        taken = self.do(self.store.take_up(f"r{number}", "v", LONG))
        can = known is not None and known.status is RunStatus.paused and not known.asked
        mine = known is not None and known.held and known.owner == "v"  # then the first answer was lost
        assert (taken is not None) == (can or mine)
        if known is None or taken is None:
            return Lease("r0", 0) if "r0" in self.runs else self.enter("s1", True, "queue")
        if mine:
            assert taken.lease == Lease(known.run_id, known.epoch)
            return taken.lease
        if twice:
            assert self.do(self.store.take_up(f"r{number}", "v", LONG)) is not None
        return self._took(known, taken.lease, "v")

    @rule()
    def take_orphans(self) -> None:
        taken = self.do(self.store.take_orphans("w", LONG, 100))
        orphans = [
            known
            for known in self.runs.values()
            if (known.held and known.expired) or (known.status is RunStatus.paused and known.asked)
        ]
        assert [each.lease.run_id for each in taken] == [known.run_id for known in orphans]
        for known, each in zip(orphans, taken, strict=True):
            self._took(known, each.lease, "w")

    def _took(self, known: Known, lease: Lease, owner: str) -> Lease:
        known.owner = owner
        known.epoch += 1
        known.expired = False
        if known.status is RunStatus.paused:
            known.status = RunStatus.running
        assert lease == Lease(known.run_id, known.epoch)
        return lease

    @invariant()
    def everyone_sees_the_same(self) -> None:
        found = {each.run_id: each.status for each in self.do(self.store.list_runs(Selection(), 100))}
        assert found == {
            run_id: RunStatus.cancelling if known.asked and not known.over else known.status
            for run_id, known in self.runs.items()
        }
        assert all(known.ends <= 1 for known in self.runs.values())


Machine.TestCase.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
TestMachine = Machine.TestCase

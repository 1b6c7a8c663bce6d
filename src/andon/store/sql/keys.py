# SPDX-License-Identifier: Apache-2.0
"""Idempotency keys: each is taken in the transaction that sets its run going, so a request that is refused keeps none.

The primary key is what makes it one run: of several that use a key at once, on whatever servers, one takes it, and the
others wait for that one's commit and then find it. A key is forgotten together with its run.
"""

from __future__ import annotations

from sqlalchemy import func, select

from andon.core.shared import KeyUse
from andon.core.states import RunStatus
from andon.core.store import RequestKey, SessionKey
from andon.errors import KeyUsedError
from andon.store.sql.tables import Id, events, keys, runs
from andon.store.sql.transaction import Tx


def take(tx: Tx, wanted: RequestKey, session: SessionKey, run_id: str, after: int = 0) -> None:
    """Take a user's key for this run, or raise. Taken for the same before, it is taken still: an answer may get lost,
    and a paused run that was taken up may have been given back.
    """
    agent_id, user_id = session.agent_id, session.user_id or ""
    Id.check(agent_id, user_id, wanted.key)
    row = {"agent_id": agent_id, "user_id": user_id, "key": wanted.key}
    use = {"run_id": run_id, "said": wanted.said, "after_seq": after}
    adding = tx.insert(keys).values({**row, **use}).on_conflict_do_nothing()
    if tx.execute(adding, execution_options={"preserve_rowcount": True}).rowcount:
        return
    found = tx.execute(select(keys).where(*(keys.c[name] == value for name, value in row.items()))).one()
    if any(getattr(found, name) != value for name, value in use.items()):
        raise KeyUsedError(
            f"the idempotency key {wanted.key!r} was used before, for run {found.run_id!r}: watch that one, or use a"
            " new key",
            run_id=found.run_id,
        )


def find(tx: Tx, agent_id: str, user_id: str | None, key: str) -> KeyUse | None:
    row = tx.execute(
        _FIND.where(keys.c.agent_id == agent_id, keys.c.user_id == (user_id or ""), keys.c.key == key)
    ).first()
    if row is None:
        return None
    # Whoever took it up to answer it has given it back: it waits for the same answers as before.
    was_given_back = row.after_seq and row.status == RunStatus.paused.value and row.last == row.after_seq
    return None if was_given_back else KeyUse(row.run_id, row.said, row.after_seq)


_last = select(func.max(events.c.seq)).where(events.c.number == runs.c.number).scalar_subquery()
_FIND = select(keys.c.run_id, keys.c.said, keys.c.after_seq, runs.c.status, _last.label("last")).join(
    runs, runs.c.run_id == keys.c.run_id
)

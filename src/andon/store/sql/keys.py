# SPDX-License-Identifier: Apache-2.0
"""Idempotency keys. A key is stored in the transaction that starts its run, so a refused request stores none.

The primary key guarantees one run per key: of several requests with one key, on any servers, one inserts it. The others
wait for its commit, and then find it. A key is deleted with its run. It is also deleted when a paused run was taken up
with it and is paused again without progress: the answer was not used. Keys are always locked before sessions and runs.
"""

from __future__ import annotations

from sqlalchemy import ColumnElement, and_, delete, select

from andon.core.records import RequestKey, SessionKey
from andon.core.shared.store import KeyUse
from andon.errors import KeyUsedError
from andon.store.sql.tables import Id, keys
from andon.store.sql.transaction import Tx


def take(tx: Tx, wanted: RequestKey, session: SessionKey, run_id: str, after: int = 0) -> bool:
    """Store a user's key for this run, or raise. False if it is stored for the same already: an answer may get lost."""
    Id.check(session.agent_id, session.user_id or "", wanted.key)
    use = {"run_id": run_id, "said": wanted.said, "after_seq": after}
    adding = tx.insert(keys).values({**_name(wanted, session), **use}).on_conflict_do_nothing()
    # The key is locked: else it might be deleted before the run is locked, and the run would go on without it.
    looking = select(keys).where(_is(wanted, session)).with_for_update(read=True)
    found = None
    while found is None:  # again, if it was deleted in between
        if tx.execute(adding, execution_options={"preserve_rowcount": True}).rowcount:
            return True
        found = tx.execute(looking).first()
    if any(getattr(found, name) != value for name, value in use.items()):
        raise KeyUsedError(
            f"the idempotency key {wanted.key!r} was used before, for run {found.run_id!r}: watch that one, or use a"
            " new key",
            run_id=found.run_id,
        )
    return False


def drop(tx: Tx, wanted: RequestKey, session: SessionKey) -> None:
    """Delete one key, and no other key of the same run."""
    tx.execute(delete(keys).where(_is(wanted, session)))


def lock_answers(tx: Tx, run_id: str) -> None:
    """Lock the keys with which this run was resumed, before the run itself is locked."""
    tx.execute(select(keys.c.key).where(*_answers(run_id)).order_by(keys.c.key).with_for_update()).all()


def give_back(tx: Tx, run_id: str, after: int) -> None:
    """Delete the key with which this run was resumed after that event: it did not go on."""
    tx.execute(delete(keys).where(*_answers(run_id), keys.c.after_seq == after))


def _answers(run_id: str) -> tuple[ColumnElement[bool], ...]:
    return keys.c.run_id == run_id, keys.c.after_seq > 0  # 0 is the key that has started it


def _name(wanted: RequestKey, session: SessionKey) -> dict[str, str]:
    return {"agent_id": session.agent_id, "user_id": session.user_id or "", "key": wanted.key}


def _is(wanted: RequestKey, session: SessionKey) -> ColumnElement[bool]:
    return and_(*(keys.c[name] == value for name, value in _name(wanted, session).items()))


def find(tx: Tx, agent_id: str, user_id: str | None, key: str) -> KeyUse | None:
    wanted = select(keys).where(keys.c.agent_id == agent_id, keys.c.user_id == (user_id or ""), keys.c.key == key)
    row = tx.execute(wanted).first()
    return None if row is None else KeyUse(row.run_id, row.said, row.after_seq)

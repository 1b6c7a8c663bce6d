# SPDX-License-Identifier: Apache-2.0
"""Idempotency keys: each is taken in the transaction that sets its run going, so a request that is refused keeps none.

The primary key is what makes it one run: of several that use a key at once, on whatever servers, one takes it, and the
others wait for that one's commit and then find it. A key is forgotten together with its run, and when a paused run that
was taken up with it is given back: then its answer was not given. Keys are locked before sessions and runs, everywhere.
"""

from __future__ import annotations

from sqlalchemy import ColumnElement, and_, delete, select

from andon.core.records import RequestKey, SessionKey
from andon.core.shared.store import KeyUse
from andon.errors import KeyUsedError
from andon.store.sql.tables import Id, keys
from andon.store.sql.transaction import Tx


def take(tx: Tx, wanted: RequestKey, session: SessionKey, run_id: str, after: int = 0) -> bool:
    """Take a user's key for this run, or raise. False if it was taken for the same before: an answer may get lost."""
    Id.check(session.agent_id, session.user_id or "", wanted.key)
    use = {"run_id": run_id, "said": wanted.said, "after_seq": after}
    adding = tx.insert(keys).values({**_name(wanted, session), **use}).on_conflict_do_nothing()
    # It is held where it is: else it might be given back between here and the run's lock, and the run go on without it.
    looking = select(keys).where(_is(wanted, session)).with_for_update(read=True)
    found = None
    while found is None:  # again, if it was given back in between
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
    """Forget one key, and no other that was taken for the same run."""
    tx.execute(delete(keys).where(_is(wanted, session)))


def lock_answers(tx: Tx, run_id: str) -> None:
    """Lock the keys with which this run was to go on, before the run itself is locked."""
    tx.execute(select(keys.c.key).where(*_answers(run_id)).order_by(keys.c.key).with_for_update()).all()


def give_back(tx: Tx, run_id: str, after: int) -> None:
    """Forget the key with which this run was to go on after that event: it did not."""
    tx.execute(delete(keys).where(*_answers(run_id), keys.c.after_seq == after))


def _answers(run_id: str) -> tuple[ColumnElement[bool], ...]:
    return keys.c.run_id == run_id, keys.c.after_seq > 0  # the key that has started it has none


def _name(wanted: RequestKey, session: SessionKey) -> dict[str, str]:
    return {"agent_id": session.agent_id, "user_id": session.user_id or "", "key": wanted.key}


def _is(wanted: RequestKey, session: SessionKey) -> ColumnElement[bool]:
    return and_(*(keys.c[name] == value for name, value in _name(wanted, session).items()))


def find(tx: Tx, agent_id: str, user_id: str | None, key: str) -> KeyUse | None:
    wanted = select(keys).where(keys.c.agent_id == agent_id, keys.c.user_id == (user_id or ""), keys.c.key == key)
    row = tx.execute(wanted).first()
    return None if row is None else KeyUse(row.run_id, row.said, row.after_seq)

# SPDX-License-Identifier: Apache-2.0
"""What is stored as JSON. Encoding never fails: a value that JSON has no form for is stored as text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from andon.core.jsonable import clean as clean
from andon.core.jsonable import dump as dump
from andon.core.receipt import CancelRequest
from andon.core.records import RunRecord
from andon.core.selection import Block
from andon.errors import show
from andon.messages import Message
from andon.store.sql.tables import Id

LOOK, CHANGED, LOOK_AT = "", "+", "!"
"""The kinds of notifications. LOOK: anything may have changed. CHANGED: these runs have made progress, have ended, or
have their turn. LOOK_AT: the holders of these runs must read their rows. Anything else is the notice of a cancel.
"""
LONGEST_NOTICE = 7_000
"""In bytes. Postgres takes a little more."""


_encode = msgspec.json.Encoder(enc_hook=show).encode
read_record = msgspec.json.Decoder(RunRecord).decode
read_messages = msgspec.json.Decoder(list[Message]).decode
read_request = msgspec.json.Decoder(CancelRequest).decode
read_block = msgspec.json.Decoder(Block).decode
read_state = msgspec.json.Decoder(dict[str, Any]).decode
_read_names = msgspec.json.Decoder(list[str | None]).decode
_read_notice = msgspec.json.Decoder(tuple[str, str, CancelRequest]).decode


def dump_notice(run_id: str, owner: str | None, request: CancelRequest) -> str:
    """The notice of a cancel: the run, its owner, and the request. Empty if the run has no owner, if the notice would
    be too long, or if it can't be encoded exactly.
    """
    before, after = notice_around(run_id, request)
    return "" if owner is None or before is None or after is None else f"{before}{owner}{after}"


def notice_around(run_id: str, request: CancelRequest) -> tuple[str, str] | tuple[None, None]:
    """The parts of a notice before and after the owner, whom only the database may know. The name of an owner needs no
    escaping in JSON.
    """
    try:
        before, after = _encode(run_id), _encode(request)
    except UnicodeError:
        return None, None
    if len(before) + len(after) > LONGEST_NOTICE:
        return None, None
    return f'[{before.decode()},"', f'",{after.decode()}]'


def read_notice(said: str) -> tuple[str, str, CancelRequest] | None:
    """None if it is not a notice, or not one of this version."""
    try:
        return _read_notice(said) if said else None
    except (msgspec.DecodeError, RecursionError):  # any client of the database can send a notification
        return None


def dump_names(kind: str, run_ids: Iterable[str | None]) -> list[str]:
    """Notifications about these runs, as few as possible. The kind is `CHANGED` or `LOOK_AT`."""
    said: list[str] = []
    names: list[bytes] = []
    room = LONGEST_NOTICE
    for run_id in run_ids:
        if run_id is None:
            continue
        name = _encode(Id.encode(run_id))
        if len(name) > LONGEST_NOTICE:
            return [LOOK]
        if len(name) >= room and names:
            said.append(f"{kind}[{b','.join(names).decode()}]")
            names, room = [], LONGEST_NOTICE
        names.append(name)
        room -= len(name) + 1
    return [*said, f"{kind}[{b','.join(names).decode()}]"] if names else said


def read_names(said: str) -> list[str] | None:
    """The runs that a notification names; None if it is not one of this version."""
    try:
        return [Id.decode(name) for name in _read_names(said[1:]) if name is not None]
    except (msgspec.DecodeError, RecursionError):  # any client of the database can send a notification
        return None

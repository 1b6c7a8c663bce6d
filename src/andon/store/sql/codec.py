# SPDX-License-Identifier: Apache-2.0
"""What is kept as JSON. Writing never fails: what JSON has no form for is kept as text."""

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
"""What others are told: that anything may have changed; that these runs have made progress, have ended, or have their
turn; and that whoever holds these runs is to look at them. What else is said is a notice of a cancel.
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
    """Which run was asked to stop, who holds it, and how; empty where nobody does, or that can't be said in a few
    words, or not exactly.
    """
    before, after = notice_around(run_id, request)
    return "" if owner is None or before is None or after is None else f"{before}{owner}{after}"


def notice_around(run_id: str, request: CancelRequest) -> tuple[str, str] | tuple[None, None]:
    """What comes before the owner in a notice, which only the database may know, and after. An owner is a keeper's
    name, which is the same in JSON.
    """
    try:
        before, after = _encode(run_id), _encode(request)
    except UnicodeError:
        return None, None
    if len(before) + len(after) > LONGEST_NOTICE:
        return None, None
    return f'[{before.decode()},"', f'",{after.decode()}]'


def read_notice(said: str) -> tuple[str, str, CancelRequest] | None:
    """None if it is no notice, or not one of this version's."""
    try:
        return _read_notice(said) if said else None
    except (msgspec.DecodeError, RecursionError):  # it may have been said by anybody
        return None


def dump_names(kind: str, run_ids: Iterable[str | None]) -> list[str]:
    """What is said of these runs, in as few pieces as can be: `CHANGED` or `LOOK_AT`."""
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
    """The runs that something is said of; None if it is not one of this version's words."""
    try:
        return [Id.decode(name) for name in _read_names(said[1:]) if name is not None]
    except (msgspec.DecodeError, RecursionError):  # it may have been said by anybody
        return None

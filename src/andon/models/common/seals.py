# SPDX-License-Identifier: Apache-2.0
"""Seals: what a provider must get back with a block of reasoning. The signature of a block is its seal, as JSON.

A seal is a struct of its provider, with the provider's name as its tag in the field `of`. So a seal of another provider
is never taken for one's own, and is not sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec
from msgspec import Struct

Seal = TypeVar("Seal", bound=Struct)


def seal_reader(kind: type[Seal]) -> Callable[[str | None], Seal | None]:
    """A function that reads signatures: the seal, or None if the signature is not of this kind."""
    decode = msgspec.json.Decoder(kind).decode

    def read(signature: str | None) -> Seal | None:
        try:
            return decode(signature) if signature else None
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            return None

    return read


def write_seal(seal: Struct) -> str:
    """The signature that a block gets."""
    return msgspec.json.encode(seal).decode()

# SPDX-License-Identifier: Apache-2.0
"""What the fake of Gemini remembers of its answers: thought signatures, and tokens with which an answer goes on.

What must stay true: a signature is good for the one part that it was issued with, sent back byte for byte, to the model
that issued it. The real service has no memory for this, because its signatures prove themselves.
"""

from __future__ import annotations

import base64
import binascii
import secrets
from dataclasses import dataclass, field

from andon.testing.providers.api import Json

SKIP = "skip_thought_signature_validator"
"""Sent in the place of a signature, it passes: Google's word for calls that another model has made."""


@dataclass(frozen=True, slots=True)
class Issued:
    """A signature's part."""

    model: str
    part: Json
    """Without the signature."""


@dataclass(slots=True)
class Memory:
    signatures: dict[bytes, Issued] = field(default_factory=dict)
    continuations: dict[bytes, list[Json]] = field(default_factory=dict)
    """The contents that were asked about, by the token with which the answer goes on."""

    def sign(self, model: str, part: Json, signature: str | None = None) -> str:
        """Issues a signature for a part: this one, or one that is made up."""
        signature = signature or base64.b64encode(secrets.token_bytes(48)).decode()
        self.signatures[decoded(signature) or signature.encode()] = Issued(model, part)
        return signature

    def knows(self, model: str, part: Json, signature: str) -> bool:
        """Whether this model has issued the signature, for this part."""
        if signature == SKIP:
            return True
        issued = self.signatures.get(decoded(signature) or signature.encode())
        return issued is not None and issued.model == model and issued.part == part

    def interrupt(self, contents: list[Json]) -> str:
        """A token with which an answer goes on."""
        token = secrets.token_bytes(24)
        self.continuations[token] = contents
        return base64.b64encode(token).decode()

    def goes_on(self, contents: object, token: object) -> bool:
        """Whether an answer to these contents goes on with this token."""
        return isinstance(token, str) and self.continuations.get(decoded(token) or b"") == contents


def decoded(text: str) -> bytes | None:
    """The bytes of base64 in either alphabet, with or without padding: protocol buffers take all four."""
    plain = text.replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None

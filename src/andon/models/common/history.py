# SPDX-License-Identifier: Apache-2.0
"""Which messages of a conversation a provider gets."""

from __future__ import annotations

from collections.abc import Sequence

from andon.core.markers import is_refused
from andon.messages import Message


def without_refused(messages: Sequence[Message]) -> list[Message]:
    """The messages without the turns that the model declined: some providers decline again as long as one is sent.

    A turn begins with the user's prompt. It is left out as a whole, with the calls that were made in it, so that roles
    alternate.
    """
    kept: list[Message] = []
    for message in messages:
        if not is_refused(message):
            kept.append(message)
            continue
        while kept and kept[-1].role != "user":
            kept.pop()
        while kept and kept[-1].role == "user":
            kept.pop()
    return kept

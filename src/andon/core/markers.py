# SPDX-License-Identifier: Apache-2.0
"""Markers: the texts that show, in a conversation, that an answer was not finished.

A marker is the last text block of an assistant's message. The text before it was cut.
"""

from __future__ import annotations

from andon.core.states import CancelCause
from andon.messages import Message, Text

MARKERS = {
    CancelCause.user: "Cancelled by user",
    CancelCause.caller: "Cancelled by the caller",
    CancelCause.disconnect: "Cancelled: the client left",
    CancelCause.deadline: "Cancelled: out of time",
    CancelCause.budget: "Cancelled: out of budget",
    CancelCause.superseded: "Cancelled: superseded by a newer request",
    CancelCause.parent: "Cancelled with its parent",
    CancelCause.shutdown: "Cancelled: the server was shut down",
    CancelCause.lost: "Cancelled: the worker was lost",
}
FAILED = "Stopped by an error"
OUT_OF_TURNS = "Stopped: out of turns"
NO_ANSWER = "(no answer)"
REFUSED = "(the model declined to answer)"

_ALL = frozenset({*MARKERS.values(), FAILED, OUT_OF_TURNS, NO_ANSWER, REFUSED})


def is_cut(message: Message) -> bool:
    """True if the assistant's message ends with a marker. Then the text before it is not complete."""
    last = message.content[-1] if message.content else None
    return isinstance(last, Text) and last.text in _ALL


def is_refused(message: Message) -> bool:
    """True if the model declined to answer. Some providers decline again as long as this turn is sent.

    The run may have failed or have been cancelled after that, so other markers may follow.
    """
    if message.role == "assistant":
        for block in reversed(message.content):
            if not isinstance(block, Text) or block.text not in _ALL:
                break
            if block.text == REFUSED:
                return True
    return False

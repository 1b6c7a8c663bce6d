# SPDX-License-Identifier: Apache-2.0
"""Settling: brings what a run has seen into a form that every provider accepts in the next call.

It is pure and synchronous, so no cancel can come in between. Partial text and the results of tools are kept. Every
complete tool call gets a result that says what is known of it. The conversation ends with an assistant's message, whose
last text is the marker of the cause. So roles alternate, as every provider wants it.
"""

from __future__ import annotations

from collections.abc import Sequence

from andon.core.markers import FAILED, MARKERS, NO_ANSWER, OUT_OF_TURNS, REFUSED
from andon.core.receipt import CancelRequest
from andon.core.signal import Completed, Fate
from andon.core.states import FinishReason
from andon.messages import Block, Message, Reasoning, Text, ToolCall, ToolResult, assistant

__all__ = ["FAILED", "MARKERS", "NO_ANSWER", "OUT_OF_TURNS", "answer", "settle"]


def settle(
    messages: Sequence[Message], open_blocks: Sequence[Block], open_results: Sequence[ToolResult], fate: Fate
) -> list[Message]:
    """A run's messages in their final form.

    `messages` are the complete ones. `open_blocks` are the blocks of an answer that was cut. `open_results` are the
    results, real or not, of the calls whose results are not in a message yet.
    """
    settled = list(messages)
    if open_blocks:
        settled.append(assistant(*open_blocks))
    if open_results:
        settled.append(Message("tool", list(open_results)))
    marker = _marker(fate, settled[-1])
    if marker is not None:
        if settled[-1].role == "assistant":
            settled[-1] = assistant(*filter(_may_stay, settled[-1].content), Text(marker))
        else:
            settled.append(assistant(Text(marker)))
    return settled


def answer(blocks: list[Block], reason: FinishReason | None = None) -> list[Block]:
    """The blocks of a finished turn. Providers refuse an empty answer, and one of reasoning alone."""
    if reason is FinishReason.refusal and not any(isinstance(block, ToolCall) for block in blocks):
        return [*blocks, Text(REFUSED)]
    if any(isinstance(block, Text | ToolCall) for block in blocks):
        return blocks
    return [*blocks, Text(NO_ANSWER)]


def _may_stay(block: Block) -> bool:
    return not isinstance(block, Reasoning) or block.signature is not None


def _marker(fate: Fate, last: Message) -> str | None:
    if isinstance(fate, CancelRequest):
        return MARKERS[fate.cause]
    if not isinstance(fate, Completed):
        return FAILED
    return None if last.role == "assistant" else OUT_OF_TURNS

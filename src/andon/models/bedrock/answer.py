# SPDX-License-Identifier: Apache-2.0
"""An answer of ConverseStream, from its events.

A token is decoded to one field and pushed; other deltas are decoded a second time with more fields. A block of
reasoning can be sent back only with its seal, and gets it at its stop. The answer is complete with `metadata`, the last
event, or with the end of the stream after `messageStop`.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable

import msgspec
from msgspec import Struct

from andon.errors import ModelError, ModelStreamError
from andon.messages import Usage
from andon.models.base import FinishReason, Sink
from andon.models.bedrock.errors import in_stream
from andon.models.bedrock.frames import DAMAGED, Frame, Meaning
from andon.models.common.errors import UNREADABLE, QuotingError, mended
from andon.models.common.seals import seal_reader, write_seal

DELTA = "contentBlockDelta"


class Seal(Struct, frozen=True, gc=False, omit_defaults=True, tag_field="of", tag="bedrock"):
    """What must be sent back with a block of reasoning. The signature of a block is this, as JSON."""

    family: str | None = None
    """Whose model it is from: the models of others refuse it."""
    signature: str | None = None
    redacted: bytes | None = None


read_seal = seal_reader(Seal)


class _Text(Struct, gc=False):
    text: str | None = None


class _TextEvent(Struct, gc=False):
    delta: _Text


class _Reasoned(Struct, gc=False):
    text: str | None = None
    signature: str | None = None
    redacted: str | None = msgspec.field(default=None, name="redactedContent")


class _Input(Struct, gc=False):
    input: str = ""


class _Delta(Struct, gc=False):
    call: _Input | None = msgspec.field(default=None, name="toolUse")
    reasoned: _Reasoned | None = msgspec.field(default=None, name="reasoningContent")


class _DeltaEvent(Struct, gc=False):
    delta: _Delta
    index: int = msgspec.field(default=0, name="contentBlockIndex")


class _ToolUse(Struct, gc=False):
    id: str = msgspec.field(default="", name="toolUseId")
    name: str = ""
    type: str | None = None


class _Start(Struct, gc=False):
    call: _ToolUse | None = msgspec.field(default=None, name="toolUse")


class _StartEvent(Struct, gc=False):
    start: _Start
    index: int = msgspec.field(default=0, name="contentBlockIndex")


class _StopEvent(Struct, gc=False):
    index: int = msgspec.field(default=0, name="contentBlockIndex")


class _MessageStop(Struct, gc=False):
    reason: str = msgspec.field(default="", name="stopReason")


class _Usage(Struct, gc=False):
    fresh: int | None = msgspec.field(default=None, name="inputTokens")
    output: int | None = msgspec.field(default=None, name="outputTokens")
    read: int | None = msgspec.field(default=None, name="cacheReadInputTokens")
    written: int | None = msgspec.field(default=None, name="cacheWriteInputTokens")


class _Metadata(Struct, gc=False):
    usage: _Usage | None = None


class _Failure(Struct, gc=False):
    message: str | None = None
    other_message: str | None = msgspec.field(default=None, name="originalMessage")


_decode_text = msgspec.json.Decoder(_TextEvent).decode
_decode_delta = msgspec.json.Decoder(_DeltaEvent).decode
_decode_start = msgspec.json.Decoder(_StartEvent).decode
_decode_stop = msgspec.json.Decoder(_StopEvent).decode
_decode_message_stop = msgspec.json.Decoder(_MessageStop).decode
_decode_metadata = msgspec.json.Decoder(_Metadata).decode
_decode_failure = msgspec.json.Decoder(_Failure).decode

_REASONS = {
    "end_turn": FinishReason.end_turn,
    "tool_use": FinishReason.tool_calls,
    "stop_sequence": FinishReason.stop_sequence,
    "max_tokens": FinishReason.length,
    "model_context_window_exceeded": FinishReason.context_window,
    "refusal": FinishReason.refusal,
    "guardrail_intervened": FinishReason.content_filter,
    "content_filtered": FinishReason.content_filter,
}
_TOLD = {"guardrail_intervened": "guardrail_intervened"}
"""Reasons that share ours with another one, and are told apart by their own word."""


class ConverseAnswer:
    """Decodes one answer. `family` is the model's: see `Seal`."""

    def __init__(self, sink: Sink, family: str | None) -> None:
        self._sink = sink
        self._family = family
        self._calls: dict[int, str] = {}  # the ids of the calls whose blocks are open, by index
        self._seals: dict[int, tuple[list[str], list[bytes]]] = {}  # signatures and redacted pieces of open blocks
        self._stopped = self.finished = False
        self._known: dict[str, Callable[[bytes], None]] = {
            "contentBlockStart": self._begin_block,
            "contentBlockStop": self._end_block,
            "messageStop": self._stop,
            "metadata": self._complete,
        }

    def take(self, frames: list[Frame]) -> None:
        text, known = self._sink.text, self._known
        for meaning, payload in frames:
            try:
                if meaning.kind == DELTA:
                    said = _decode_text(payload).delta.text
                    if said is not None:
                        text(said)
                        continue
                    self._add(_decode_delta(payload))
                elif meaning.is_failure:
                    raise _failure(meaning, payload)
                elif (handle := known.get(meaning.kind)) is not None:  # unknown ones are skipped: new ones are added
                    handle(payload)
            except UNREADABLE as error:
                self.take([(meaning, mended(payload, error))])
            if self.finished:
                return

    def end(self) -> None:
        """Without `metadata` there is no usage, but all of the answer is there."""
        self.finished = self.finished or self._stopped

    # -- blocks -------------------------------------------------------------------------------------------------------

    def _begin_block(self, payload: bytes) -> None:
        event = _decode_start(payload)
        call = event.start.call
        if call is not None and call.id and call.type is None:  # those with a type are run by the provider itself
            self._calls[event.index] = call.id
            self._sink.tool_call(call.id, call.name)

    def _add(self, event: _DeltaEvent) -> None:
        index, delta = event.index, event.delta
        if delta.call is not None:
            if (call_id := self._calls.get(index)) is not None:
                self._sink.tool_call(call_id, arguments=delta.call.input)
        elif delta.reasoned is not None:
            reasoned = delta.reasoned
            if reasoned.text:
                self._sink.reasoning(reasoned.text)
            if reasoned.signature:
                self._seal(index)[0].append(reasoned.signature)
            if reasoned.redacted:
                self._seal(index)[1].append(_from_base64(reasoned.redacted))

    def _seal(self, index: int) -> tuple[list[str], list[bytes]]:
        return self._seals.setdefault(index, ([], []))

    def _end_block(self, payload: bytes) -> None:
        index = _decode_stop(payload).index
        if (call_id := self._calls.pop(index, None)) is not None:
            self._sink.tool_call(call_id, done=True)
        elif (parts := self._seals.pop(index, None)) is not None:
            signature, redacted = "".join(parts[0]) or None, b"".join(parts[1]) or None
            self._sink.reasoning("", write_seal(Seal(self._family, signature, redacted)))

    # -- the end ------------------------------------------------------------------------------------------------------

    def _stop(self, payload: bytes) -> None:
        said = _decode_message_stop(payload).reason
        reason = _REASONS.get(said, FinishReason.other)
        self._sink.finish(reason, said if reason is FinishReason.other else _TOLD.get(said))
        self._stopped = True

    def _complete(self, payload: bytes) -> None:
        if not self._stopped:
            return  # what is there can't be complete
        self.finished = True
        try:
            usage = _decode_metadata(payload).usage
        except msgspec.ValidationError:  # it can't be read: the answer is good all the same
            return
        if usage is not None and usage.fresh is not None:
            # The input that was read from a cache or written to one is not part of `inputTokens`.
            asked = usage.fresh + (usage.read or 0) + (usage.written or 0)
            self._sink.usage(Usage(asked, usage.output, usage.read or 0, None))


def _failure(meaning: Meaning, payload: bytes) -> ModelError:
    if meaning.kind == DAMAGED:
        text = f"the provider's stream is damaged: a frame was refused, because {meaning.message}"
        return ModelStreamError(text, retryable=True)
    if meaning.message is not None:
        return in_stream(meaning.kind, meaning.message)
    try:
        said = _decode_failure(payload)
    except UNREADABLE:
        return in_stream(meaning.kind, None)
    texts = dict.fromkeys(each for each in (said.message, said.other_message) if each)  # often both say the same
    return in_stream(meaning.kind, ": ".join(texts) or None)


def _from_base64(text: str) -> bytes:
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except binascii.Error as error:
        raise QuotingError(f"the provider sent reasoning that can't be read ({error})", text.encode()) from None

# SPDX-License-Identifier: Apache-2.0
"""An answer of Anthropic's, from its events.

A token is decoded once and pushed. All other events are rarer. Unknown events and blocks are skipped, because the
provider adds new ones.

All blocks of the answer are kept as they came. If the provider pauses a long turn, they are sent back to it.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from andon.messages import Usage
from andon.models.anthropic.errors import in_stream
from andon.models.anthropic.seals import CALL_KINDS, UNSIGNED, Seal, is_of_server_tool
from andon.models.base import FinishReason, Sink
from andon.models.common.errors import UNREADABLE, mended
from andon.models.common.seals import write_seal

_REASONS = {
    "end_turn": FinishReason.end_turn,
    "tool_use": FinishReason.tool_calls,
    "stop_sequence": FinishReason.stop_sequence,
    "max_tokens": FinishReason.length,
    "model_context_window_exceeded": FinishReason.context_window,
    "refusal": FinishReason.refusal,
}
PAUSED = "pause_turn"
_NO_REASON = "the provider ended the answer without a reason: it may have been cut"


class _Details(Struct, gc=False):
    category: str | None = None
    explanation: str | None = None


class _Delta(Struct, gc=False):
    type: str = ""
    text: str = ""
    thinking: str = ""
    signature: str = ""
    partial_json: str = ""
    citation: Any = None
    stop_reason: str | None = None
    stop_details: _Details | None = None


class _Event(Struct, gc=False):
    type: str = ""
    index: int = 0
    delta: _Delta | None = None


class _Message(Struct, gc=False):
    usage: Any = None


class _More(Struct, gc=False):
    """The fields of events that are not pieces."""

    content_block: dict[str, Any] | None = None
    message: _Message | None = None
    usage: Any = None
    error: Any = None


class _Type(Struct, gc=False):
    type: str = ""


class _Thinking(Struct, gc=False):
    thinking_tokens: int | None = None


class _Usage(Struct, gc=False):
    input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    output_tokens: int | None = None
    output_tokens_details: _Thinking | None = None


_decode = msgspec.json.Decoder(_Event).decode
_decode_more = msgspec.json.Decoder(_More).decode
_decode_type = msgspec.json.Decoder(_Type).decode
_KNOWN = frozenset(
    {
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
        "error",
    }
)


MOST_PIECES = 100
"""More pieces of a block are joined: twenty thousand of them would take megabytes."""


class _Block:
    """A block of the answer: as it began, and what came since."""

    __slots__ = ("_joined", "_pieces", "add", "given", "is_open", "kind", "signature")

    def __init__(self, given: dict[str, Any]) -> None:
        self.given = given
        self.kind = str(given.get("type"))
        self._joined: list[str] = []
        self._pieces: list[str] = []
        self.add = self._pieces.append
        self.signature = ""
        self.is_open = True

    @property
    def text(self) -> str:
        return "".join([*self._joined, *self._pieces])

    def join(self) -> None:
        """Join the pieces if there are many."""
        if len(self._pieces) > MOST_PIECES:
            self._joined.append("".join(self._pieces))
            self._pieces.clear()

    def whole(self) -> dict[str, Any]:
        """The block as it is sent back."""
        text = self.text
        if self.kind == "text":
            return {**self.given, "text": text}
        if self.kind == "thinking":
            return {**self.given, "thinking": text, "signature": self.signature}
        if self.kind == "tool_use" or self.kind in CALL_KINDS:
            return {**self.given, "input": self.arguments()}
        return self.given

    def arguments(self) -> Any:
        """A call without arguments has no pieces, or empty ones."""
        text = self.text
        try:
            return msgspec.json.decode(text) if text.strip() else self.given.get("input") or {}
        except UNREADABLE:
            return {}

    def can_go_back(self) -> bool:
        """The provider refuses blank text, thinking without a signature, and a block that it did not complete."""
        if self.is_open:
            return False
        if self.kind == "text":
            return bool(self.text.strip())
        return bool(self.signature) if self.kind == "thinking" else True


class MessagesAnswer:
    """Decodes one answer. A turn that the provider pauses is several of its messages, and one answer."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._blocks: dict[int, _Block] = {}  # of the message that is read now
        self._earlier: list[dict[str, Any]] = []  # of the messages before a pause
        self._spent_before: Usage | None = None
        self._usage = _Usage()
        self._reason: str | None = None
        self._details: _Details | None = None
        self.finished = False

    # -- a turn of several messages -----------------------------------------------------------------------------------

    @property
    def is_paused(self) -> bool:
        """Whether the provider wants the answer so far back, to go on with it."""
        return self.finished and self._reason == PAUSED

    @property
    def content(self) -> list[dict[str, Any]]:
        """The answer so far, as it is sent back."""
        return self._earlier + [block.whole() for block in self._blocks.values() if block.can_go_back()]

    def go_on(self) -> None:
        """The next message of the same answer comes."""
        self._earlier = self.content
        if self._blocks and next(reversed(self._blocks.values())).kind == "text":
            # A block that is sent to no provider. Else the texts on both sides become one, and thinking that comes
            # later is bound to two.
            self._sink.reasoning("", UNSIGNED)
        self._blocks = {}
        self._spent_before = self._spent()
        self._usage = _Usage()
        self._reason, self.finished = None, False

    def give_up(self) -> None:
        """The answer ends with a pause."""
        self._sink.finish(FinishReason.other, "the provider paused the turn too often")

    # -- events -------------------------------------------------------------------------------------------------------

    def take(self, payloads: list[bytes]) -> None:
        text, blocks = self._sink.text, self._blocks
        for payload in payloads:
            try:
                event = _decode(payload)
                if event.type == "content_block_delta":
                    delta = event.delta
                    if delta is None:
                        continue
                    block = blocks.get(event.index)
                    if delta.type == "text_delta":
                        if block is None:  # some servers begin no block
                            block = blocks[event.index] = _Block({"type": "text"})
                        block.add(delta.text)
                        text(delta.text)
                    elif block is not None:
                        self._extend(block, delta)
                else:
                    self._handle(event, payload)
            except UNREADABLE as error:
                if self._is_unknown(payload):
                    continue
                self.take([mended(payload, error)])
            if self.finished:
                return
        for block in blocks.values():
            block.join()

    def end(self) -> None:
        """The last event has said it all."""

    def _is_unknown(self, payload: bytes) -> bool:
        """Whether it is an event of a kind that is not known here: such a one may look as it likes."""
        try:
            kind = _decode_type(payload).type
        except UNREADABLE:
            return False
        return bool(kind) and kind not in _KNOWN

    def _handle(self, event: _Event, payload: bytes) -> None:
        kind = event.type
        if kind == "content_block_start":
            if (given := _decode_more(payload).content_block) is not None:
                self._begin(event.index, given)
        elif kind == "content_block_stop":
            if (block := self._blocks.get(event.index)) is not None and block.is_open:
                self._end(block)
        elif kind == "message_start":
            if (message := _decode_more(payload).message) is not None:
                self._take_usage(message.usage)
        elif kind == "message_delta":
            if event.delta is not None:
                self._reason = event.delta.stop_reason or self._reason
                self._details = event.delta.stop_details or self._details
            self._take_usage(_decode_more(payload).usage)
        elif kind == "message_stop":
            self._complete()
        elif kind == "error" or (not kind and _decode_more(payload).error is not None):
            raise in_stream(_decode_more(payload).error)

    # -- blocks -------------------------------------------------------------------------------------------------------

    def _begin(self, index: int, given: dict[str, Any]) -> None:
        block = self._blocks[index] = _Block(given)
        kind = block.kind
        if kind == "text" and isinstance(given.get("text"), str) and given["text"]:
            block.add(given["text"])
            self._sink.text(given["text"])
        elif kind == "thinking":
            if isinstance(given.get("thinking"), str) and given["thinking"]:
                block.add(given["thinking"])
                self._sink.reasoning(given["thinking"])
            block.signature = str(given.get("signature") or "")
        elif kind == "tool_use":
            self._sink.tool_call(str(given.get("id")), str(given.get("name")))

    def _extend(self, block: _Block, delta: _Delta) -> None:
        kind = delta.type
        if kind == "thinking_delta":
            block.add(delta.thinking)
            self._sink.reasoning(delta.thinking)
        elif kind == "input_json_delta":
            block.add(delta.partial_json)
            if block.kind == "tool_use":
                self._sink.tool_call(str(block.given.get("id")), arguments=delta.partial_json)
        elif kind == "signature_delta":
            block.signature = delta.signature  # it is never in pieces: the SDK replaces it too
        elif kind == "citations_delta":
            block.given["citations"] = [*(block.given.get("citations") or ()), delta.citation]

    def _end(self, block: _Block) -> None:
        """Only now a block is complete, also its signature."""
        block.is_open = False
        kind, given = block.kind, block.given
        if kind == "thinking":
            seal = write_seal(Seal(block.signature)) if block.signature else UNSIGNED
            self._sink.reasoning("", seal)
        elif kind == "redacted_thinking":
            self._sink.reasoning("", write_seal(Seal(data=str(given.get("data")))))
        elif kind == "tool_use":
            whole = given.get("input") if isinstance(given.get("input"), dict) and not block.text else None
            self._sink.tool_call(str(given.get("id")), str(given.get("name")), whole or "", done=True)
        elif is_of_server_tool(kind):
            self._sink.reasoning("", write_seal(Seal(block=block.whole())))

    # -- the end ------------------------------------------------------------------------------------------------------

    def _complete(self) -> None:
        self.finished = True
        if self._reason is None:
            self._sink.warn(_NO_REASON)
        elif self._reason in _REASONS:
            reason = _REASONS[self._reason]
            self._sink.finish(reason, self._why() if reason is FinishReason.refusal else None)
        elif self._reason != PAUSED:
            self._sink.finish(FinishReason.other, self._reason)

    def _why(self) -> str | None:
        """What the provider says about a refusal."""
        if self._details is None:
            return None
        return ": ".join(filter(None, (self._details.category, self._details.explanation))) or None

    def _take_usage(self, said: object) -> None:
        """Numbers that are absent keep their values."""
        try:
            usage = msgspec.convert(said, _Usage, strict=False)
        except msgspec.ValidationError:  # there is none, or it can't be read: the answer is good all the same
            return
        known = self._usage
        for name in _Usage.__struct_fields__:
            if (value := getattr(usage, name)) is not None:
                setattr(known, name, value)
        self._sink.usage(self._spent())

    def _spent(self) -> Usage:
        known = self._usage
        read, written = known.cache_read_input_tokens, known.cache_creation_input_tokens
        asked = None if known.input_tokens is None else known.input_tokens + (read or 0) + (written or 0)
        thought = known.output_tokens_details
        spent = Usage(asked, known.output_tokens, read, thought.thinking_tokens if thought else None)
        return spent if self._spent_before is None else self._spent_before + spent

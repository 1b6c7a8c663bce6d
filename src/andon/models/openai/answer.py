# SPDX-License-Identifier: Apache-2.0
"""An answer of the Responses interface, from its events.

A token is decoded to two fields and pushed. All other events are rarer, and are decoded a second time with more fields.
Unknown events are skipped, because the provider adds new ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from andon.messages import Usage
from andon.models.base import FinishReason, Sink
from andon.models.common.errors import UNREADABLE, mended
from andon.models.common.seals import seal_reader, write_seal
from andon.models.openai.errors import in_stream

TEXT = "response.output_text.delta"


class Seal(Struct, frozen=True, gc=False, omit_defaults=True, tag_field="of", tag="openai"):
    """What must be sent back with a reasoning item. The signature of a block is this, as JSON."""

    id: str
    encrypted_content: str | None = None


read_seal = seal_reader(Seal)


class _Event(Struct, gc=False):
    type: str = ""
    delta: Any = None


class _Part(Struct, gc=False):
    text: str | None = None
    refusal: str | None = None


class _Item(Struct, gc=False):
    type: str = ""
    id: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    encrypted_content: str | None = None
    summary: list[_Part] | None = None
    content: list[_Part] | None = None


class _Cached(Struct, gc=False):
    cached_tokens: int | None = None


class _Reasoned(Struct, gc=False):
    reasoning_tokens: int | None = None


class _Usage(Struct, gc=False):
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _Cached | None = None
    output_tokens_details: _Reasoned | None = None


class _Details(Struct, gc=False):
    reason: str | None = None


class _Response(Struct, gc=False):
    usage: Any = None
    error: Any = None
    incomplete_details: _Details | None = None


class _More(Struct, gc=False):
    """The fields of all events that are not tokens."""

    item: Any = None
    item_id: str | None = None
    summary_index: int = 0
    delta: Any = None
    response: _Response | None = None
    error: Any = None
    message: str | None = None
    code: str | int | None = None


_decode = msgspec.json.Decoder(_Event).decode
_decode_more = msgspec.json.Decoder(_More).decode
_CUT_SHORT = {"max_output_tokens": FinishReason.length, "content_filter": FinishReason.content_filter}


def _item(more: _More) -> _Item | None:
    """The item, if its kind is known here: other kinds may have any fields."""
    if not isinstance(more.item, dict) or more.item.get("type") not in ("function_call", "reasoning", "message"):
        return None
    return msgspec.convert(more.item, _Item)


class ResponsesAnswer:
    """Decodes one answer."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._calls: dict[str, str] = {}  # the id of each call, by the id of its item
        self._streamed: set[str] = set()  # the ids of calls of which pieces came
        self._spoke = self._thought = self._refused = False
        self.finished = False
        self.is_over = False
        """Whether the provider has said that the response has ended, well or not."""
        self._known: dict[str, Callable[[_More], None]] = {
            "response.refusal.delta": self._refuse,
            "response.reasoning_summary_part.added": self._next_thought,
            "response.reasoning_summary_text.delta": self._think,
            "response.reasoning_text.delta": self._think,
            "response.output_item.added": self._begin_item,
            "response.function_call_arguments.delta": self._add_arguments,
            "response.output_item.done": self._end_item,
            "response.completed": self._complete,
            "response.incomplete": self._complete,
            "response.failed": self._fail,
            "response.cancelled": self._fail,
            "error": self._fail,
        }

    def take(self, payloads: list[bytes]) -> None:
        text, known = self._sink.text, self._known
        for payload in payloads:
            try:
                event = _decode(payload)
                if event.type == TEXT:
                    self._spoke = True
                    text(event.delta)
                    continue
                handle = known.get(event.type)
                if handle is None:
                    if not event.type:
                        self._untyped(payload)
                    continue
                handle(_decode_more(payload))
            except UNREADABLE as error:
                if payload == b"[DONE]":  # this interface has no such line, but gateways add it
                    continue
                self.take([mended(payload, error)])
            if self.finished:
                return

    def end(self) -> None:
        """The last event has said it all."""

    def _untyped(self, payload: bytes) -> None:
        if (more := _decode_more(payload)).error is not None:
            raise in_stream(more.error)

    # -- text ---------------------------------------------------------------------------------------------------------

    def _refuse(self, more: _More) -> None:
        self._spoke = self._refused = True
        self._sink.text(more.delta)

    def _next_thought(self, more: _More) -> None:
        if more.summary_index > 0:
            self._sink.reasoning("\n\n")

    def _think(self, more: _More) -> None:
        self._thought = True
        self._sink.reasoning(more.delta)

    # -- items --------------------------------------------------------------------------------------------------------

    def _begin_item(self, more: _More) -> None:
        item = _item(more)
        if item is not None and item.type == "function_call" and item.call_id:
            self._calls[item.id or item.call_id] = item.call_id
            self._sink.tool_call(item.call_id, item.name or "")

    def _add_arguments(self, more: _More) -> None:
        call_id = self._calls.get(more.item_id or "")
        if call_id is not None:
            self._streamed.add(call_id)
            self._sink.tool_call(call_id, arguments=more.delta)

    def _end_item(self, more: _More) -> None:
        """An item is complete; the parts of it that were not streamed are in here."""
        item = _item(more)
        if item is None:
            return
        if item.type == "function_call" and item.call_id:
            rest = "" if item.call_id in self._streamed else item.arguments or ""
            self._sink.tool_call(item.call_id, item.name or "", rest, done=True)
        elif item.type == "reasoning":
            parts = [*(item.summary or ()), *(item.content or ())]
            rest = "" if self._thought else "\n\n".join(part.text or "" for part in parts)
            self._thought = False
            self._sink.reasoning(rest, write_seal(Seal(item.id, item.encrypted_content)) if item.id else None)
        elif item.type == "message":
            if not self._spoke:
                for part in item.content or ():
                    self._refused = self._refused or bool(part.refusal)
                    self._sink.text(part.text or part.refusal or "")
            self._spoke = False

    # -- the end ------------------------------------------------------------------------------------------------------

    def _complete(self, more: _More) -> None:
        response = more.response or _Response()
        self._take_usage(response.usage)
        if response.incomplete_details is not None and (said := response.incomplete_details.reason):
            reason = _CUT_SHORT.get(said, FinishReason.other)
            self._sink.finish(reason, said if reason is FinishReason.other else None)
        elif self._refused:
            self._sink.finish(FinishReason.refusal)
        else:
            self._sink.finish(FinishReason.tool_calls if self._calls else FinishReason.end_turn)
        self.finished = self.is_over = True

    def _fail(self, more: _More) -> None:
        if more.response is not None:
            self.is_over = True
            self._take_usage(more.response.usage)
            raise in_stream(more.response.error)
        raise in_stream(more.error or {"message": more.message, "code": more.code})

    def _take_usage(self, said: object) -> None:
        try:
            usage = msgspec.convert(said, _Usage, strict=False)
        except msgspec.ValidationError:  # there is none, or it can't be read: the answer is good all the same
            return
        cached, reasoned = usage.input_tokens_details, usage.output_tokens_details
        self._sink.usage(
            Usage(
                usage.input_tokens,
                usage.output_tokens,
                cached.cached_tokens if cached else None,
                reasoned.reasoning_tokens if reasoned else None,
            )
        )

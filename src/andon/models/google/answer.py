# SPDX-License-Identifier: Apache-2.0
"""An answer of Gemini, from its events.

There is no last event. A finish reason may come early, and parts after it. So the answer is read to its end, and is
complete if there was a reason. The reason CONTINUATION is not an end: the same request is sent again with a token, and
its answer goes on here. What is received once per token is decoded to few fields. All else is decoded when it is there.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw, Struct

from andon.messages import Usage, sendable_json
from andon.models.base import FinishReason, Sink
from andon.models.common.errors import UNREADABLE, mended
from andon.models.common.seals import seal_reader, write_seal
from andon.models.google.errors import in_stream

MAX_CONTINUATIONS = 50
"""So often an answer goes on. A provider that never ends it must not keep a run for ever."""


class Seal(Struct, frozen=True, gc=False, omit_defaults=True, tag_field="of", tag="gemini"):
    """A thought signature, and the part that it belongs to. The signature of a block is this, as JSON.

    `on` is "thought" for a part of this block's text, "text" for the text before this block, "call" for the call after
    it. `size` is the number of characters of the part: the last ones of that text. `model` issued the signature, and
    no other takes it. `blank` is a part's text that is only white space: as a block of its own it would not be kept.
    """

    signature: str
    on: str
    model: str
    size: int = 0
    blank: str = ""


read_seal = seal_reader(Seal)


class _Call(Struct, gc=False):
    name: str = ""
    id: str | None = None
    args: Raw = Raw()


class _Part(Struct, gc=False):
    text: str | None = None
    thought: bool | None = None
    thoughtSignature: str | None = None  # noqa: N815 - the wire's name
    functionCall: _Call | None = None  # noqa: N815


class _Content(Struct, gc=False):
    parts: list[_Part] | None = None


class _Candidate(Struct, gc=False):
    content: _Content | None = None
    finishReason: str | None = None  # noqa: N815
    finishMessage: str | None = None  # noqa: N815
    continuationToken: str | None = None  # noqa: N815


class _Chunk(Struct, gc=False):
    candidates: list[_Candidate] | None = None
    usageMetadata: Raw = Raw()  # noqa: N815 - decoded once per read, because every event has one
    promptFeedback: Any = None  # noqa: N815
    error: Any = None


class _Usage(Struct, gc=False, rename="camel"):
    prompt_token_count: int | None = None
    tool_use_prompt_token_count: int | None = None
    cached_content_token_count: int | None = None
    candidates_token_count: int | None = None
    thoughts_token_count: int | None = None


_decode = msgspec.json.Decoder(_Chunk).decode
_decode_usage = msgspec.json.Decoder(_Usage | None, strict=False).decode

_NOTHING = Raw()
_NO_ARGUMENTS = {"": "{}", "null": "{}"}
_CONTINUATION = "CONTINUATION"
_FILTERS = frozenset(
    {
        "SAFETY",
        "RECITATION",
        "BLOCKLIST",
        "PROHIBITED_CONTENT",
        "SPII",
        "MODEL_ARMOR",
        "IMAGE_SAFETY",
        "IMAGE_PROHIBITED_CONTENT",
        "IMAGE_RECITATION",
    }
)
"""Of the finish reasons, those of a filter. All that are not known here are `other`."""


class GeminiAnswer:
    """Decodes one answer. `model` is what seals say who issued them; `names` has our name of a tool by Gemini's."""

    def __init__(self, sink: Sink, model: str, names: Mapping[str, str]) -> None:
        self._sink = sink
        self._model = model
        self._names = names
        self._calls: dict[str, tuple[str, str]] = {}  # the name and the arguments of each, by its id
        self._mended = False
        self._reason: str | None = None
        self._message: str | None = None
        self._blocked = False
        self._token: str | None = None
        self._sent_token: str | None = None
        self._hops = 0
        self._before = Usage()  # of the requests before this one
        self._usage: Usage | None = None
        self.finished = False

    @property
    def continuation(self) -> str | None:
        """The token for the next request of the same answer, if it is not complete yet."""
        return self._sent_token

    def take(self, payloads: list[bytes]) -> None:
        text, usage = self._sink.text, _NOTHING
        for payload in payloads:
            try:
                chunk = _decode(payload)
            except UNREADABLE as error:
                self._take_odd(payload, error)
                continue
            # This runs once per token, so it only does something about fields that are there.
            if chunk.candidates:
                candidate = chunk.candidates[0]
                content = candidate.content
                if content is not None and content.parts:
                    for part in content.parts:
                        if part.thoughtSignature is None and part.thought is None and part.text:
                            text(part.text)
                        else:
                            self._take_part(part)
                if candidate.finishReason:
                    self._reason, self._message = candidate.finishReason, candidate.finishMessage
                if candidate.continuationToken:
                    self._token = candidate.continuationToken
            if chunk.usageMetadata:
                usage = chunk.usageMetadata
            if chunk.promptFeedback is not None:
                self._take_feedback(chunk.promptFeedback)
            if chunk.error is not None:
                self._take_usage(usage)
                raise in_stream(chunk.error)
        self._take_usage(usage)

    def end(self) -> None:
        """The stream of one request has ended in order."""
        self._sent_token, last = None, self._sent_token
        if self._reason is None:
            return
        self.finished = True
        if self._reason == _CONTINUATION and self._hops < MAX_CONTINUATIONS and self._token not in (None, last):
            self._sent_token = self._token
            return
        self._sink.finish(*self._ending())

    def go_on(self) -> None:
        """A further request of the same answer begins."""
        self._hops += 1
        self._reason = self._message = self._token = None
        self._before, self._usage = self._before + (self._usage or Usage()), None
        self.finished = False

    # -- parts --------------------------------------------------------------------------------------------------------

    def _take_part(self, part: _Part) -> None:
        sink, signature, said = self._sink, part.thoughtSignature, part.text or ""
        if part.functionCall is not None:
            call = part.functionCall
            arguments = bytes(call.args).decode(errors="replace")
            arguments = _NO_ARGUMENTS.get(arguments, arguments)
            if self._mended and "\\ufffd" in arguments:
                arguments = f"\ufffd{arguments}"  # no JSON: no tool is called with what the model did not say
            if (call_id := self._new_id(call, arguments)) is None:
                return
            if signature is not None:
                # The sink has no place for a call's signature, so it is a block before the call.
                sink.reasoning("", self._seal(signature, "call"))
            sink.tool_call(call_id, self._names.get(call.name, call.name), arguments, done=True)
        elif part.thought:
            sink.reasoning(said, None if signature is None else self._seal(signature, "thought", said))
        else:
            sink.text(said)
            if signature is not None:
                sink.reasoning("", self._seal(signature, "text", said))

    def _new_id(self, call: _Call, arguments: str) -> str | None:
        """An id for this call alone: gateways give several calls the same one. None if the call came before."""
        said = call.name, arguments
        if call.id and self._calls.get(call.id) == said:
            return None
        call_id = call.id if call.id and call.id not in self._calls else f"call_{os.urandom(12).hex()}"
        self._calls[call_id] = said
        return call_id

    def _seal(self, signature: str, on: str, said: str = "") -> str:
        blank = said if on == "text" and not said.strip() else ""
        return write_seal(Seal(signature, on, self._model, len(said), blank))

    def _take_odd(self, payload: bytes, error: Exception) -> None:
        if payload == b"[DONE]":  # Google sends no such line, but gateways add it
            return
        if payload.lstrip().startswith(b"["):  # an error that is not in an event may be in a list
            with contextlib.suppress(*UNREADABLE):
                listed = msgspec.json.decode(sendable_json(payload))
                if listed and isinstance(listed[0], dict) and "error" in listed[0]:
                    raise in_stream(listed[0]["error"])
        self._mended = True
        self.take([mended(payload, error)])
        self._mended = False

    def _take_feedback(self, feedback: object) -> None:
        """A prompt that was blocked has no answer, and no finish reason."""
        if isinstance(feedback, Mapping) and (reason := feedback.get("blockReason")):
            self._blocked = True
            self._reason = str(reason)
            message = feedback.get("blockReasonMessage")
            self._message = message if isinstance(message, str) else None

    # -- the end ------------------------------------------------------------------------------------------------------

    def _ending(self) -> tuple[FinishReason, str | None]:
        reason = self._reason or ""
        detail = f"{reason}: {self._message}" if self._message else reason
        if self._blocked:
            return FinishReason.content_filter, f"the prompt was blocked: {detail}"
        if reason == "STOP":
            return (FinishReason.tool_calls if self._calls else FinishReason.end_turn), None
        if reason == "MAX_TOKENS":
            return FinishReason.length, None
        return (FinishReason.content_filter if reason in _FILTERS else FinishReason.other), detail

    def _take_usage(self, said: Raw) -> None:
        """A running total of this request."""
        if not said:
            return
        try:
            usage = _decode_usage(said)
        except msgspec.DecodeError:  # it can't be read: the answer is good all the same
            return
        if usage is None or usage.prompt_token_count is None:
            return
        thoughts = usage.thoughts_token_count or 0
        self._usage = Usage(  # Google leaves out what is zero
            usage.prompt_token_count + (usage.tool_use_prompt_token_count or 0),
            (usage.candidates_token_count or 0) + thoughts,
            usage.cached_content_token_count or 0,
            thoughts,
        )
        self._sink.usage(self._before + self._usage if self._hops else self._usage)

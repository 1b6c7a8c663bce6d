# SPDX-License-Identifier: Apache-2.0
"""Messages on the wire.

What must stay true: a block is signed when all of it was sent, just before its last event. A plain answer has the same
content as a stream.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection, Sequence
from itertools import zip_longest
from typing import Any, ClassVar, Unpack
from urllib.parse import unquote

from andon.testing.providers.anthropic import rules
from andon.testing.providers.anthropic.errors import Rejected, body_of, failure
from andon.testing.providers.anthropic.memory import Memory, Prefix, asked, digest_of
from andon.testing.providers.api import Json
from andon.testing.providers.fake import Fake, Options
from andon.testing.providers.play import SSE, as_json
from andon.testing.providers.script import Call, Fail, Finish, Reasoning, Script, Spent, Text
from andon.testing.providers.server import Request

PATH = "/v1/messages"
MODELS = "/v1/models/"
MAX_TOKENS = 64_000


class FakeAnthropic(Fake["AnthropicApi"]):
    """Anthropic's Messages on loopback, as strict as the real one, and with a memory of what it has signed.

        with FakeAnthropic([[reasoning("Hm."), call("search", {"q": "x"})], [text("Found it.")]]) as fake:
            client = anthropic.Anthropic(base_url=fake.base_url, api_key=fake.api_key)

    `max_tokens` is the limit of every model in its list; None for a server without such a list. `extra` names
    parameters that this server takes besides Anthropic's own. The other options are those of every fake: see `Fake`.
    """

    path: ClassVar[str] = PATH

    def __init__(
        self,
        script: Script | None = None,
        *,
        max_tokens: int | None = MAX_TOKENS,
        extra: Collection[str] = (),
        **options: Unpack[Options],
    ) -> None:
        super().__init__(AnthropicApi(max_tokens, frozenset(extra)), script, **options)

    @property
    def memory(self) -> Memory:
        return self.api.memory

    @property
    def models_asked(self) -> list[str]:
        """The models whose limits were asked for, one for each request."""
        return self.api.models_asked


class AnthropicApi:
    """Messages, as a fake needs it."""

    root: ClassVar[str] = ""

    def __init__(self, max_tokens: int | None, extra: frozenset[str]) -> None:
        self.memory = Memory()
        self.models_asked: list[str] = []
        self._max_tokens = max_tokens
        self._extra = extra

    def is_for_answer(self, request: Request) -> bool:
        return request.method == "POST" and request.path.partition("?")[0] == PATH

    def other(self, request: Request) -> tuple[int, Json]:
        path = request.path.partition("?")[0]
        if request.method == "GET" and path.startswith(MODELS):
            model = unquote(path.removeprefix(MODELS))
            self.models_asked.append(model)
            if self._max_tokens is not None:
                return 200, _listed(model, self._max_tokens)
        error = Rejected("Not found", status=404)
        return error.status, error.body

    def parse(self, request: Request, api_key: str) -> Json:
        return rules.parse(request, api_key)

    def check(self, body: Json) -> None:
        rules.check(body, self._extra, self.memory, self._max_tokens)

    def streams(self, body: Json) -> bool:
        return bool(body.get("stream"))

    def writer(self, body: Json) -> MessagesWriter:
        return MessagesWriter(body, self.memory)

    def mistake(self, message: str) -> Json:
        return body_of({"type": "fake", "message": message})


def _listed(model: str, max_tokens: int) -> Json:
    return {
        "type": "model",
        "id": model,
        "display_name": model,
        "created_at": "2026-01-01T00:00:00Z",
        "lifecycle": "active",
        "max_input_tokens": 1_000_000,
        "max_tokens": max_tokens,
    }


class MessagesWriter:
    """One answer of Messages."""

    content_type: ClassVar[str] = SSE

    def __init__(self, body: Json, memory: Memory) -> None:
        self._body = body
        self._memory = memory
        self._id = f"msg_{secrets.token_hex(12)}"
        self._asked = max(1, len(json.dumps(body)) // 4)
        self._prefix = Prefix(body)
        self._prefix.add_messages(body["messages"])
        self._content: list[Json] = []
        self._open: Json | None = None  # the text or thinking that is not done
        self._signature: str | None = None
        self._pieces = self._reasoned = 0
        self._spent: Spent | None = None
        self._reason: str | None = None

    # -- a stream

    def start(self) -> bytes:
        message = {**self._head, "content": [], "stop_reason": None, "stop_sequence": None}
        usage = self._usage(Spent(self._asked, 1, 0, 0))
        return _event("message_start", message={**message, "usage": usage}) + _event("ping")

    def text(self, word: Text) -> list[bytes]:
        before = b""
        if self._open is None or self._open["type"] != "text":
            before = self._closed() + self._begun({"type": "text", "text": ""})
        assert self._open is not None
        self._open["text"] += "".join(word.pieces)
        self._pieces += len(word.pieces)
        return _led(before, self._pieces_of("text_delta", "text", word.pieces))

    def reasoning(self, word: Reasoning) -> list[bytes]:
        if word.redacted is not None:
            block = {"type": "redacted_thinking", "data": word.redacted}
            events = self._closed() + self._begun(block)
            return [events + self._closed()]
        before = b""
        if self._open is None or self._open["type"] != "thinking" or self._signature is not None:
            before = self._closed() + self._begun({"type": "thinking", "thinking": "", "signature": ""})
        assert self._open is not None
        self._signature = word.signature
        self._open["thinking"] += "".join(word.pieces)
        self._pieces += len(word.pieces)
        self._reasoned += len(word.pieces)
        return _led(before, self._pieces_of("thinking_delta", "thinking", word.pieces))

    def calls(self, words: Sequence[Call]) -> list[bytes]:
        before = self._closed()
        first = len(self._content)
        for word in words:
            call_id = word.id or f"toolu_{secrets.token_hex(12)}"
            block = {"type": "tool_use", "id": call_id, "name": word.name, "input": {}}
            before += _event("content_block_start", index=len(self._content), content_block=block)
            self._content.append(block)
        streams = [
            [_delta(first + n, type="input_json_delta", partial_json=part) for part in word.parts]
            for n, word in enumerate(words)
        ]
        self._pieces += sum(map(len, streams))
        events = _led(before, [event for turn in zip_longest(*streams) for event in turn if event is not None])
        for number, word in enumerate(words):
            if word.whole:
                block = self._content[first + number]
                block["input"] = _parsed(word.arguments)
                self._prefix.add("assistant", block)
                events[-1] += _event("content_block_stop", index=first + number)
        return events

    def spent(self, word: Spent) -> None:
        self._spent = word

    def finish(self, word: Finish) -> None:
        self._reason = word.reason

    def failed(self, word: Fail) -> bytes:
        return _event("error", error=failure(word), request_id=f"req_{self._id}")

    def failed_at_once(self, word: Fail) -> Json:
        return body_of(failure(word))

    def last(self) -> bytes:
        closed = self._closed()
        self._remember()
        return closed + _event("message_delta", delta=self._end, usage=self._usage()) + _event("message_stop")

    # -- a plain answer

    def whole(self) -> Json:
        self._closed()
        self._remember()
        return {**self._head, "content": self._content, **self._end, "usage": self._usage()}

    # -- blocks

    def _begun(self, block: Json) -> bytes:
        self._open, self._signature = block, None
        event = _event("content_block_start", index=len(self._content), content_block=block)
        self._content.append(block)
        return event

    def _closed(self) -> bytes:
        """The end of the block that was open."""
        block, self._open = self._open, None
        if block is None:
            return b""
        index = len(self._content) - 1
        events = b""
        if block["type"] == "thinking":
            block["signature"] = self._signature or f"Eq{secrets.token_urlsafe(48)}"
            self._memory.sign(block["signature"], block["thinking"], self._prefix.digest)
            events = _delta(index, type="signature_delta", signature=block["signature"])
        elif block["type"] == "redacted_thinking":
            self._memory.sign_redacted(block["data"], self._prefix.digest)
        self._prefix.add("assistant", block)
        return events + _event("content_block_stop", index=index)

    def _pieces_of(self, kind: str, field: str, pieces: tuple[str, ...]) -> list[bytes]:
        # Everything but the piece is encoded once, because there may be tens of thousands of pieces.
        index = len(self._content) - 1
        before, after = _delta(index, type=kind, **{field: "\0"}).split(rb'"\u0000"')
        return [b"%b%b%b" % (before, piece, after) for piece in as_json(pieces)]

    # -- the answer as a whole

    @property
    def _head(self) -> Json:
        return {"id": self._id, "type": "message", "role": "assistant", "model": self._body["model"]}

    @property
    def _end(self) -> Json:
        called = any(block["type"] == "tool_use" for block in self._content)
        reason = self._reason or ("tool_use" if called else "end_turn")
        details = {"type": "refusal", "category": "general_harms", "explanation": "It could do harm."}
        return {
            "stop_reason": reason,
            "stop_sequence": "END" if reason == "stop_sequence" else None,
            "stop_details": details if reason == "refusal" else None,
        }

    def _remember(self) -> None:
        messages, _ = asked(self._body)
        if self._reason == "refusal":
            self._memory.refused.add(digest_of(self._body, messages))
        elif self._reason == "pause_turn":
            self._memory.paused.add(digest_of(self._body, messages))

    def _usage(self, spent: Spent | None = None) -> Json:
        spent = spent or self._spent or Spent(self._asked, self._pieces, 0, self._reasoned)
        return {
            "input_tokens": spent.input_tokens - spent.cached_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": spent.cached_tokens,
            "output_tokens": spent.output_tokens,
            "output_tokens_details": {"thinking_tokens": spent.reasoning_tokens},
            "service_tier": "standard",
        }


def _event(kind: str, **fields: Any) -> bytes:
    data = json.dumps({"type": kind, **fields}, ensure_ascii=False, separators=(",", ":"))
    return f"event: {kind}\ndata: {data}\n\n".encode()


def _delta(index: int, **delta: Any) -> bytes:
    return _event("content_block_delta", index=index, delta=delta)


def _led(before: bytes, events: list[bytes]) -> list[bytes]:
    """The events before the first piece are sent together with it, so that each item of the list has one piece."""
    if not events:
        return [before] if before else []
    return [before + events[0], *events[1:]]


def _parsed(arguments: str) -> Any:
    try:
        return json.loads(arguments) if arguments.strip() else {}
    except ValueError:
        return {}

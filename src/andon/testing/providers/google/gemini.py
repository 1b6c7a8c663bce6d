# SPDX-License-Identifier: Apache-2.0
"""Gemini on the wire.

What must stay true: every piece of text is an event of its own, each event has the usage so far, and there is no last
event. A call is whole, in one event. A plain answer has the same content as a stream.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection, Sequence
from typing import ClassVar, Unpack

from andon.testing.providers.api import Json
from andon.testing.providers.fake import Fake, Options
from andon.testing.providers.google import rules
from andon.testing.providers.google.errors import error_of, failure
from andon.testing.providers.google.history import NEW
from andon.testing.providers.google.memory import Memory
from andon.testing.providers.google.rules import Asked
from andon.testing.providers.play import SSE, as_json
from andon.testing.providers.script import Call, Fail, Finish, Reasoning, Script, Spent, Text
from andon.testing.providers.server import Request


class FakeGemini(Fake["GeminiApi"]):
    """Gemini's API on loopback, and Vertex's, as strict as the real ones.

        with FakeGemini([[reasoning("Hm."), call("search", {"q": "x"})], [text("Found it.")]]) as fake:
            options = types.HttpOptions(base_url=fake.base_url)
            client = genai.Client(api_key=fake.api_key, http_options=options)

    Models from Gemini 3 on get signatures with their thoughts, their first call, and the end of their text, and these
    must come back as they were. For Vertex, the token of the credentials is the fake's `api_key`. The answer
    `finish("CONTINUATION")` goes on with the next request. `extra` names fields that this server takes besides Gemini's
    own. The other options are those of every fake: see `Fake`.
    """

    path: ClassVar[str] = "/v1/models/gemini-3.8-flash:generateContent"

    def __init__(
        self, script: Script | None = None, *, extra: Collection[str] = (), **options: Unpack[Options]
    ) -> None:
        super().__init__(GeminiApi(frozenset(extra)), script, **options)

    @property
    def memory(self) -> Memory:
        return self.api.memory


class GeminiApi:
    """Gemini, as a fake needs it."""

    root: ClassVar[str] = ""

    def __init__(self, extra: frozenset[str]) -> None:
        self.memory = Memory()
        self._extra = extra

    def is_for_answer(self, request: Request) -> bool:
        return rules.matched(request) is not None

    def other(self, request: Request) -> tuple[int, Json]:
        return rules.other(request)

    def parse(self, request: Request, api_key: str) -> Json:
        return rules.parse(request, api_key)

    def check(self, body: Json) -> None:
        assert isinstance(body, Asked)
        rules.check(body, self._extra, self.memory)

    def streams(self, body: Json) -> bool:
        assert isinstance(body, Asked)
        return body.streams

    def writer(self, body: Json) -> GeminiWriter:
        assert isinstance(body, Asked)
        return GeminiWriter(body, self.memory)

    def mistake(self, message: str) -> Json:
        return {"error": error_of(500, message)}


class GeminiWriter:
    """One answer of Gemini."""

    content_type: ClassVar[str] = SSE

    def __init__(self, body: Asked, memory: Memory) -> None:
        self._body = body
        self._model = body.model
        self._memory = memory
        self._signs = NEW.search(body.model) is not None
        self._asked = max(1, len(json.dumps(body)) // 4)
        self._parts: list[bytes] = []
        self._thoughts = self._pieces = self._calls = 0
        self._spoke = False
        self._spent: Spent | None = None
        self._reason = "STOP"
        self._rest = {"modelVersion": body.model, "responseId": secrets.token_urlsafe(16)}

    # -- a stream

    def start(self) -> bytes:
        return b""

    def text(self, word: Text) -> list[bytes]:
        self._spoke = self._spoke or bool(word.pieces)
        pieces, asked, thoughts = as_json(word.pieces), self._asked, self._thoughts
        self._parts += [b'{"text":%b}' % piece for piece in pieces]
        first = self._pieces + 1
        self._pieces += len(pieces)
        if self._spent is not None:
            return [self._event(part, {}) for part in self._parts[-len(pieces) :]]
        # Only the piece and the counts change. The rest is encoded once: there may be tens of thousands of pieces.
        start = b'data: {"candidates":[{"content":{"parts":[{"text":'
        middle = b'}],"role":"model"},"index":0}],"usageMetadata":{"promptTokenCount":%d,' % asked
        end = (b',"thoughtsTokenCount":%d}' % thoughts if thoughts else b"}") + _inner(self._rest) + b"}\n\n"
        told = asked + thoughts
        return [
            b'%b%b%b"candidatesTokenCount":%d,"totalTokenCount":%d%b' % (start, piece, middle, n, told + n, end)
            for n, piece in enumerate(pieces, first)
        ]

    def reasoning(self, word: Reasoning) -> list[bytes]:
        pieces = word.pieces or (("",) if word.signature or word.redacted else ())
        plain = [b'{"text":%b,"thought":true}' % piece for piece in as_json(pieces)]
        if plain and (self._signs or word.signature or word.redacted):
            plain[-1] = self._signed({"text": pieces[-1], "thought": True}, word.signature or word.redacted)
        events = []
        for part in plain:
            self._thoughts += 1
            events.append(self._piece(part, answer=False))
        return events

    def calls(self, words: Sequence[Call]) -> list[bytes]:
        return [self._piece(self._call(word)) for word in words if word.whole]  # Gemini sends no piece of a call

    def spent(self, word: Spent) -> None:
        self._spent = word

    def finish(self, word: Finish) -> None:
        self._reason = word.reason

    def failed(self, word: Fail) -> bytes:
        return _data(_dumped(failure(word)))

    def failed_at_once(self, word: Fail) -> Json:
        return failure(word)

    def last(self) -> bytes:
        return self._event(self._end(), self._closing())

    # -- a plain answer

    def whole(self) -> Json:
        parts = [json.loads(part) for part in [*self._parts, self._end()] if part]
        candidate = {"content": {"parts": parts, "role": "model"}, "index": 0, **self._closing()}
        return {"candidates": [candidate], "usageMetadata": self._usage(), **self._rest}

    # -- parts

    def _call(self, word: Call) -> bytes:
        self._calls += 1
        function: Json = {"name": word.name}
        if called := word.id or (secrets.token_hex(4) if self._signs else None):
            function["id"] = called
        # The arguments are written as the script has them: they may be what no encoder writes.
        plain = b'{"functionCall":%b,"args":%b}' % (_dumped(function)[:-1], word.arguments.encode())
        if word.signature is None and not (self._signs and self._calls == 1):
            return plain + b"}"
        try:
            function["args"] = json.loads(word.arguments)
        except ValueError:
            pass
        signature = self._memory.sign(self._model, {"functionCall": function}, word.signature)
        return b'%b,"thoughtSignature":%b}' % (plain, _dumped(signature))

    def _end(self) -> bytes:
        """The last part: without text, and signed, if the answer is text alone; else there is none."""
        return self._signed({"text": ""}, None) if self._signs and self._spoke and not self._calls else b""

    def _signed(self, part: Json, signature: str | None) -> bytes:
        return _dumped({**part, "thoughtSignature": self._memory.sign(self._model, part, signature)})

    def _closing(self) -> Json:
        if self._reason != "CONTINUATION":
            return {"finishReason": self._reason}
        return {"finishReason": self._reason, "continuationToken": self._memory.interrupt(self._body["contents"])}

    def _piece(self, part: bytes, *, answer: bool = True) -> bytes:
        self._parts.append(part)
        self._pieces += answer
        return self._event(part, {})

    def _event(self, part: bytes, closing: Json) -> bytes:
        # Put together from pieces, because there may be tens of thousands of them.
        parts = b'"parts":[%b],' % part if part else b""
        candidate = b'{"content":{%b"role":"model"},"index":0%b}' % (parts, _inner(closing))
        return _data(b'{"candidates":[%b],"usageMetadata":%b%b}' % (candidate, self._totals(), _inner(self._rest)))

    def _totals(self) -> bytes:
        if self._spent is not None:
            return _dumped(self._usage())
        output = b"%d" % self._pieces
        thoughts = b',"thoughtsTokenCount":%d' % self._thoughts if self._thoughts else b""
        total = self._asked + self._pieces + self._thoughts
        asked = b'{"promptTokenCount":%d,"candidatesTokenCount":%b' % (self._asked, output)
        return b'%b,"totalTokenCount":%d%b}' % (asked, total, thoughts)

    def _usage(self) -> Json:
        if self._spent is None:
            usage: Json = json.loads(self._totals())
            return usage
        spent = self._spent
        counts = {
            "promptTokenCount": spent.input_tokens,
            "candidatesTokenCount": spent.output_tokens - spent.reasoning_tokens,
            "totalTokenCount": spent.input_tokens + spent.output_tokens,
            "thoughtsTokenCount": spent.reasoning_tokens,
            "cachedContentTokenCount": spent.cached_tokens,
        }
        return {name: count for name, count in counts.items() if count}  # what is zero is left out


def _dumped(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _inner(value: Json) -> bytes:
    """The fields of an object, to be put after others."""
    return b"," + _dumped(value)[1:-1] if value else b""


def _data(event: bytes) -> bytes:
    return b"data: %b\n\n" % event

# SPDX-License-Identifier: Apache-2.0
"""Chat Completions on the wire.

What must stay true: every piece is an event of its own, and a plain answer has the same content as a stream.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Collection, Sequence
from itertools import zip_longest
from typing import ClassVar, Unpack

from andon.testing.providers.api import Json
from andon.testing.providers.fake import Fake, Options
from andon.testing.providers.openai import chat_rules, rules
from andon.testing.providers.play import SSE, as_json
from andon.testing.providers.script import Call, Fail, Finish, Reasoning, Script, Spent, Text
from andon.testing.providers.server import Request

PATH = "/v1/chat/completions"


class FakeChat(Fake["ChatApi"]):
    """OpenAI's Chat Completions on loopback, as strict as the real one.

        with FakeChat([[call("search", {"q": "x"})], [text("Found it.")]]) as fake:
            client = openai.OpenAI(base_url=fake.base_url, api_key=fake.api_key)

    `extra` names parameters that this server takes besides OpenAI's own, as compatible servers do. `reasoning_field` is
    the name by which compatible servers send reasoning, which OpenAI's own Chat never does. The other options are those
    of every fake: see `Fake`.
    """

    path: ClassVar[str] = PATH

    def __init__(
        self,
        script: Script | None = None,
        *,
        reasoning_field: str = "reasoning_content",
        extra: Collection[str] = (),
        **options: Unpack[Options],
    ) -> None:
        super().__init__(ChatApi(reasoning_field, frozenset(extra)), script, **options)


class ChatApi:
    """Chat Completions, as a fake needs it."""

    root: ClassVar[str] = "/v1"

    def __init__(self, reasoning_field: str, extra: frozenset[str]) -> None:
        self._reasoning_field = reasoning_field
        self._extra = extra

    def is_for_answer(self, request: Request) -> bool:
        return rules.is_post(request, PATH)

    def other(self, request: Request) -> tuple[int, Json]:
        return rules.other(request)

    def parse(self, request: Request, api_key: str) -> Json:
        return rules.parse(request, api_key)

    def check(self, body: Json) -> None:
        chat_rules.check(body, self._extra)

    def streams(self, body: Json) -> bool:
        return bool(body.get("stream"))

    def writer(self, body: Json) -> ChatWriter:
        return ChatWriter(body, self._reasoning_field)

    def mistake(self, message: str) -> Json:
        return rules.mistake(message)


class ChatWriter:
    """One answer of Chat Completions."""

    content_type: ClassVar[str] = SSE

    def __init__(self, body: Json, reasoning_field: str) -> None:
        self._head: Json = {
            "id": f"chatcmpl-{secrets.token_hex(12)}",
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": body["model"],
            "service_tier": "default",
            "system_fingerprint": "fp_fake",
        }
        self._reasoning_field = reasoning_field
        options = body.get("stream_options") or {}
        self._tells_usage = bool(options.get("include_usage"))
        self._asked = max(1, len(json.dumps(body)) // 4)
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[Json] = []
        self._pieces = 0
        self._spent: Spent | None = None
        self._reason: str | None = None

    # -- a stream

    def start(self) -> bytes:
        return self._event({"role": "assistant", "content": "", "refusal": None})

    def text(self, word: Text) -> list[bytes]:
        self._text.extend(word.pieces)
        self._pieces += len(word.pieces)
        return self._pieces_of("content", word.pieces)

    def reasoning(self, word: Reasoning) -> list[bytes]:
        self._reasoning.extend(word.pieces)
        self._pieces += len(word.pieces)
        return self._pieces_of(self._reasoning_field, word.pieces)

    def calls(self, words: Sequence[Call]) -> list[bytes]:
        streams: list[list[bytes]] = []
        for word in words:
            index = len(self._calls)
            function = {"name": word.name, "arguments": "".join(word.parts)}
            opened = {"id": word.id or f"call_{secrets.token_hex(12)}", "type": "function"}
            self._calls.append({**opened, "function": function})
            self._pieces += len(word.parts)
            first = {"index": index, **opened, "function": {"name": word.name, "arguments": ""}}
            deltas = [{"index": index, "function": {"arguments": part}} for part in word.parts]
            streams.append([self._event({"tool_calls": [each]}) for each in [first, *deltas]])
        return [event for turn in zip_longest(*streams) for event in turn if event is not None]

    def spent(self, word: Spent) -> None:
        self._spent = word

    def finish(self, word: Finish) -> None:
        self._reason = word.reason

    def failed(self, word: Fail) -> bytes:
        error = {"message": word.message, "type": word.type or "server_error", "param": None, "code": word.code}
        return _data({"error": error})

    def failed_at_once(self, word: Fail) -> Json:
        return rules.failure(word)

    def last(self) -> bytes:
        events = [self._event({}, self._finish_reason)]
        if self._tells_usage:
            events.append(_data({**self._head, "choices": [], "usage": self._usage}))
        return b"".join([*events, b"data: [DONE]\n\n"])

    # -- a plain answer

    def whole(self) -> Json:
        message: Json = {"role": "assistant", "content": "".join(self._text) or None, "refusal": None}
        message["annotations"] = []
        if self._reasoning:
            message[self._reasoning_field] = "".join(self._reasoning)
        if self._calls:
            message["tool_calls"] = self._calls
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": self._finish_reason}
        return {**self._head, "object": "chat.completion", "choices": [choice], "usage": self._usage}

    # -- parts

    @property
    def _finish_reason(self) -> str:
        return self._reason or ("tool_calls" if self._calls else "stop")

    @property
    def _usage(self) -> Json:
        spent = self._spent or Spent(self._asked, self._pieces, 0, len(self._reasoning))
        return {
            "prompt_tokens": spent.input_tokens,
            "completion_tokens": spent.output_tokens,
            "total_tokens": spent.input_tokens + spent.output_tokens,
            "prompt_tokens_details": {"cached_tokens": spent.cached_tokens, "audio_tokens": 0},
            "completion_tokens_details": {
                "reasoning_tokens": spent.reasoning_tokens,
                "audio_tokens": 0,
                "accepted_prediction_tokens": 0,
                "rejected_prediction_tokens": 0,
            },
        }

    def _event(self, delta: Json, finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        chunk: Json = {**self._head, "choices": [choice]}
        if self._tells_usage:
            chunk["usage"] = None
        return _data(chunk)

    def _pieces_of(self, field: str, pieces: tuple[str, ...]) -> list[bytes]:
        # Everything but the piece is encoded once, because there may be tens of thousands of pieces.
        before, after = self._event({field: "\0"}).split(rb'"\u0000"')
        return [b"%b%b%b" % (before, piece, after) for piece in as_json(pieces)]


def _data(value: Json) -> bytes:
    # Without blanks and without escaped characters, as OpenAI sends it.
    return b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"

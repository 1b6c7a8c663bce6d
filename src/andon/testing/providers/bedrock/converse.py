# SPDX-License-Identifier: Apache-2.0
"""Converse on the wire: ConverseStream in binary frames, and Converse as plain JSON.

What must stay true: every piece is a frame of its own. A block begins with its first delta, unless it is a call. The
stop of a block comes after all of it, and `metadata`, the only event with usage, comes last.
"""

from __future__ import annotations

import base64
import json
import re
import secrets
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, ClassVar, Unpack
from urllib.parse import unquote

from andon.testing.providers.api import Json
from andon.testing.providers.bedrock import frames, rules
from andon.testing.providers.bedrock.errors import CODE_HEADER, code_of
from andon.testing.providers.bedrock.memory import Issued, Memory, digest
from andon.testing.providers.fake import Fake, Options
from andon.testing.providers.play import as_json
from andon.testing.providers.script import Call, Fail, Finish, Reasoning, Script, Spent, Text
from andon.testing.providers.server import Request

_PATH = re.compile(r"/model/([^/]+)/(converse|converse-stream)")
ACCESS_KEY_ID = "AKIAFAKEFAKEFAKEFAKE"


class FakeBedrock(Fake["BedrockApi"]):
    """Bedrock's ConverseStream and Converse on loopback, as strict as the real ones.

        with FakeBedrock([[reasoning("Hm."), call("search", {"q": "x"})], [text("Found it.")]]) as fake:
            model = Bedrock("anthropic.claude-sonnet-4-5-20250929-v1:0", base_url=fake.base_url, api_key=fake.api_key)

    `api_key` is the bearer token that it takes. Of requests with an AWS signature it takes those of its
    `access_key_id`, whatever the secret. The record of a request has the `modelId` of its path. The options are those
    of every fake: see `Fake`.
    """

    access_key_id: ClassVar[str] = ACCESS_KEY_ID

    def __init__(self, script: Script | None = None, **options: Unpack[Options]) -> None:
        super().__init__(BedrockApi(), script, **options)

    @property
    def memory(self) -> Memory:
        return self.api.memory


class _Asked(dict[str, Any]):
    """The body of a request. Whether its answer is a stream is only in the path."""

    streams = False


class BedrockApi:
    """Converse, as a fake needs it."""

    root: ClassVar[str] = ""

    def __init__(self) -> None:
        self.memory = Memory()

    def is_for_answer(self, request: Request) -> bool:
        return request.method == "POST" and _PATH.fullmatch(request.path) is not None

    def other(self, request: Request) -> tuple[int, Json]:
        return 404, {"message": f"Unable to determine service/operation name to be authorized: {request.path}"}

    def parse(self, request: Request, api_key: str) -> Json:
        found = _PATH.fullmatch(request.path)
        assert found is not None
        rules.authorized(request.headers, api_key, ACCESS_KEY_ID)
        body = _Asked(rules.parsed(request.body), modelId=unquote(found[1]))
        body.streams = found[2] == "converse-stream"
        return body

    def check(self, body: Json) -> None:
        rules.check(body, self.memory)

    def streams(self, body: Json) -> bool:
        return isinstance(body, _Asked) and body.streams

    def writer(self, body: Json) -> BedrockWriter:
        return BedrockWriter(body, self.memory)

    def mistake(self, message: str) -> Json:
        return {"message": message}


class BedrockWriter:
    """One answer of Converse."""

    content_type: ClassVar[str] = frames.CONTENT_TYPE

    def __init__(self, body: Json, memory: Memory) -> None:
        self._memory = memory
        self._conversation = digest(body, body["messages"])
        self._asked = max(1, len(json.dumps(body)) // 4)
        self._request_id = secrets.token_hex(16)
        self._content: list[Json] = []  # the blocks, as a plain answer has them
        self._open: str | None = None  # the kind of the last block, if it may get more
        self._signature: str | None = None
        self._marks: list[str] = []
        self._pieces = 0
        self._spent: Spent | None = None
        self._reason: str | None = None

    # -- a stream

    def start(self) -> bytes:
        return _event("messageStart", {"role": "assistant"})

    def text(self, word: Text) -> list[bytes]:
        events: list[bytes] = []
        if self._open != "text":
            events = self._closed()
            self._content.append({"text": ""})
            self._open = "text"
        self._content[-1]["text"] += "".join(word.pieces)
        self._pieces += len(word.pieces)
        return _led(events, self._deltas({"text": "\0"}, word.pieces))

    def reasoning(self, word: Reasoning) -> list[bytes]:
        events: list[bytes] = []
        if self._open != "reasoning" or word.redacted is not None:
            events = self._closed()
        if word.redacted is not None:
            return [b"".join([*events, *self._redacted(word.redacted)])]
        if self._open != "reasoning":
            self._content.append({"reasoningContent": {"reasoningText": {"text": ""}}})
            self._open, self._signature = "reasoning", None
        self._signature = word.signature or self._signature
        self._content[-1]["reasoningContent"]["reasoningText"]["text"] += "".join(word.pieces)
        self._pieces += len(word.pieces)
        return _led(events, self._deltas({"reasoningContent": {"text": "\0"}}, word.pieces))

    def calls(self, words: Sequence[Call]) -> list[bytes]:
        begun = self._closed()
        streams: list[list[bytes]] = []
        for word in words:
            index = len(self._content)
            call = {"toolUseId": word.id or f"tooluse_{secrets.token_urlsafe(16)}", "name": word.name}
            self._content.append({"toolUse": {**call, "input": _arguments(word.arguments)}})
            begun.append(_event("contentBlockStart", {"start": {"toolUse": call}, "contentBlockIndex": index}))
            deltas = [{"delta": {"toolUse": {"input": part}}, "contentBlockIndex": index} for part in word.parts]
            events = [_event("contentBlockDelta", delta) for delta in deltas]
            self._pieces += len(events)
            if word.whole and events:
                events[-1] += _stop(index)
            streams.append(events)
        return _led(begun, [each for turn in zip_longest(*streams) for each in turn if each is not None])

    def spent(self, word: Spent) -> None:
        self._spent = word

    def finish(self, word: Finish) -> None:
        self._reason = word.reason

    def failed(self, word: Fail) -> bytes:
        code = code_of(word)
        if word.event == "nested":
            return frames.error(code, word.message)
        return frames.exception(code[:1].lower() + code[1:], frames.as_payload({"message": word.message}))

    def failed_at_once(self, word: Fail) -> Json:
        return {"message": word.message}

    def failure_headers(self, word: Fail) -> dict[str, str]:
        return {CODE_HEADER: code_of(word), "x-amzn-requestid": self._request_id}

    def last(self) -> bytes:
        closed = b"".join(self._closed())
        stop = _event("messageStop", {"stopReason": self._stop_reason})
        return closed + stop + _event("metadata", {"usage": self._usage, "metrics": {"latencyMs": 1}})

    # -- a plain answer

    def whole(self) -> Json:
        self._closed()
        return {
            "output": {"message": {"role": "assistant", "content": self._content}},
            "stopReason": self._stop_reason,
            "usage": self._usage,
            "metrics": {"latencyMs": 1},
        }

    # -- blocks

    def _closed(self) -> list[bytes]:
        """The end of the block of text or reasoning that was open."""
        kind, self._open = self._open, None
        index = len(self._content) - 1
        if kind is None:
            return []
        if kind == "text":
            return [_stop(index)]
        signature = self._signature or base64.b64encode(secrets.token_bytes(48)).decode()
        thought = self._content[-1]["reasoningContent"]["reasoningText"]
        thought["signature"] = signature
        self._memory.signed[signature] = self._issued(signature, thought["text"])
        return [self._delta({"reasoningContent": {"signature": signature}}), _stop(index)]

    def _redacted(self, data: str) -> list[bytes]:
        content = base64.b64encode(data.encode()).decode()
        self._content.append({"reasoningContent": {"redactedContent": content}})
        self._memory.redacted[content] = self._issued(content, "")
        self._pieces += 1
        return [self._delta({"reasoningContent": {"redactedContent": content}}), _stop(len(self._content) - 1)]

    def _issued(self, mark: str, text: str) -> Issued:
        issued = Issued(text, self._conversation, list(self._marks))
        self._marks.append(mark)
        return issued

    def _delta(self, delta: Json) -> bytes:
        return _event("contentBlockDelta", {"delta": delta, "contentBlockIndex": len(self._content) - 1})

    def _deltas(self, delta: Json, pieces: tuple[str, ...]) -> list[bytes]:
        # Everything but the piece is encoded once, because there may be tens of thousands of pieces.
        whole = frames.as_payload({"contentBlockIndex": len(self._content) - 1, "delta": delta, "p": "abcdefgh"})
        before, after = whole.split(rb'"\u0000"')
        return [frames.event("contentBlockDelta", b"%b%b%b" % (before, piece, after)) for piece in as_json(pieces)]

    # -- the answer as a whole

    @property
    def _stop_reason(self) -> str:
        return self._reason or ("tool_use" if any("toolUse" in block for block in self._content) else "end_turn")

    @property
    def _usage(self) -> Json:
        spent = self._spent or Spent(self._asked, self._pieces, 0, 0)
        return {
            "inputTokens": spent.input_tokens - spent.cached_tokens,
            "outputTokens": spent.output_tokens,
            "totalTokens": spent.input_tokens + spent.output_tokens,
            "cacheReadInputTokens": spent.cached_tokens,
            "cacheWriteInputTokens": 0,
        }


def _event(kind: str, value: Json) -> bytes:
    return frames.event(kind, frames.as_payload(value))


def _stop(index: int) -> bytes:
    return _event("contentBlockStop", {"contentBlockIndex": index})


def _led(before: list[bytes], events: list[bytes]) -> list[bytes]:
    """The events before the first piece are sent together with it, so that each item of the list has one piece."""
    if not events:
        return [b"".join(before)] if before else []
    return [b"".join([*before, events[0]]), *events[1:]]


def _arguments(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text

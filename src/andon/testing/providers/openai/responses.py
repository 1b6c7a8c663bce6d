# SPDX-License-Identifier: Apache-2.0
"""Responses on the wire.

What must stay true: the done event of an item comes after all of the item. An answer is put into the memory just before
its last event is sent, so that a client can refer to it as soon as it has that event.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Collection, Sequence
from itertools import zip_longest
from typing import Any, ClassVar, Unpack

from andon.testing.providers.api import Json
from andon.testing.providers.fake import Fake, Options
from andon.testing.providers.openai import responses_rules, rules
from andon.testing.providers.openai.background import Background
from andon.testing.providers.openai.memory import Issued, Memory
from andon.testing.providers.play import SSE, as_json
from andon.testing.providers.script import Call, Fail, Finish, Reasoning, Script, Spent, Text, Word
from andon.testing.providers.server import Request

_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


PATH = "/v1/responses"


class FakeResponses(Fake["ResponsesApi"]):
    """OpenAI's Responses on loopback, as strict as the real one, and with a memory of what it has answered.

        with FakeResponses([[reasoning("Hm."), call("search", {"q": "x"})], [text("Found it.")]]) as fake:
            client = openai.OpenAI(base_url=fake.base_url, api_key=fake.api_key)

    `extra` names parameters that this server takes besides OpenAI's own, as compatible servers do. An answer with
    `background` and `stream` goes on when its client leaves; `on_cancel`, `on_resume` and `drop_every` say what happens
    to requests for it: see `Background`. The other options are those of every fake: see `Fake`.
    """

    path: ClassVar[str] = PATH

    def __init__(
        self,
        script: Script | None = None,
        *,
        extra: Collection[str] = (),
        on_cancel: Sequence[Word] = (),
        on_resume: Sequence[Word] = (),
        drop_every: int | None = None,
        **options: Unpack[Options],
    ) -> None:
        api = ResponsesApi(frozenset(extra))
        background = Background(api.writer, on_cancel, on_resume, drop_every)
        super().__init__(api, script, background=background, **options)

    @property
    def memory(self) -> Memory:
        return self.api.memory


class ResponsesApi:
    """Responses, as a fake needs it."""

    root: ClassVar[str] = "/v1"

    def __init__(self, extra: frozenset[str]) -> None:
        self.memory = Memory()
        self._extra = extra

    def is_for_answer(self, request: Request) -> bool:
        return rules.is_post(request, PATH)

    def other(self, request: Request) -> tuple[int, Json]:
        return rules.other(request)

    def parse(self, request: Request, api_key: str) -> Json:
        return rules.parse(request, api_key)

    def check(self, body: Json) -> None:
        responses_rules.check(body, self._extra, self.memory)

    def streams(self, body: Json) -> bool:
        return bool(body.get("stream"))

    def writer(self, body: Json) -> ResponsesWriter:
        return ResponsesWriter(body, self.memory)

    def mistake(self, message: str) -> Json:
        return rules.mistake(message)


class ResponsesWriter:
    """One answer of Responses."""

    content_type: ClassVar[str] = SSE

    def __init__(self, body: Json, memory: Memory) -> None:
        self._body = body
        self._memory = memory
        self._id = _id("resp")
        self._background = bool(body.get("background"))
        self._created = int(time.time())
        self._asked = max(1, len(json.dumps(body)) // 4)
        self._encrypts = "reasoning.encrypted_content" in (body.get("include") or [])
        self._output: list[Json] = []
        self._open: Json | None = None  # the message or reasoning item that is not done
        self._reasoning: str | None = None  # the id of the reasoning item that led to the next items
        self._signature: str | None = None
        self._number = 0
        self._pieces = 0
        self._reasoned = 0
        self._spent: Spent | None = None
        self._reason: str | None = None

    @property
    def id(self) -> str:
        return self._id

    # -- a stream

    def start(self) -> bytes:
        status = "queued" if self._background else "in_progress"
        created = self._event("response.created", response=self._response(status))
        if self._background:
            created += self._event("response.queued", response=self._response(status))
        return created + self._event("response.in_progress", response=self._response("in_progress"))

    def text(self, word: Text) -> list[bytes]:
        events: list[bytes] = []
        if self._open is None or self._open["type"] != "message":
            events = self._closed()
            message: Json = {"id": _id("msg"), "type": "message", "status": "in_progress", "role": "assistant"}
            message["content"] = []
            events += self._begun(message, self._reasoning)
            message["content"] = [{"type": "output_text", "annotations": [], "logprobs": [], "text": ""}]
            self._open = message
            events.append(self._event("response.content_part.added", **self._at(message), part=message["content"][0]))
        part = self._open["content"][0]
        part["text"] += "".join(word.pieces)
        self._pieces += len(word.pieces)
        at = self._at(self._open)
        return _led(events, self._pieces_of("response.output_text.delta", word.pieces, **at, logprobs=[]))

    def reasoning(self, word: Reasoning) -> list[bytes]:
        events: list[bytes] = []
        if self._open is None or self._open["type"] != "reasoning":
            events = self._closed()
            item: Json = {"id": _id("rs"), "type": "reasoning", "summary": []}
            events += self._begun(item, None)
            item["summary"] = [{"type": "summary_text", "text": ""}]
            self._open, self._signature = item, None
            at = self._at(item, "summary_index")
            events.append(self._event("response.reasoning_summary_part.added", **at, part=item["summary"][0]))
        self._signature = word.signature or self._signature
        self._open["summary"][0]["text"] += "".join(word.pieces)
        self._pieces += len(word.pieces)
        self._reasoned += len(word.pieces)
        at = self._at(self._open, "summary_index")
        return _led(events, self._pieces_of("response.reasoning_summary_text.delta", word.pieces, **at))

    def calls(self, words: Sequence[Call]) -> list[bytes]:
        closed = self._closed()
        items: list[Json] = []
        begun: list[bytes] = []
        for word in words:
            call_id = word.id or _id("call")
            item = {"id": _id("fc"), "type": "function_call", "status": "in_progress", "call_id": call_id}
            items.append({**item, "name": word.name, "arguments": ""})
            begun += self._begun(items[-1], self._reasoning)
        events: list[bytes] = []
        for turn in zip_longest(*(word.parts for word in words)):
            for item, part in zip(items, turn, strict=True):
                if part is not None:
                    item["arguments"] += part
                    events.append(
                        self._event("response.function_call_arguments.delta", **self._at(item, None), delta=part)
                    )
        self._pieces += len(events)
        events = _led([*closed, *begun], events)
        for word, item in zip(words, items, strict=True):
            if word.whole:
                whole = {"name": item["name"], "arguments": item["arguments"]}
                events[-1] += self._event("response.function_call_arguments.done", **self._at(item, None), **whole)
                events[-1] += self._done(item)
        return events

    def spent(self, word: Spent) -> None:
        self._spent = word

    def finish(self, word: Finish) -> None:
        self._reason = word.reason

    def failed(self, word: Fail) -> bytes:
        error: Json = {"code": word.code, "message": word.message}
        if word.event == "response.failed":
            error["code"] = word.code or "server_error"
            return self._event("response.failed", response={**self._response("failed"), "error": error})
        if word.event == "nested":
            return self._event("error", error={"type": word.type or "server_error", **error, "param": None})
        return self._event("error", **error, param=None)

    def failed_at_once(self, word: Fail) -> Json:
        return rules.failure(word)

    def last(self) -> bytes:
        closed = b"".join(self._closed())
        self._remember()
        status = self._status
        return closed + self._event(f"response.{status}", response=self._response(status))

    # -- a plain answer

    def whole(self) -> Json:
        self._closed()
        self._remember()
        return self._response(self._status)

    # -- items

    def _begun(self, item: Json, reasoning: str | None) -> list[bytes]:
        self._output.append(item)
        self._memory.items[item["id"]] = Issued(self._id, reasoning)
        return [self._event("response.output_item.added", output_index=len(self._output) - 1, item=item)]

    def _done(self, item: Json) -> bytes:
        if "status" in item:
            item["status"] = "completed"
        self._memory.done(item)
        return self._event("response.output_item.done", output_index=self._output.index(item), item=item)

    def _closed(self) -> list[bytes]:
        """The end of the message or reasoning item that was open."""
        item, self._open = self._open, None
        if item is None:
            return []
        if item["type"] == "message":
            at, part = self._at(item), item["content"][0]
            return [
                self._event("response.output_text.done", **at, text=part["text"], logprobs=[]),
                self._event("response.content_part.done", **at, part=part),
                self._done(item),
            ]
        if self._encrypts:
            item["encrypted_content"] = self._signature or f"gAAAAA{secrets.token_urlsafe(48)}"
        self._reasoning = item["id"]
        at, part = self._at(item, "summary_index"), item["summary"][0]
        return [
            self._event("response.reasoning_summary_text.done", **at, text=part["text"]),
            self._event("response.reasoning_summary_part.done", **at, part=part),
            self._done(item),
        ]

    def _at(self, item: Json, index: str | None = "content_index") -> Json:
        at: Json = {"item_id": item["id"], "output_index": self._output.index(item)}
        return at if index is None else {**at, index: 0}

    # -- the answer as a whole

    @property
    def _status(self) -> str:
        return "incomplete" if self._reason in _INCOMPLETE else "completed"

    def _remember(self) -> None:
        given = responses_rules.conversation(self._body, self._memory)
        self._memory.ended(self._id, given, self._output, store=self._body.get("store") is not False)

    def _response(self, status: str) -> Json:
        body, ended = self._body, status not in ("queued", "in_progress")
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "background": self._background,
            "error": None,
            "incomplete_details": {"reason": _INCOMPLETE[self._reason or ""]} if status == "incomplete" else None,
            "instructions": body.get("instructions"),
            "max_output_tokens": body.get("max_output_tokens"),
            "metadata": body.get("metadata") or {},
            "model": body["model"],
            "output": self._output if ended else [],
            "parallel_tool_calls": body.get("parallel_tool_calls", True),
            "previous_response_id": body.get("previous_response_id"),
            "reasoning": body.get("reasoning") or {"effort": None, "summary": None},
            "store": body.get("store", True),
            "temperature": body.get("temperature", 1.0),
            "text": body.get("text") or {"format": {"type": "text"}},
            "tool_choice": body.get("tool_choice", "auto"),
            "tools": body.get("tools") or [],
            "top_p": body.get("top_p", 1.0),
            "truncation": body.get("truncation", "disabled"),
            "usage": self._usage if ended and status != "failed" else None,
            "user": body.get("user"),
        }

    @property
    def _usage(self) -> Json:
        spent = self._spent or Spent(self._asked, self._pieces, 0, self._reasoned)
        return {
            "input_tokens": spent.input_tokens,
            "input_tokens_details": {"cached_tokens": spent.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": spent.output_tokens,
            "output_tokens_details": {"reasoning_tokens": spent.reasoning_tokens},
            "total_tokens": spent.input_tokens + spent.output_tokens,
        }

    def _event(self, kind: str, **fields: Any) -> bytes:
        data = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
        return f"event: {kind}\ndata: {text}\n\n".encode()

    def _pieces_of(self, kind: str, pieces: tuple[str, ...], **at: Any) -> list[bytes]:
        # Only the number and the piece change. The rest is encoded once: there may be tens of thousands of pieces.
        start = f'event: {kind}\ndata: {{"type":"{kind}","sequence_number":'.encode()
        rest = f',{json.dumps(at, separators=(",", ":"))[1:-1]},"delta":'.encode()
        first = self._number
        self._number += len(pieces)
        return [b"%b%d%b%b}\n\n" % (start, n, rest, piece) for n, piece in enumerate(as_json(pieces), first)]


def _led(before: list[bytes], events: list[bytes]) -> list[bytes]:
    """The events before the first piece are sent together with it, so that each item of the list has one piece."""
    if not events:
        return [b"".join(before)] if before else []
    return [b"".join([*before, events[0]]), *events[1:]]


def _id(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(12)}"

# SPDX-License-Identifier: Apache-2.0
"""Clients for the fakes: one that asks and reads whole answers, one that is nothing but a socket."""

from __future__ import annotations

import http.client
import json
import socket
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

from andon.testing.providers import FakeChat, FakeResponses

Json = dict[str, Any]
Fake = FakeChat | FakeResponses
KINDS = [FakeChat, FakeResponses]
HANG = 10.0


def asking(fake: Fake, **more: Any) -> Json:
    """The smallest request that a fake accepts."""
    if isinstance(fake, FakeChat):
        return {"model": "m", "messages": [{"role": "user", "content": "Hi"}], **more}
    return {"model": "m", "input": "Hi", **more}


def post(fake: Fake, body: Json | bytes, headers: dict[str, str] | None = None, path: str = "") -> tuple[int, Json]:
    """A request and its plain answer."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    given = {"authorization": f"Bearer {fake.api_key}"} if headers is None else headers
    with closing(http.client.HTTPConnection(_netloc(fake), timeout=HANG)) as connection:
        connection.request("POST", path or fake.path, data, given)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


def rejected(fake: Fake, body: Json) -> Json:
    """The error that a request is rejected with."""
    before = len(fake.served)
    status, answer = post(fake, body)
    assert status in (400, 404), answer
    assert set(answer) == {"error"}
    error: Json = answer["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert fake.served[before].state == "rejected"
    assert fake.served[before].error == error
    return error


def accepted(fake: Fake, body: Json) -> Json:
    status, answer = post(fake, body)
    assert status == 200, answer
    return answer


class Wire:
    """A client that is nothing but a socket."""

    def __init__(self, fake: Fake) -> None:
        self.fake = fake
        self.socket = socket.create_connection((urlsplit(fake.base_url).hostname, _port(fake)), timeout=HANG)
        self.received = b""

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, body: Json | None = None, **headers: str) -> None:
        data = json.dumps(asking(self.fake, stream=True) if body is None else body).encode()
        lines = [f"POST {self.fake.path} HTTP/1.1", f"authorization: Bearer {self.fake.api_key}"]
        lines += [f"content-length: {len(data)}", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
        self.socket.sendall("\r\n".join(lines).encode() + data)

    def until(self, mark: bytes) -> bytes:
        """What comes up to a mark, which must come."""
        while mark not in self.received:
            data = self.socket.recv(65536)
            assert data, f"closed before {mark!r}: {self.received!r}"
            self.received += data
        end = self.received.index(mark) + len(mark)
        taken, self.received = self.received[:end], self.received[end:]
        return taken

    def rest(self) -> bytes:
        """All that comes until the fake closes."""
        parts = [self.received]
        while data := self.socket.recv(1024 * 1024):
            parts.append(data)
        self.received = b"".join(parts)
        return self.received

    def leave(self, *, reset: bool = False) -> None:
        if reset:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.socket.close()


def body_of(response: bytes) -> bytes:
    """The body of a response in chunks."""
    at = response.index(b"\r\n\r\n") + 4
    chunks: list[bytes] = []
    while True:
        start = response.index(b"\r\n", at) + 2
        size = int(response[at : start - 2], 16)
        if size == 0:
            return b"".join(chunks)
        chunks.append(response[start : start + size])
        at = start + size + 2


def events_of(body: bytes) -> list[Json | str]:
    """The data of each event of a stream."""
    events: list[Json | str] = []
    for block in body.decode().split("\n\n")[:-1]:
        data = block.splitlines()[-1].removeprefix("data: ")
        events.append(data if data == "[DONE]" else json.loads(data))
    return events


def _netloc(fake: Fake) -> str:
    return urlsplit(fake.base_url).netloc


def _port(fake: Fake) -> int:
    return urlsplit(fake.base_url).port or 0

# SPDX-License-Identifier: Apache-2.0
"""What is changed inside of the HTTP library. If a test here fails, the library has changed."""

from __future__ import annotations

import asyncio

import h11
import httpx2
import pytest

from andon import Agent
from andon.models.common import http
from andon.models.common.http import JOINED_BYTES, client_options, join_chunks, response_type
from andon.models.openai import OpenAIChat
from andon.testing.providers import FakeChat, connect_never, text
from tests.support import play


def test_chunks_are_joined() -> None:
    """Without this, streams are right, but slow."""

    async def main() -> None:
        with FakeChat([[text(pieces=["word "] * 500)]], split=50) as fake:
            body = {"model": "any", "messages": [{"role": "user", "content": "go"}], "stream": True}
            headers = {"authorization": f"Bearer {fake.api_key}"}
            reads: list[list[bytes]] = []
            async with httpx2.AsyncClient() as client:
                for joined in (False, True):
                    async with client.stream(
                        "POST", f"{fake.base_url}/chat/completions", json=body, headers=headers
                    ) as response:
                        assert isinstance(response, response_type())
                        assert not joined or join_chunks(response)
                        reads.append([read async for read in response.aiter_bytes()])
            apart, together = reads
            assert b"".join(apart).count(b"word ") == b"".join(together).count(b"word ") == 500
            assert len(together) < len(apart) / 10
            assert [each.connection for each in fake.served] == [1, 1], "the connection was not used again"

    play(main)


def test_chunks_of_anything_else_are_left_alone() -> None:
    assert join_chunks(object()) is False


def test_a_private_name_that_is_gone_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def transport(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, content=b"data: x")

    async def main() -> None:
        with FakeChat([[text("Fine.")]]) as fake:
            model = OpenAIChat("gpt-5.2", fake.api_key, fake.base_url)
            for _ in range(2):
                assert (await Agent("Tester", model).invoke_async("go")).content == "Fine."
        async with (
            httpx2.AsyncClient(transport=httpx2.MockTransport(transport)) as client,
            client.stream("GET", "http://x") as response,
        ):
            assert not join_chunks(response), "it has no chunks"

    monkeypatch.setattr(http, "_is_told", False)
    play(main)
    assert caplog.records == []
    monkeypatch.setattr(http, "_PATH_TO_PARSER", (*http._PATH_TO_PARSER[:-1], "_renamed"))
    play(main)
    (line,) = [record.message for record in caplog.records]
    assert "httpx2" in line


def test_what_is_handed_on_at_once_stays_small() -> None:
    """A read of the network may bring hundreds of kilobytes. What is made of them must not all be in memory at once."""
    chunk = b"%x\r\n%b\r\n" % (1000, b"x" * 1000)
    connection = _joining(chunk * 100 + b"0\r\n\r\n")
    pieces = []
    while type(event := connection.next_event()) is h11.Data:
        pieces.append(len(event.data))
    assert isinstance(event, h11.EndOfMessage)
    assert sum(pieces) == 100_000
    assert all(JOINED_BYTES <= piece < JOINED_BYTES + 1000 for piece in pieces[:-1])


def test_a_chunk_that_is_broken_comes_after_those_that_are_not() -> None:
    """What was joined is handed on; the error comes with the next read."""
    connection = _joining(b"2\r\nab\r\n1\r\nc\r\nno chunk\r\n")
    data = connection.next_event()
    assert isinstance(data, h11.Data)
    assert data.data == b"abc"
    with pytest.raises(h11.RemoteProtocolError, match="illegal chunk header"):
        connection.next_event()


def _joining(chunks: bytes) -> h11.Connection:
    """A connection that has received an answer with these chunks, and joins them."""
    connection = h11.Connection(h11.CLIENT)
    connection.send(h11.Request(method="GET", target="/", headers=[("host", "x")]))
    connection.send(h11.EndOfMessage())
    connection.receive_data(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + chunks)
    assert isinstance(connection.next_event(), h11.Response)

    class Layer:
        """One of the library's layers, as far as it is looked at."""

        def __init__(self, name: str, below: object) -> None:
            setattr(self, name, below)

    response: object = connection
    for name in ("_h11_state", "_connection", "_stream", "_httpcore_stream", "_stream", "stream"):
        response = Layer(name, response)
    assert join_chunks(response)
    return connection


def test_a_cancel_in_the_tls_handshake_closes_the_connection() -> None:
    async def main() -> None:
        with connect_never(tls=True) as nowhere:
            async with httpx2.AsyncClient(**client_options(), timeout=None) as client:
                request = asyncio.ensure_future(client.get(nowhere.base_url))
                await nowhere.wait_connected_async()
                request.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await request
                await nowhere.wait_left_async()

    play(main)


def test_certificates_are_read_once() -> None:
    assert client_options()["verify"] is client_options()["verify"]

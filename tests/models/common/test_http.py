# SPDX-License-Identifier: Apache-2.0
"""What is changed inside of the HTTP library. If a test here fails, the library has changed."""

from __future__ import annotations

import asyncio

import httpx2
import pytest

from andon.models.common.http import client_options, join_chunks, response_type
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


def test_a_chunk_that_is_broken_comes_after_those_that_are_not() -> None:
    """What was joined is handed on; the error comes with the next read."""
    import h11

    connection = h11.Connection(h11.CLIENT)
    connection.send(h11.Request(method="GET", target="/", headers=[("host", "x")]))
    connection.send(h11.EndOfMessage())
    connection.receive_data(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\nno chunk\r\n")
    assert isinstance(connection.next_event(), h11.Response)

    class Layer:
        """One of the library's layers, as far as it is looked at."""

        def __init__(self, name: str, below: object) -> None:
            setattr(self, name, below)

    response: object = connection
    for name in ("_h11_state", "_connection", "_stream", "_httpcore_stream", "_stream", "stream"):
        response = Layer(name, response)
    assert join_chunks(response)
    data = connection.next_event()
    assert isinstance(data, h11.Data)
    assert data.data == b"abc"
    with pytest.raises(h11.RemoteProtocolError, match="illegal chunk header"):
        connection.next_event()


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

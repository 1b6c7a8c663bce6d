# SPDX-License-Identifier: Apache-2.0
"""A request on the SDK's way to its bytes. Keys, tokens, headers, addresses and errors stay the SDK's.

The SDK's own loop makes a tree of pydantic objects of every token, which costs thirty times as much as reading it. Its
way to the bytes has private names: `_build_request` and `_async_request`. If these are not as expected, `find_wire`
says so by None, and the request goes the public way (typed).
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any

import msgspec

from andon.models.common.errors import ErrorTable
from andon.models.common.stream import Decoder, read_events, read_sse
from andon.models.google.splitter import Splitter

_NAMES = ("_build_request", "_async_request")
_FIELDS = ("url", "headers", "data", "timeout")


def find_wire(client: Any) -> Any:
    """The part of the SDK's client that sends requests, if it is as expected here; else None."""
    api = getattr(client, "_api_client", None)
    if api is None or not all(callable(getattr(api, name, None)) for name in _NAMES):
        return None
    try:
        request = api._build_request("post", "models/any:streamGenerateContent?alt=sse", {})
    except Exception:  # noqa: BLE001 - the boundary: the public way reports each error better
        return None
    return api if all(hasattr(request, name) for name in _FIELDS) else None


def path_of(model: str, *, vertex: bool) -> str:
    """The address of a model's answers, below the version."""
    if vertex and not model.startswith(("projects/", "models/", "publishers/")):
        publisher, _, name = model.rpartition("/")
        model = f"publishers/{publisher or 'google'}/models/{name}"
    elif not vertex and not model.startswith(("models/", "tunedModels/")):
        model = f"models/{model}"
    return f"{model}:streamGenerateContent?alt=sse"


@contextlib.asynccontextmanager
async def send(
    api: Any, path: str, body: Mapping[str, Any], headers: Mapping[str, str], timeout: Any
) -> AsyncIterator[Any]:
    """The response, as soon as its headers are there. It is closed at the end, however that comes."""
    from google.genai import types

    request = api._build_request("post", path, {})
    request.data = msgspec.json.encode(body)
    request.headers.update(headers)
    if timeout is not None:
        request.timeout = timeout
    # A client of the user's may retry, but the run itself does that, so that a cancel ends the retries.
    once = types.HttpOptions(retry_options=types.HttpRetryOptions(attempts=1))
    response = (await api._async_request(request, once, stream=True)).response_stream
    try:
        yield response
    finally:
        if hasattr(response, "aclose"):
            await response.aclose()
        else:  # aiohttp's, of a client of the user's: it closes without waiting
            response.close()


async def read(response: Any, decoder: Decoder[bytes], table: ErrorTable) -> None:
    """Read the answer to its end."""
    if hasattr(response, "aiter_bytes"):
        await read_sse(response, decoder, table, Splitter())
    else:
        await read_events(_reads(response), Splitter(), decoder)


async def _reads(response: Any) -> AsyncGenerator[bytes, None]:
    async for read in response.content.iter_any():
        yield read

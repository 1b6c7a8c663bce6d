# SPDX-License-Identifier: Apache-2.0
"""The SDK's public way to an answer, for versions of it in which the private names of `wire` are gone.

It sends the same body: as the extra body of a request, which the SDK puts over its own. Each event comes as an object
and is written as JSON again, for the same decoder. The SDK leaves the response of a cancelled stream open, so the
response is caught by a hook of the HTTP client, and is closed here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

from andon.models.common.errors import ended_early
from andon.models.common.stream import EVENTS_PER_TURN
from andon.models.google.answer import GeminiAnswer
from andon.models.google.clients import Opened

_responses: ContextVar[list[Any] | None] = ContextVar("responses", default=None)


async def _catch(response: Any) -> None:
    if (caught := _responses.get()) is not None:
        caught.append(response)


async def ask(
    opened: Opened,
    model: str,
    body: Mapping[str, Any],
    headers: Mapping[str, str],
    timeout: Any,
    answer: GeminiAnswer,
    on_answered: Callable[[], None],
) -> None:
    """Send a request, and decode its answer. `on_answered` is called when it begins."""
    from google.genai import types

    _add_hook(opened)
    config = types.GenerateContentConfig(
        http_options=types.HttpOptions(
            headers=dict(headers),
            extra_body=dict(body),
            retry_options=types.HttpRetryOptions(attempts=1),
            timeout=_milliseconds(timeout),
        ),
        automatic_continuation=False,
        automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
    )
    caught: list[Any] = []
    token = _responses.set(caught)
    try:
        stream = await opened.client.aio.models.generate_content_stream(model=model, contents="…", config=config)
        async with contextlib.aclosing(stream):
            count = 0
            async for chunk in stream:
                on_answered()
                answer.take([chunk.model_dump_json(by_alias=True, exclude_none=True).encode()])
                count += 1
                if count % EVENTS_PER_TURN == 0:
                    await asyncio.sleep(0)
    finally:
        _responses.reset(token)
        for response in caught:
            await response.aclose()
    answer.end()
    if not answer.finished:
        raise ended_early()


def _add_hook(opened: Opened) -> None:
    """A client that was given has HTTP clients of its own, which are not ours to change."""
    if opened.http_client is not None and _catch not in (hooks := opened.http_client.event_hooks)["response"]:
        opened.http_client.event_hooks = {**hooks, "response": [*hooks["response"], _catch]}


def _milliseconds(timeout: Any) -> int | None:
    seconds = timeout if isinstance(timeout, int | float) else getattr(timeout, "read", None)
    return None if seconds is None else int(seconds * 1000)

# SPDX-License-Identifier: Apache-2.0
"""How many tokens an answer of a model may have at most.

Anthropic wants this number in every request. Its list of models has it, and is asked once per client and model. What
must stay true: an answer never fails because the number can't be found, and a list that does not answer is not waited
for with each request.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
import weakref
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import Struct

from andon.models.common.http import response_type

FALLBACK_TOKENS = 32_000
"""All models since Claude 4 can give so many."""

SECONDS = 5.0
"""The list is not waited for any longer than this."""

AGAIN_SECONDS = 300.0
"""A list that did not answer in time is asked again after this time."""

_log = logging.getLogger("andon.models.anthropic")
_PASSES = frozenset({408, 409, 429})


class _Model(Struct, gc=False):
    max_tokens: int | None = None


class _Found(Struct, gc=False):
    limit: int
    until: float
    """When to ask again, on the clock of `time.monotonic`."""


_found: weakref.WeakKeyDictionary[Any, dict[str, _Found]] = weakref.WeakKeyDictionary()


async def limit_of(client: Any, model: str, options: Mapping[str, Any]) -> int:
    """The number for this model."""
    known = _found.setdefault(client, {})
    found = known.get(model)
    if found is None or found.until <= time.monotonic():
        found = known[model] = await _ask(client, model, options)
    return found.limit


async def _ask(client: Any, model: str, options: Mapping[str, Any]) -> _Found:
    began = time.monotonic()
    until = math.inf
    try:
        # Not `client.models.retrieve`, whose import takes a tenth of a second on the event loop.
        path = f"/v1/models/{quote(model, safe='')}"
        async with asyncio.timeout(SECONDS):  # for all of it: the SDK's own timeout is for each read
            response = await client.get(path, cast_to=response_type(), options=options)
        limit = msgspec.json.decode(response.content, type=_Model).max_tokens
        reason = "the provider did not say"
    except Exception as error:  # noqa: BLE001 - the boundary: the request for the answer reports what is wrong
        limit, reason, now = None, type(error).__name__, time.monotonic()
        status = getattr(error, "status_code", 500)
        if now - began > SECONDS / 2:
            until = now + AGAIN_SECONDS
        elif status in _PASSES or status >= 500:
            return _Found(FALLBACK_TOKENS, now)  # it may be found the next time
    if limit and limit >= 1:
        return _Found(limit, until)
    _log.warning(
        "the limit of %s can't be found (%s): answers end after %d tokens; pass max_tokens= for another limit",
        model,
        reason,
        FALLBACK_TOKENS,
    )
    return _Found(FALLBACK_TOKENS, until)

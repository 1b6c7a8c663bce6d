# SPDX-License-Identifier: Apache-2.0
"""How many tokens an answer of a model may have at most.

Anthropic wants this number in every request. Its list of models has it, and is asked once per client and model. What
must stay true: an answer never fails because the number can't be found.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import Struct

from andon.models.common.http import response_type

FALLBACK_TOKENS = 32_000
"""All models since Claude 4 can give so many."""

SECONDS = 10.0
"""The list is not waited for any longer than this."""

_log = logging.getLogger("andon.models.anthropic")
_found: weakref.WeakKeyDictionary[Any, dict[str, int]] = weakref.WeakKeyDictionary()
_PASSES = frozenset({408, 409, 429})


class _Model(Struct, gc=False):
    max_tokens: int | None = None


async def limit_of(client: Any, model: str, options: Mapping[str, Any]) -> int:
    """The number for this model."""
    known = _found.setdefault(client, {})
    if model in known:
        return known[model]
    try:
        # Not `client.models.retrieve`, whose import takes a tenth of a second on the event loop.
        path = f"/v1/models/{quote(model, safe='')}"
        response = await client.get(path, cast_to=response_type(), options={**options, "timeout": SECONDS})
        limit = msgspec.json.decode(response.content, type=_Model).max_tokens
        reason = "the provider did not say"
    except Exception as error:  # noqa: BLE001 - the boundary: the request for the answer reports what is wrong
        limit, reason = None, type(error).__name__
        status = getattr(error, "status_code", 500)
        if status in _PASSES or status >= 500:
            return FALLBACK_TOKENS  # it may be found the next time
    if not limit or limit < 1:
        _log.warning(
            "the limit of %s can't be found (%s): answers end after %d tokens; pass max_tokens= for another limit",
            model,
            reason,
            FALLBACK_TOKENS,
        )
        limit = FALLBACK_TOKENS
    known[model] = limit
    return limit

# SPDX-License-Identifier: Apache-2.0
"""OpenAI's errors as ours: what its codes mean, and how its SDK reports them.

Another attempt may succeed if the request did not reach the provider, if the provider had no time for it (408, 409,
429), or if something broke on its side (5xx). An empty account is a 429 too, and no waiting helps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from andon.errors import ContextLengthError, ModelError, RateLimitError, say
from andon.models.common.errors import ErrorTable, as_text, no_answer, of_connection, retry_after, unreachable
from andon.models.common.secrets import Secrets
from andon.models.openai.clients import SDK

TABLE = ErrorTable(
    transient=frozenset(
        {"server_error", "rate_limit_exceeded", "server_is_overloaded", "slow_down", "overloaded_error"}
    ),
    permanent=frozenset({"insufficient_quota", "billing_not_active", "billing_hard_limit_reached"}),
    kinds={"context_length_exceeded": ContextLengthError, "rate_limit_exceeded": RateLimitError},
)

in_stream = TABLE.in_stream


def translate(error: Exception, secrets: Secrets) -> ModelError | None:
    """An error of the SDK, or of the HTTP library below it, as one of ours; None for any other."""
    openai = SDK.load()
    if isinstance(error, openai.APIStatusError):
        return _of_response(error, secrets)
    if isinstance(error, openai.APITimeoutError):
        return no_answer(error, secrets)
    if isinstance(error, openai.APIConnectionError):
        return unreachable(error, secrets)
    if isinstance(error, openai.OpenAIError):
        return ModelError(secrets.hide(say(error)))
    return of_connection(error, secrets)  # after the headers, the SDK has no part in reading


def _of_response(error: Any, secrets: Secrets) -> ModelError:
    headers = error.response.headers
    body = error.body if isinstance(error.body, Mapping) else {}
    said = body.get("message")
    return TABLE.of_status(
        error.status_code,
        said if isinstance(said, str) and said else secrets.excerpt(error.response.text) or error.message,
        code=error.code,
        kind=as_text(body.get("type")),
        should_retry={"true": True, "false": False}.get(headers.get("x-should-retry")),
        retry_after=retry_after(headers),
        request_id=error.request_id,
        secrets=secrets,
    )

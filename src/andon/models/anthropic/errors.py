# SPDX-License-Identifier: Apache-2.0
"""Anthropic's errors as ours: what its codes mean, and how its SDK reports them.

Another attempt may succeed if the request did not reach the provider, if the provider had no time for it (408, 409,
429, 529), or if something broke on its side (5xx). The header `x-should-retry` has the last word.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from andon.errors import AuthenticationError, ContextLengthError, ModelError, RateLimitError, say
from andon.models.anthropic.clients import HARMLESS, NO_KEY_HINT, SDK
from andon.models.common.errors import ErrorTable, as_text, no_answer, of_connection, retry_after, unreachable
from andon.models.common.secrets import Secrets, in_headers

TABLE = ErrorTable(
    transient=frozenset({"overloaded_error", "api_error", "rate_limit_error", "timeout_error"}),
    permanent=frozenset({"billing_error", "contract_spend_limit_reached", "enforced_spend_limit_reached"}),
    kinds={
        "request_too_large": ContextLengthError,
        "rate_limit_error": RateLimitError,
        "authentication_error": AuthenticationError,
        "permission_error": AuthenticationError,
    },
    too_long=re.compile(r"prompt is too long|exceed(?:s)? (?:the )?context (?:limit|window)", re.IGNORECASE),
)

in_stream = TABLE.in_stream

_OTHER_CONVERSATION = "bound to a different conversation"


def is_of_other_conversation(error: Exception) -> bool:
    """Whether a request was refused because a block of thinking is bound to something else than what precedes it."""
    return getattr(error, "status_code", None) == 400 and _OTHER_CONVERSATION in str(getattr(error, "body", ""))


def translate(error: Exception, secrets: Secrets) -> ModelError | None:
    """An error of the SDK, or of the HTTP library below it, as one of ours; None for any other."""
    anthropic = SDK.load()
    if isinstance(error, anthropic.APIStatusError):
        return _of_response(error, secrets)
    if isinstance(error, anthropic.APITimeoutError):
        return no_answer(error, secrets)
    if isinstance(error, anthropic.APIConnectionError):
        return unreachable(error, secrets)
    if isinstance(error, anthropic.AnthropicError):
        return ModelError(secrets.hide(say(error)))
    if isinstance(error, TypeError) and "authentication method" in str(error):  # found before anything was sent
        return AuthenticationError(f"the SDK found no credentials for Anthropic: {NO_KEY_HINT}")
    return of_connection(error, secrets)  # after the headers, the SDK has no part in reading


def _of_response(error: Any, secrets: Secrets) -> ModelError:
    headers = error.response.headers
    # A token of a profile is in no setting of the client, only in what was sent.
    sent = Secrets(in_headers(error.response.request.headers.items(), HARMLESS))
    body = error.body if isinstance(error.body, Mapping) else {}
    said = body.get("error")
    said = said if isinstance(said, Mapping) else {}
    details = said.get("details")
    text = said.get("message")
    made = TABLE.of_status(
        error.status_code,
        text if isinstance(text, str) and text else secrets.excerpt(sent.hide(error.response.text)) or error.message,
        code=as_text(details.get("error_code")) if isinstance(details, Mapping) else None,
        kind=as_text(said.get("type")),
        should_retry={"true": True, "false": False}.get(headers.get("x-should-retry")),
        retry_after=retry_after(headers),
        request_id=error.request_id or as_text(body.get("request_id")),
        secrets=secrets,
    )
    made.args = tuple(sent.hide(each) if isinstance(each, str) else each for each in made.args)
    return made

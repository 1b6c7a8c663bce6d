# SPDX-License-Identifier: Apache-2.0
"""The provider's errors in our tree, with the provider's own words, and never with the key that was used.

What may be tried again: what did not reach the provider, what it had no time for (408, 409, 429) and what broke on its
side (5xx). An empty account is a 429 too, and waiting does not fill it.
"""

from __future__ import annotations

import contextlib
import email.utils
import math
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from andon.errors import (
    AuthenticationError,
    BadRequestError,
    ContextLengthError,
    ModelConnectionError,
    ModelError,
    ModelStreamError,
    RateLimitError,
    say,
)

_BUSY = frozenset({408, 409, 429})
_NO_QUOTA = frozenset({"insufficient_quota", "billing_not_active", "billing_hard_limit_reached"})
_TRANSIENT = frozenset({"server_error", "rate_limit_exceeded", "server_is_overloaded", "slow_down", "overloaded_error"})
_TOO_LONG = "context_length_exceeded"


def translate(error: Exception, openai: Any, key: object = None) -> ModelError | None:
    """An error of the SDK, or of the HTTP library below it, as one of ours; None for any other."""
    if isinstance(error, openai.APIStatusError):
        return _of_status(error, key)
    if isinstance(error, openai.APITimeoutError):
        return ModelConnectionError(f"the provider did not answer in time: {_root(error, key)}", retryable=True)
    if isinstance(error, openai.APIConnectionError):
        return ModelConnectionError(f"the provider can't be reached: {_root(error, key)}", retryable=_may_pass(error))
    if isinstance(error, openai.OpenAIError):
        return ModelError(_hidden(say(error), key))
    library = type(error).__module__.partition(".")[0]
    if library in ("httpx", "httpx2", "httpcore", "httpcore2", "aiohttp"):
        # On the raw path the SDK is out of the way once the headers are there.
        if "Timeout" in type(error).__name__:
            return ModelConnectionError(f"the provider stopped sending: {_root(error, key)}", retryable=True)
        return ModelConnectionError(f"the connection to the provider broke: {_root(error, key)}", retryable=True)
    return None


def _of_status(error: Any, key: object) -> ModelError:
    status: int = error.status_code
    body = error.body if isinstance(error.body, Mapping) else {}
    said = body.get("message")
    text = said if isinstance(said, str) and said else _excerpt(error.response.text) or error.message
    code = error.code or _text(body.get("type"))
    header = error.response.headers.get("x-should-retry")
    retryable = status in _BUSY or status >= 500
    if header in ("true", "false"):
        retryable = header == "true"
    return _kind(status, code)(
        _hidden(f"{status}: {text}", key),
        retryable=retryable and code not in _NO_QUOTA and body.get("type") not in _NO_QUOTA,
        retry_after=retry_after(error.response.headers),
        status=status,
        code=code,
        request_id=error.request_id,
    )


def _kind(status: int, code: str | None) -> type[ModelError]:
    if code == _TOO_LONG:
        return ContextLengthError
    if status in (401, 403):
        return AuthenticationError
    if status == 429:
        return RateLimitError
    return BadRequestError if status < 500 and status not in _BUSY else ModelError


def reported(error: object, key: object = None) -> ModelError:
    """An error that came as an event, in the middle of a stream that had begun well."""
    said = error if isinstance(error, Mapping) else {"message": error}
    code, kind, status = _text(said.get("code")), _text(said.get("type")), said.get("status")
    text = _text(said.get("message")) or code or kind or "the provider gave no reason"
    transient = code in _TRANSIENT or kind in _TRANSIENT or (said.get("code") in (429, 500, 502, 503, 504, 529))
    sort = ContextLengthError if code == _TOO_LONG else RateLimitError if code == "rate_limit_exceeded" else ModelError
    return sort(
        _hidden(f"the provider reported an error: {text}", key),
        retryable=transient and code not in _NO_QUOTA and kind not in _NO_QUOTA,
        code=code or kind,
        status=status if isinstance(status, int) else None,
    )


def no_stream(content_type: str, body: bytes, request_id: str | None) -> ModelError:
    """The answer is not a stream of events: a page of a proxy, say, or a server at the wrong address."""
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
        said = msgspec.json.decode(body)
        if isinstance(said, dict) and said.get("error"):
            return reported(said["error"])
    kind = content_type.partition(";")[0] or "no content type"
    return ModelStreamError(
        f"the provider answered with {kind} where a stream of events was due: "
        f"{_excerpt(body.decode(errors='replace')) or '(nothing)'}; is base_url right?",
        request_id=request_id,
    )


def broken(payload: bytes, why: object) -> ModelStreamError:
    excerpt = _excerpt(payload.decode(errors="replace"))
    return ModelStreamError(f"the provider sent an event that can't be read ({why}): {excerpt}")


def ended_early() -> ModelStreamError:
    return ModelStreamError("the provider's stream ended early, before the answer was complete", retryable=True)


def given_up(reason: str) -> ModelError:
    """The stream ended in order, and says that the answer did not."""
    text = f"the provider gave up in the middle of the answer: its finish reason is {reason!r}"
    return ModelError(text, retryable=True, code=reason)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """How many seconds the provider asks to wait, in any of the three ways to say so."""
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) * scale
        except ValueError:
            continue
        if math.isfinite(seconds):
            return max(0.0, seconds)
    try:
        moment = email.utils.parsedate_to_datetime(headers.get("retry-after", ""))
    except (TypeError, ValueError):
        return None
    return max(0.0, moment.timestamp() - time.time())


def hide_key(error: ModelError, key: object) -> None:
    """The provider may have quoted it."""
    error.args = tuple(_hidden(each, key) if isinstance(each, str) else each for each in error.args)


def _may_pass(error: BaseException) -> bool:
    """Whether it may be another time: an address or a header that makes no sense will not become better."""
    while error is not None:
        if type(error).__name__ in ("UnsupportedProtocol", "LocalProtocolError", "InvalidURL"):
            return False
        error = error.__cause__ or error.__context__  # type: ignore[assignment]
    return True


def _root(error: BaseException, key: object) -> str:
    """What was at the bottom of it: the libraries in between say only that something failed."""
    words, seen = say(error), error
    while (below := seen.__cause__ or seen.__context__) is not None:
        seen = below
        words = say(below) or words
    return f"{_hidden(_excerpt(words), key)} ({type(seen).__name__})" if words else type(seen).__name__


def _hidden(text: str, key: object) -> str:
    # Some servers quote what they were sent.
    key = key.strip() if isinstance(key, str) else ""
    return text.replace(key, "***") if len(key) > 4 else text


def _excerpt(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 200 else f"{text[:200]}…"


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None if value is None else str(value)

# SPDX-License-Identifier: Apache-2.0
"""Bedrock's errors as ours: what its codes mean, and how botocore reports errors.

The code decides whether another attempt may succeed. A 424 is a model that failed (final) or a stream that broke (may
be tried again), and a 403 can be expired credentials. A code that is not known is judged by its HTTP status.
"""

from __future__ import annotations

import re
from typing import Any

from andon.errors import AuthenticationError, BadRequestError, ModelError, RateLimitError, say
from andon.models.bedrock.clients import load
from andon.models.common.errors import ErrorTable, as_text, no_answer, of_connection, retry_after, unreachable
from andon.models.common.secrets import Secrets

_AGAIN = frozenset(
    {
        "InternalServerException",
        "ModelNotReadyException",
        "ModelStreamErrorException",
        "ModelTimeoutException",
        "ServiceUnavailableException",
        "ThrottlingException",
    }
)
_FINAL = frozenset(
    {
        "AccessDeniedException",
        "ModelErrorException",
        "ResourceNotFoundException",
        "ServiceQuotaExceededException",
        "ValidationException",
    }
)
_CREDENTIALS = (
    "AccessDeniedException",
    "ExpiredToken",
    "ExpiredTokenException",
    "IncompleteSignatureException",
    "InvalidClientTokenId",
    "InvalidSignatureException",
    "MissingAuthenticationTokenException",
    "SignatureDoesNotMatch",
    "UnrecognizedClientException",
)

TABLE = ErrorTable(
    transient=_AGAIN,
    permanent=_FINAL,
    kinds={"ThrottlingException": RateLimitError} | dict.fromkeys(_CREDENTIALS, AuthenticationError),
    too_long=re.compile(
        r"(?i)(?:input|prompt) is too long|too many input tokens|exceeds? (?:the )?(?:model'?s )?"
        r"(?:maximum )?context|maximum (?:context length|number of (?:input )?tokens)|context (?:length|limit) exceeded"
    ),
)

_NO_CREDENTIALS = frozenset(
    {
        "CredentialRetrievalError",
        "LoginError",
        "NoAuthTokenError",
        "NoCredentialsError",
        "PartialCredentialsError",
        "RefreshWithMFAUnsupportedError",
        "SSOError",
        "TokenRetrievalError",
    }
)
"""botocore's errors, by name: few versions have all of them."""

_LATE = frozenset({"ConnectTimeoutError", "ReadTimeoutError"})


def in_stream(code: str, message: str | None) -> ModelError:
    """The error for an exception in a stream. There, its name begins with a small letter."""
    name = code[:1].upper() + code[1:]
    error = TABLE.in_stream({"code": name or None, "message": message})
    if name == "ValidationException" and type(error) is ModelError:
        return BadRequestError(str(error), code=name)
    return error


def translate(error: Exception, secrets: Secrets) -> ModelError | None:
    """An error of botocore, or of the HTTP library below it, as one of ours; None for any other."""
    exceptions = load("botocore.exceptions")
    if isinstance(error, exceptions.EventStreamError):  # on the slower way: an exception in the stream
        said = error.response.get("Error", {})
        found = in_stream(as_text(said.get("Code")) or "", as_text(said.get("Message")))
        found.args = tuple(secrets.hide(str(each)) for each in found.args)
        return found
    if isinstance(error, exceptions.ClientError):
        return _of_response(error.response, secrets)
    if not isinstance(error, exceptions.BotoCoreError):
        return of_connection(error, secrets)  # after the headers, botocore has no part in reading
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if kinds & _NO_CREDENTIALS:
        return AuthenticationError(f"there are no usable AWS credentials: {secrets.hide(say(error))}")
    if kinds & _LATE:
        return no_answer(error, secrets)
    if kinds & {"HTTPClientError", "ConnectionError"}:
        return unreachable(error, secrets)
    return ModelError(secrets.hide(say(error)))


def _of_response(response: Any, secrets: Secrets) -> ModelError:
    said, facts = response.get("Error", {}), response.get("ResponseMetadata", {})
    headers = facts.get("HTTPHeaders", {})
    code = as_text(said.get("Code")) or None
    return TABLE.of_status(
        facts.get("HTTPStatusCode", 0),
        as_text(said.get("Message")) or as_text(response.get("message")) or code or "the provider gave no reason",
        code=code,
        should_retry=True if code in _AGAIN else None,
        retry_after=retry_after(headers, {"x-amz-retry-after": 0.001, "retry-after": 1.0}),
        request_id=facts.get("RequestId"),
        secrets=secrets,
    )

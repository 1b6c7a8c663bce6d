# SPDX-License-Identifier: Apache-2.0
"""Anthropic's errors: their form, and the words of the ones that are often used."""

from __future__ import annotations

import secrets

from andon.testing.providers.api import Json, Rejection
from andon.testing.providers.script import Fail

_TYPES = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}


class Rejected(Rejection):
    """The request is answered with an error in Anthropic's form."""

    def __init__(self, message: str, *, status: int = 400, type: str | None = None) -> None:
        error = {"type": type or type_of(status), "message": message}
        super().__init__(message, status, error, body_of(error))


def type_of(status: int) -> str:
    return _TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")


def body_of(error: Json) -> Json:
    return {"type": "error", "error": error, "request_id": f"req_{secrets.token_hex(12)}"}


def failure(word: Fail) -> Json:
    """An error that a script asks for."""
    error: Json = {"type": word.type or type_of(word.status), "message": word.message}
    return error if word.code is None else {**error, "details": {"error_code": word.code}}


def missing(where: str) -> Rejected:
    return Rejected(f"{where}: Field required")


def unknown(where: str) -> Rejected:
    return Rejected(f"{where}: Extra inputs are not permitted")


def wrong_type(where: str, expected: str) -> Rejected:
    return Rejected(f"{where}: Input should be a valid {expected}")

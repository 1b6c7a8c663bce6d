# SPDX-License-Identifier: Apache-2.0
"""Bedrock's errors: the code is in a header, and the body has nothing but a message."""

from __future__ import annotations

from andon.testing.providers.api import Json, Rejection
from andon.testing.providers.script import Fail

CODE_HEADER = "x-amzn-errortype"

_CODES = {
    400: "ValidationException",
    403: "AccessDeniedException",
    404: "ResourceNotFoundException",
    408: "ModelTimeoutException",
    424: "ModelErrorException",
    429: "ThrottlingException",
    503: "ServiceUnavailableException",
}


class Rejected(Rejection):
    """The request is answered with an error in Bedrock's form."""

    def __init__(self, message: str, *, code: str = "ValidationException", status: int = 400) -> None:
        super().__init__(message, status, {"message": message, "type": code}, {"message": message})
        self.headers = {CODE_HEADER: code}


def code_of(word: Fail) -> str:
    """The code of an error that a script asks for."""
    return word.code or _CODES.get(word.status, "InternalServerException")


def unexpected(where: str, name: object) -> Rejected:
    return Rejected(f"The value at {where} is not valid: unknown field {name!r}.")


def malformed(where: str, what: str) -> Rejected:
    return Rejected(f"1 validation error detected: Value at '{where}' failed to satisfy constraint: {what}")


def thing(value: object, where: str, keys: frozenset[str], required: frozenset[str] = frozenset()) -> Json:
    """The value, if it is an object with these fields alone."""
    if not isinstance(value, dict):
        raise malformed(where, "Member must be an object")
    for name in value:
        if name not in keys:
            raise unexpected(where, name)
    for name in sorted(required):
        if value.get(name) is None:
            raise malformed(f"{where}.{name}", "Member must not be null")
    return value


def listed(value: object, where: str, *, least: int = 0) -> list[Json]:
    if not isinstance(value, list):
        raise malformed(where, "Member must be a list")
    if len(value) < least:
        raise malformed(where, f"Member must have length greater than or equal to {least}")
    return value


def one_of(value: object, where: str, keys: frozenset[str]) -> tuple[str, Json]:
    """The one field of a union, and its value."""
    found = thing(value, where, keys)
    if len(found) != 1:
        raise malformed(where, f"Member must have exactly one of {', '.join(sorted(keys))}")
    return next(iter(found.items()))


def string(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise malformed(where, "Member must be a string")
    return value

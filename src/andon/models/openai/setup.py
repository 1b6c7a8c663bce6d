# SPDX-License-Identifier: Apache-2.0
"""Options that can't be right, found before a run begins instead of in the middle of it.

Only what no server could take is refused: which values are good ones, the provider knows better. No message has the
value of a header, of a parameter or of an address, because that may be a secret.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from andon.errors import SetupError, describe

_NUMBERS = ("temperature", "top_p", "presence_penalty", "frequency_penalty")
_COUNTS = {"max_output_tokens": 1, "max_completion_tokens": 1, "seed": None}
"""Whole numbers, and the least that each may be."""


def check_url(base_url: str | None) -> None:
    """Raise for an address that no request can be sent to."""
    if base_url is None:
        return
    try:
        address = urlsplit(base_url)
        is_good = address.scheme in ("http", "https") and bool(address.hostname) and (address.port or 1) > 0
    except (ValueError, TypeError, AttributeError):
        is_good = False
    if not is_good:
        raise SetupError("base_url is no address of a server: write it like https://host/v1, or http://host:port/v1")


def check_options(body: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Raise for an option that can't be sent. `options` are those that are no part of the body, by the SDK's names."""
    for name in _NUMBERS:
        if name in body and not _is_number(body[name]):
            raise SetupError(f"{name} is {body[name]!r}; it is a number")
    for name, least in _COUNTS.items():
        if name in body and not _is_count(body[name], least):
            said = "max_output_tokens" if name == "max_completion_tokens" else name
            raise SetupError(f"{said} is {body[name]!r}; it is a whole number{'' if least is None else ', 1 or more'}")
    _check_timeout(options.get("timeout"))
    _check_headers(options.get("headers", {}))
    for name, said in (("params", "extra_query"), ("extra_json", "extra_body")):
        if not isinstance(options.get(name, {}), Mapping):
            raise SetupError(f"{said} must be a dict, not {type(options[name]).__name__}")
    try:
        json.dumps([dict(body), dict(options.get("extra_json", {}))], default=_to_plain, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise SetupError(f"the model's options can't be sent as JSON: {describe(error)}") from None


def _check_timeout(timeout: object) -> None:
    """A number of seconds, or an object of the HTTP library, which has one for each part."""
    if isinstance(timeout, str | bytes | bool) or (isinstance(timeout, int | float) and not timeout >= 0):
        raise SetupError(f"the model's timeout is {timeout!r}; it is a number of seconds, 0 or more")


def _check_headers(headers: object) -> None:
    if not isinstance(headers, Mapping):
        raise SetupError(f"extra_headers must be a dict, not {type(headers).__name__}")
    for name, value in headers.items():
        if not _fits_header(name) or " " in str(name):
            raise SetupError(f"extra_headers has a name that no header can have: {str(name)!r}")
        if isinstance(value, int | float | list | tuple | dict) or value is None:
            raise SetupError(f"the header {name!r} in extra_headers is {type(value).__name__}; it must be text")
        if isinstance(value, str) and not _fits_header(value):
            raise SetupError(f"the header {name!r} in extra_headers has characters that no header can have")


def _fits_header(text: object) -> bool:
    return isinstance(text, str) and text.isascii() and text.replace("\t", " ").isprintable()


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_count(value: object, least: int | None) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and (least is None or value >= least)


def _to_plain(value: object) -> object:
    """What the SDK can write besides plain JSON."""
    if isinstance(value, datetime):
        return str(value)
    if hasattr(value, "model_dump"):
        return None  # a pydantic model: the SDK knows how
    raise TypeError(f"{type(value).__name__} can't be written as JSON")

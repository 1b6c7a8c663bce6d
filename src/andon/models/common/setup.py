# SPDX-License-Identifier: Apache-2.0
"""Keys, addresses and options that can't be right, found before a run begins instead of in the middle of it.

Only what no server could accept is refused; the provider knows better which values are good. No message contains the
value of a key, a header, a parameter or an address, because that may be a secret.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from andon.errors import ConfigurationError, SetupError, describe

ApiKey = str | Callable[[], Awaitable[str]]
"""A key, or an async function that returns it."""

HttpClient = Callable[[], Any]
"""Makes an SDK's HTTP client, once per event loop; `openai.DefaultAioHttpClient`, for one."""


# -- where a client comes from ----------------------------------------------------------------------------------------


def from_environment(*names: str) -> str | None:
    """The first of these variables that is set and not empty."""
    return next((value for name in names if (value := os.environ.get(name))), None)


def check_key(key: ApiKey | None, provider: str, *names: str) -> ApiKey:
    """The key, if it can be one. `names` are the variables that hold a key of this provider."""
    if key is None:
        raise SetupError(f"there is no API key for {provider}: set {' or '.join(names)}, or pass api_key= to the model")
    if not isinstance(key, str):
        if not callable(key):  # a pydantic SecretStr, for one: its text would be asterisks
            kind = type(key).__name__
            raise SetupError(f"the API key is {kind}; it must be text, or an async function that returns it")
        return key
    if not (key.isascii() and key.isprintable() and key == key.strip()):
        raise SetupError("the API key has characters that no key has, such as a line break at its end: strip it")
    return key


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


# -- what a model is given --------------------------------------------------------------------------------------------


def check_id(id: str, example: str) -> str:
    """The id, if it can be the name of a model."""
    if not isinstance(id, str) or not id.strip():
        raise ConfigurationError(f"the model's id is {id!r}; it is the name of a model, as in {example}")
    return id


def check_client(client: object, settings: Iterable[object]) -> None:
    """Raise if a client is given together with the settings of another one."""
    if client is not None and any(setting is not None for setting in settings):
        raise ConfigurationError("pass either client= or what makes one (api_key=, base_url= and so on), not both")


def check_numbers(options: Mapping[str, object], names: Iterable[str]) -> None:
    """Raise for an option of these that is not a number."""
    for name in names:
        value = options.get(name, 0)
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
            raise SetupError(f"{name} is {value!r}; it is a number")


def check_count(options: Mapping[str, object], name: str, *, least: int | None = None, told: str | None = None) -> None:
    """Raise if this option is not a whole number, or less than `least`. The error calls it `told`."""
    value = options.get(name, least or 0)
    if not isinstance(value, int) or isinstance(value, bool) or (least is not None and value < least):
        wanted = "a whole number" if least is None else f"a whole number, {least} or more"
        raise SetupError(f"{told or name} is {value!r}; it is {wanted}")


def check_mapping(value: object, told: str) -> None:
    """Raise for an option that must be a dict."""
    if not isinstance(value, Mapping):
        raise SetupError(f"{told} must be a dict, not {type(value).__name__}")


def check_timeout(timeout: object) -> None:
    """Raise for what is no number of seconds. An object of the HTTP library, with one number per part, is good."""
    if isinstance(timeout, str | bytes | bool) or (isinstance(timeout, int | float) and not timeout >= 0):
        raise SetupError(f"the model's timeout is {timeout!r}; it is a number of seconds, 0 or more")


def check_headers(headers: object) -> None:
    """Raise for names and values that no header can have."""
    check_mapping(headers, "extra_headers")
    assert isinstance(headers, Mapping)
    for name, value in headers.items():
        if not _fits_header(name) or " " in str(name):
            raise SetupError(f"extra_headers has a name that no header can have: {str(name)!r}")
        if isinstance(value, int | float | list | tuple | dict) or value is None:
            raise SetupError(f"the header {name!r} in extra_headers is {type(value).__name__}; it must be text")
        if isinstance(value, str) and not _fits_header(value):
            raise SetupError(f"the header {name!r} in extra_headers has characters that no header can have")


def check_json(*parts: Mapping[str, object]) -> None:
    """Raise for options that can't be sent as JSON."""
    try:
        json.dumps([dict(part) for part in parts], default=_to_plain, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise SetupError(f"the model's options can't be sent as JSON: {describe(error)}") from None


def _fits_header(text: object) -> bool:
    return isinstance(text, str) and text.isascii() and text.replace("\t", " ").isprintable()


def _to_plain(value: object) -> object:
    """What an SDK can write besides plain JSON."""
    if isinstance(value, datetime):
        return str(value)
    if hasattr(value, "model_dump"):
        return None  # a pydantic model: the SDK writes it
    raise TypeError(f"{type(value).__name__} can't be written as JSON")

# SPDX-License-Identifier: Apache-2.0
"""Responses that are JSON. `to_json` writes any value; a response of unknown size is written in a thread."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from starlette.responses import Response

_encoder = msgspec.json.Encoder(enc_hook=str)


def to_json(value: Any) -> bytes:
    """Any value as JSON: lone surrogates are escaped, objects that JSON does not know become their `str`."""
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:  # a lone surrogate, from a model or a tool
        return json.dumps(msgspec.to_builtins(value, enc_hook=str)).encode()


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(to_json(value), status, headers, media_type="application/json")


_one_at_a_time = threading.Lock()
"""One large response at a time: each thread that computes takes interpreter time from the event loop."""


async def large_json_response(
    head: dict[str, Any], name: str, items: Callable[[], Iterable[Any]], status: int = 200
) -> Response:
    """An object whose last field is a list of any size. A thread writes it item by item, so that the event loop is not
    blocked.
    """

    def write() -> bytes:
        with _one_at_a_time:
            written = [to_json(head)[:-1] + b',"%b":[' % name.encode()]
            for item in items():
                written += (to_json(item), b",")
            if len(written) > 1:
                written.pop()  # the last comma
            written.append(b"]}")
            return b"".join(written)

    return Response(await asyncio.to_thread(write), status, media_type="application/json")

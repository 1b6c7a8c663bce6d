# SPDX-License-Identifier: Apache-2.0
"""Gemini as a pair: the fake, and the model that talks to it, on both ways through the SDK."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from andon.models.google import Gemini, wire

ID = "gemini-3.8-flash"
OLD = "gemini-2.5-flash"


def model(fake: Any, id: str = ID, **options: Any) -> Gemini:
    return Gemini(id, fake.api_key, fake.base_url, **options)


@contextmanager
def public_way() -> Iterator[None]:
    """As if the private names of the SDK were gone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire, "find_wire", lambda client: None)
        yield


@pytest.fixture(params=["wire", "public"])
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """Both ways through the SDK, one after the other."""
    if request.param == "wire":
        yield request.param
    else:
        with public_way():
            yield request.param

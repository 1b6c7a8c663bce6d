# SPDX-License-Identifier: Apache-2.0
"""One Chromium for the tests of a file. Playwright runs an event loop in this thread, where other tests need none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from bench.network import network_at_rest
from tests.support.browser import chromium


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as launched:
        yield launched


@pytest.fixture(autouse=True)
def _network() -> Iterator[None]:
    with network_at_rest():
        yield

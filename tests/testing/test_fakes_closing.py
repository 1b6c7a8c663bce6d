# SPDX-License-Identifier: Apache-2.0
"""A fake that closes just as a client connects leaves no socket behind."""

from __future__ import annotations

import gc
import socket
from urllib.parse import urlsplit

import pytest

from andon.testing.providers import FakeChat


def test_what_was_accepted_as_it_closed_is_closed_too(recwarn: pytest.WarningsRecorder) -> None:
    for _ in range(20):
        with FakeChat() as fake:
            client = socket.create_connection(("127.0.0.1", urlsplit(fake.base_url).port or 0))
        client.close()
    gc.collect()  # an unclosed socket would be told here, as an error
    assert not recwarn.list

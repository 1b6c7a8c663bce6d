# SPDX-License-Identifier: Apache-2.0
"""The same databases as the store's own tests have, and one that the tests of a module share."""

from collections.abc import Generator, Iterator

import pytest

from tests.cli.conftest import andon
from tests.conftest import no_store_left_open
from tests.store.conftest import database, own_server, postgres_url, second_postgres_url, server, sqlite_url
from tests.store.server import Server

__all__ = ["andon", "own_server", "postgres_url", "second_postgres_url", "server", "sqlite_url"]


@pytest.fixture(scope="module")
def shared_url(server: Server) -> Iterator[str]:
    """For tests that each have runs and sessions of their own."""
    with database(server) as url:
        yield url


@pytest.fixture(autouse=True, scope="module")
def _no_store_is_left_open() -> Generator[None]:
    """By the end of the module: its tests share servers and workers, whose stores start threads when they need them."""
    with no_store_left_open():
        yield

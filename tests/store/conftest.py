# SPDX-License-Identifier: Apache-2.0
"""The databases that stores are tested on: a file for each test, and a real Postgres, one server for each worker."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.store.server import HASTY, Server

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Not among pytest's folders: those are for their owner alone, and Postgres never runs as root."""
    folder = Path(tempfile.mkdtemp(prefix="andon-pg-"))
    shared = tmp_path_factory.getbasetemp().parent if os.environ.get("PYTEST_XDIST_WORKER") else folder
    server = Server(folder, shared)
    yield server
    server.stop()
    shutil.rmtree(folder)


@pytest.fixture
def own_server(server: Server) -> Iterator[Server]:
    """One that may be killed, or set up anew: nobody else uses it. (The first one has made what both need.)"""
    folder = Path(tempfile.mkdtemp(prefix="andon-pg-"))
    own = Server(folder, folder, f"{HASTY}wal_writer_delay = 10s\n")  # what nobody waits for is lost in a kill
    yield own
    own.stop()
    shutil.rmtree(folder)


@contextlib.contextmanager
def database(server: Server) -> Iterator[str]:
    name = f"test_{next(_numbers)}"
    with psycopg.connect(server.url("postgres"), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} STRATEGY file_copy")
        yield server.url(name)
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def postgres_url(server: Server) -> Iterator[str]:
    with database(server) as url:
        yield url


@pytest.fixture
def second_postgres_url(server: Server) -> Iterator[str]:
    with database(server) as url:
        yield url


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/andon.db"


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    """A database that several processes can share."""
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def any_url(request: pytest.FixtureRequest) -> str:
    return "memory://" if request.param == "memory" else str(request.getfixturevalue(f"{request.param}_url"))

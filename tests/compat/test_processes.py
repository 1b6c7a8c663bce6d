# SPDX-License-Identifier: Apache-2.0
"""Agents in processes that were forked, spawned, or forked by multiprocessing's server."""

from __future__ import annotations

import pytest

from tests.compat.programs import run_program


def test_fork() -> None:
    assert run_program("forked.py") == "fine\n"


def test_fork_with_a_run_in_flight() -> None:
    assert run_program("forked_in_flight.py") == "fine\n"


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_spawn(method: str) -> None:
    assert run_program("spawned.py", method) == "fine\n"

# SPDX-License-Identifier: Apache-2.0
"""nest_asyncio, which changes asyncio for the whole interpreter: so in one of its own."""

from __future__ import annotations

from tests.compat.programs import run_program


def test_a_notebooks_cells() -> None:
    assert run_program("nested.py") == "fine\n"

# SPDX-License-Identifier: Apache-2.0
"""The processes of tools are not measured for coverage: that would take longer than they are given to end.

And a database for the tools that use one.
"""

import pytest

from tests.conftest import MEASURE_PROGRAMS
from tests.store.conftest import postgres_url, server

__all__ = ["postgres_url", "server"]


@pytest.fixture(autouse=True)
def _processes_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MEASURE_PROGRAMS, raising=False)

# SPDX-License-Identifier: Apache-2.0
"""The processes of tools are not measured for coverage: that would take longer than they are given to end."""

import pytest

from tests.conftest import MEASURE_PROGRAMS


@pytest.fixture(autouse=True)
def _processes_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MEASURE_PROGRAMS, raising=False)

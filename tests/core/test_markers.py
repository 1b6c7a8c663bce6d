# SPDX-License-Identifier: Apache-2.0
"""Every cause of a cancel has its own marker, by which the end of a conversation says why it was cut."""

from __future__ import annotations

import pytest

from andon import CancelCause
from andon.core.markers import FAILED, MARKERS, NO_ANSWER, OUT_OF_TURNS, is_cut
from andon.messages import Text, assistant


@pytest.mark.parametrize("cause", CancelCause)
def test_every_cause_has_a_marker(cause: CancelCause) -> None:
    assert cause in MARKERS, "core/markers.py: MARKERS"
    assert is_cut(assistant(Text("Half a sent"), Text(MARKERS[cause])))


def test_each_end_has_a_marker_of_its_own() -> None:
    markers = [*MARKERS.values(), FAILED, OUT_OF_TURNS, NO_ANSWER]
    assert len(set(markers)) == len(markers)
    assert set(MARKERS) == set(CancelCause)

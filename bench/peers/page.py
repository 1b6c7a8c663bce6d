# SPDX-License-Identifier: Apache-2.0
"""docs/peers.md"""

from __future__ import annotations

from bench.peers.record import Records


def write(records: Records) -> None:
    """The page."""

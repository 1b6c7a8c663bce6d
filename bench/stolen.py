# SPDX-License-Identifier: Apache-2.0
"""How much of a virtual machine's processor time others had while a figure was taken.

A machine that shares its processors with others stands still, whole milliseconds at a time, when it is their turn; and
then so does whatever is measured on it. A figure is what it is, but whoever reads it should know that.
"""

from __future__ import annotations

from pathlib import Path

PATH = Path("/proc/stat")
KINDS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
NOT_WANTED = ("idle", "iowait")


class Stolen:
    """From here on."""

    def __init__(self) -> None:
        self._before = _ticks()

    def share(self) -> float | None:
        """Of the time that was wanted so far, what others had; None where the system does not say so."""
        now = _ticks()
        if self._before is None or now is None:
            return None
        spent = {kind: now[kind] - self._before[kind] for kind in KINDS}
        wanted = sum(ticks for kind, ticks in spent.items() if kind not in NOT_WANTED)
        return max(0.0, spent["steal"] / wanted) if wanted else 0.0


def _ticks() -> dict[str, int] | None:
    """Of all processors together, since the system was started."""
    try:
        name, *ticks = PATH.read_text(encoding="ascii").partition("\n")[0].split()
    except OSError:
        return None
    return dict(zip(KINDS, map(int, ticks), strict=False)) if name == "cpu" and len(ticks) >= len(KINDS) else None

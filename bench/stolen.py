# SPDX-License-Identifier: Apache-2.0
"""The CPU steal while a figure was measured: CPU time that this virtual machine wanted and other machines used.

A machine that shares its processors stops for whole milliseconds when other machines have their turn, and so does
everything that is measured on it. (Steal that the host does not report, and a container's used-up quota, look like
0 %.)
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
        """Of the processor time that was wanted so far, what others had; None where the system does not say so."""
        now = _ticks()
        if self._before is None or now is None:
            return None
        # A machine that was moved to another host may count anew.
        spent = {kind: max(0, now[kind] - self._before[kind]) for kind in KINDS}
        wanted = sum(ticks for kind, ticks in spent.items() if kind not in NOT_WANTED)
        return spent["steal"] / wanted if wanted else None


def _ticks() -> dict[str, int] | None:
    """Of all processors together, since the system was started."""
    try:
        name, *ticks = PATH.read_text(encoding="ascii").partition("\n")[0].split()
        return dict(zip(KINDS, map(int, ticks[: len(KINDS)]), strict=True)) if name == "cpu" else None
    except (OSError, ValueError):
        return None

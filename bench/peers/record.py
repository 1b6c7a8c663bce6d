# SPDX-License-Identifier: Apache-2.0
"""What was measured: docs/peers.json, a record for each part, system and name.

What must stay true: each record is on the disk as soon as it is taken, so what was broken off goes on where it was.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Json = dict[str, Any]

ROOT = Path(__file__).parent.parent.parent
RECORDS = ROOT / "docs" / "peers.json"


class Records:
    """The records of a file."""

    def __init__(self, path: Path = RECORDS) -> None:
        self._path = path
        self._records = self._read()

    def _read(self) -> dict[str, Json]:
        found: dict[str, Json] = json.loads(self._path.read_text("utf-8")) if self._path.exists() else {}
        return found

    def has(self, part: str, system: str, name: str, version: str) -> bool:
        """Whether this was measured with this version of the system."""
        return self._records.get(key(part, system, name), {}).get("version") == version

    def add(self, part: str, system: str, name: str, version: str, values: Json) -> None:
        values = rounded(values)
        stamp = {"version": version, "date": time.strftime("%Y-%m-%d", time.gmtime()), "machine": machine()}
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            # Several systems may be measured at the same time, by a process each.
            fcntl.flock(folder, fcntl.LOCK_EX)
            self._records = {**self._read(), key(part, system, name): {**stamp, "values": values}}
            text = json.dumps(dict(sorted(self._records.items())), indent=1, ensure_ascii=False)
            fresh = self._path.with_suffix(".new")
            fresh.write_text(text + "\n", "utf-8")
            fresh.replace(self._path)
        finally:
            os.close(folder)

    def values(self, part: str, system: str, name: str) -> Json | None:
        """What was measured, or None."""
        record = self._records.get(key(part, system, name))
        return None if record is None else record["values"]

    def version(self, system: str) -> str | None:
        """The version of a system that was installed."""
        record = self._records.get(key("system", system, "all"))
        return None if record is None or record["values"]["failure"] else record["version"]

    def all(self) -> Iterator[tuple[str, str, str, Json]]:
        """Part, system, name and record of each."""
        for each, record in self._records.items():
            part, system, name = each.split("/", 2)
            yield part, system, name, record


def rounded(value: Any) -> Any:
    """With times to the microsecond."""
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    return [rounded(each) for each in value] if isinstance(value, list) else value


def key(part: str, system: str, name: str) -> str:
    return f"{part}/{system}/{name}"


def machine() -> str:
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"

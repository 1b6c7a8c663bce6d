# SPDX-License-Identifier: Apache-2.0
"""A measurement in an interpreter of its own, so that no other one has warmed it up or filled its memory."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

Values = dict[str, float]

ROOT = Path(__file__).parent.parent


def measure(function: Callable[..., Values], *args: float | str) -> Values:
    """Call a function of a module in a fresh interpreter, and return its answer."""
    command = [sys.executable, "-m", "bench.fresh", function.__module__, function.__name__, json.dumps(args)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True)
    values: Values = json.loads(done.stdout)
    return values


if __name__ == "__main__":
    module, name, arguments = sys.argv[1:]
    print(json.dumps(getattr(importlib.import_module(module), name)(*json.loads(arguments))))

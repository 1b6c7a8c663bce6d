# SPDX-License-Identifier: Apache-2.0
"""The import time in a fresh interpreter, without the time of the interpreter itself; asyncio for comparison.

`import andon` loads nothing until the first name is used, so the import of that name is measured too.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time

from bench.fresh import ROOT
from bench.report import Figure, Goal, Progress, Row

# Timed inside, since the difference of two whole processes drowns in the noise of starting them.
TIMED = "import time; began = time.perf_counter(); {}; print(time.perf_counter() - began)"
IMPORTS: dict[str, tuple[Goal, ...]] = {
    "import asyncio": (),
    "import andon": (Goal("seconds", 0.1),),
    "from andon import Agent": (Goal("seconds", 0.1),),
}


class Interpreter:
    """Starts programs that find all bytecode written, as they do after an installation, wherever the sources are."""

    def __init__(self, cache: str) -> None:
        self._environment = {**os.environ, "PYTHONPYCACHEPREFIX": cache}
        self._environment.pop("PYTHONDONTWRITEBYTECODE", None)

    def start(self, program: str) -> tuple[float, str]:
        command = [sys.executable, "-c", program]
        began = time.perf_counter()
        done = subprocess.run(command, cwd=ROOT, env=self._environment, stdout=subprocess.PIPE, check=True, text=True)
        return time.perf_counter() - began, done.stdout


def measure(quick: bool, progress: Progress) -> Figure:
    repeats = 3 if quick else 31
    programs = {name: TIMED.format(name) for name in IMPORTS}
    bare: list[float] = []
    taken: dict[str, list[float]] = {name: [] for name in IMPORTS}
    with tempfile.TemporaryDirectory() as cache:
        interpreter = Interpreter(cache)
        for program in programs.values():
            interpreter.start(program)  # writes the bytecode
        for repeat in range(repeats):
            progress(repeat + 1, repeats, "fresh interpreters")
            bare.append(interpreter.start("pass")[0])
            for name, program in programs.items():
                taken[name].append(float(interpreter.start(program)[1]))
    figure = Figure("startup", f"a fresh interpreter, medians of {repeats}")
    figure.rows.append(Row("the interpreter alone", {"seconds": statistics.median(bare)}))
    for name, goals in IMPORTS.items():
        figure.rows.append(Row(name, {"seconds": statistics.median(taken[name])}, goals))
    return figure

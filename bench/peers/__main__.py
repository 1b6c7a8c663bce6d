# SPDX-License-Identifier: Apache-2.0
"""The command line of the comparison."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.peers import over_http, page, readme
from bench.peers.environments import SYSTEMS, System
from bench.peers.lines import PeerError
from bench.peers.parts import PARTS, Json, Size, Step, situation, situations_of
from bench.peers.progress import Bar
from bench.peers.record import RECORDS, Records
from bench.peers.situations import Situation

QUICK = Size(attempts=1, cancels=5)


@dataclass(frozen=True)
class Piece:
    """What is measured and recorded at once."""

    part: str
    system: System
    name: str
    measure: Callable[[System, Size, Step], Json]

    def __str__(self) -> str:
        return f"{self.system.name}, {self.part} {self.name}"


def pieces(system: System) -> Iterator[Piece]:
    for each in situations_of(system):
        yield Piece("situation", system, each.name, partial(_situation, each))
    for name, measure in PARTS.items():
        yield Piece(name, system, "all", measure)
    for kind, (_, places) in over_http.KINDS.items() if over_http.dialect_of(system.name) else ():
        for sqlite in places:
            yield Piece("http", system, over_http.name_of(kind, sqlite), partial(_http, kind, sqlite))


def _situation(which: Situation, system: System, size: Size, step: Step) -> Json:
    return situation(system, which, size, step)


def _http(kind: str, sqlite: bool, system: System, size: Size, step: Step) -> Json:
    dialect = over_http.dialect_of(system.name)
    assert dialect is not None
    return over_http.measure(dialect, kind, sqlite, size, step)


def main() -> None:
    names = [system.name for system in SYSTEMS]
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description="Andon and six others, side by side.")
    parser.add_argument("systems", nargs="*", metavar="SYSTEM", help=f"{', '.join(names)}; all of them by default")
    parser.add_argument(
        "--part", action="append", help="only this part: situation, fast, random, http; may be repeated"
    )
    parser.add_argument("--again", action="store_true", help="also what was measured already, with the same version")
    parser.add_argument("--minutes", type=float, help="begin no further piece after so many minutes")
    parser.add_argument(
        "--quick", action="store_true", help="one attempt of each, to see that it works; needs --record"
    )
    parser.add_argument("--record", type=Path, default=RECORDS, help="instead of docs/peers.json; without it, no page")
    parser.add_argument("--page", action="store_true", help="only make docs/peers.md from docs/peers.json")
    options = parser.parse_args()
    if unknown := set(options.systems) - set(names):
        parser.error(f"there is no system {min(unknown)!r}; there are: {', '.join(names)}")
    if options.quick and options.record == RECORDS:
        parser.error("--quick measures too little to be recorded there: give --record a file")
    records = Records(options.record)
    if not options.page:
        chosen = [each for each in SYSTEMS if not options.systems or each.name in options.systems]
        until = None if options.minutes is None else time.monotonic() + options.minutes * 60
        if not run(chosen, options.part, records, QUICK if options.quick else Size(), until, again=options.again):
            print("Not all was measured; the same command goes on.", file=sys.stderr)
    if options.record == RECORDS:
        page.write(records)
        readme.write(records)


def run(
    systems: list[System], parts: list[str] | None, records: Records, size: Size, until: float | None, *, again: bool
) -> bool:
    """Measure what is not recorded yet. Returns whether all of it was measured."""
    open_pieces: list[tuple[Piece, str]] = []
    for system in systems:
        if system.failure is not None:
            records.add("system", system.name, "all", "-", {"failure": system.failure})
            continue
        version = system.version()
        facts = {"versions": system.versions(), "distributions": system.distributions(), "failure": None}
        if not records.has("system", system.name, "all", version):
            records.add("system", system.name, "all", version, facts)
        wanted = [each for each in pieces(system) if not parts or each.part in parts]
        open_pieces += [
            (each, version) for each in wanted if again or not records.has(each.part, system.name, each.name, version)
        ]
    bar = Bar(len(open_pieces))
    for piece, version in open_pieces:
        if until is not None and time.monotonic() > until:
            return False
        bar.begin(str(piece))
        try:
            values = piece.measure(piece.system, size, bar.step)
            records.add(piece.part, piece.system.name, piece.name, version, values)
            bar.end("measured")
        except PeerError as error:
            records.add(piece.part, piece.system.name, piece.name, version, {"failure": str(error)})
            bar.end(f"failed: {error}")
    return True


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Which processes have held each run, one after the other: written down by the database itself, with each change.

No process is asked, so what it says holds for those that were killed too.
"""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
from collections import defaultdict
from typing import NamedTuple

import psycopg

_TABLE = "CREATE TABLE chaos_holders (place {}, run_id text, owner text, epoch integer, status text, events integer)"
_NOTE = """
INSERT INTO chaos_holders (run_id, owner, epoch, status, events) VALUES (
  NEW.run_id, NEW.owner, NEW.epoch, NEW.status,
  (SELECT coalesce(max(seq), 0) FROM andon_events WHERE number = NEW.number)
)
"""
_POSTGRES = f"""
{_TABLE.format("bigserial PRIMARY KEY")};
CREATE FUNCTION chaos_note_holder() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {_NOTE}; RETURN NULL; END $$;
CREATE TRIGGER chaos_new AFTER INSERT ON andon_runs FOR EACH ROW EXECUTE FUNCTION chaos_note_holder();
CREATE TRIGGER chaos_change AFTER UPDATE ON andon_runs FOR EACH ROW
WHEN ((OLD.owner, OLD.epoch, OLD.status) IS DISTINCT FROM (NEW.owner, NEW.epoch, NEW.status))
EXECUTE FUNCTION chaos_note_holder();
"""
_SQLITE = f"""
{_TABLE.format("integer PRIMARY KEY")};
CREATE TRIGGER chaos_new AFTER INSERT ON andon_runs BEGIN {_NOTE}; END;
CREATE TRIGGER chaos_change AFTER UPDATE ON andon_runs
WHEN (OLD.owner, OLD.epoch, OLD.status) IS NOT (NEW.owner, NEW.epoch, NEW.status) BEGIN {_NOTE}; END;
"""
_READ = "SELECT run_id, owner, epoch, status, events FROM chaos_holders ORDER BY place"


class Hold(NamedTuple):
    """A run's row, as it was from then on."""

    owner: str | None
    """The process that holds it; None if it waits, or has ended."""
    epoch: int
    status: str
    events: int
    """How many events it had by then."""


class Holders:
    """The holders of all runs of one database."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._holds: dict[str, list[Hold]] = defaultdict(list)

    def begin(self) -> None:
        """From now on write them down. The tables are there already."""
        if self._url.startswith("sqlite"):
            with contextlib.closing(self._open_file()) as file:
                file.executescript(_SQLITE)
        else:
            with psycopg.connect(self._url) as connection:
                connection.execute(_POSTGRES)

    def read(self) -> None:
        if self._url.startswith("sqlite"):
            with contextlib.closing(self._open_file()) as file:
                rows = file.execute(_READ).fetchall()
        else:
            with psycopg.connect(self._url) as connection:
                rows = connection.execute(_READ).fetchall()
        for run_id, *hold in rows:
            self._holds[run_id].append(Hold(*hold))

    def _open_file(self) -> sqlite3.Connection:
        return sqlite3.connect(self._url.removeprefix("sqlite:///"))

    def of(self, run_id: str) -> list[Hold]:
        return self._holds[run_id]

    def stored_when_lost(self, run_id: str) -> int | None:
        """If the run was taken from a process that held it: how many events that one had stored. What it had shown
        beyond them is lost. None if each process has let go of it: it pauses or ends a run with all that it has shown.
        """
        holds = self._holds[run_id]
        lost = [b.events for a, b in itertools.pairwise(holds) if a.owner and b.owner and a.epoch < b.epoch]
        return min(lost, default=None)

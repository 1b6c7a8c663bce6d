# SPDX-License-Identifier: Apache-2.0
"""Checks that the tables still have the version that this process has opened: a newer process may have migrated them.

In migrated tables, what an older process writes may mean something else. So the older process stops using them. With
SQLite each transaction checks the version, which costs almost nothing. With Postgres a call checks it every few
seconds, and the first call after an error does.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable

from andon.errors import StoreError
from andon.store.sql.address import Address
from andon.store.sql.schema import VERSION

log = logging.getLogger(__name__)

LOOK_SECONDS = 3.0

_LOOK = "SELECT version FROM andon_meta"


class Version:
    """The version of one database's tables, as it was found last."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._every = 0.0 if address.path is not None else LOOK_SECONDS
        self._due = -math.inf
        self._found = VERSION

    def check(self, ask: Callable[[str], int | None]) -> None:
        """Read the version, if it is time to, and raise if it has changed."""
        if self._found == VERSION and time.monotonic() >= self._due:
            self.compare(ask(_LOOK))
        self._refuse()

    def suspect(self) -> None:
        """There was an error: the next call reads the version."""
        self._due = -math.inf

    def compare(self, found: int | None) -> None:
        """Note the version that was found. If it has changed, raise, now and in every later call."""
        self._due = time.monotonic() + self._every
        if found != VERSION and self._found == VERSION and found is not None:
            self._found = found
            log.critical("%s", self._words())
        self._refuse()

    def _refuse(self) -> None:
        # Not a SchemaError, which says that a run was refused. This run may have begun, and can't be ended from here.
        if self._found != VERSION:
            raise StoreError(self._words())

    def _words(self) -> str:
        return (
            f"the tables of {self._address.shown} were changed to version {self._found} while this process was working "
            f"with {VERSION}: it writes nothing more, and its runs end as lost. Restart it with the new version of "
            f"Andon."
        )

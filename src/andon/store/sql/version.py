# SPDX-License-Identifier: Apache-2.0
"""Whether the tables are still those that this process has opened: a newer one may have migrated them meanwhile.

What a process of the older version would write then, the new tables may take for something else. So it does nothing
more. With SQLite each transaction looks, which costs next to nothing; a server is asked every few seconds, by a call
that asks it something anyway, and again after every error.
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
    """The version of one database's tables, as it was found, and as it is."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._every = 0.0 if address.path is not None else LOOK_SECONDS
        self._due = -math.inf
        self._found = VERSION

    def check(self, ask: Callable[[str], int | None]) -> None:
        """Look, if it is time to, and raise if it is another one."""
        if self._found == VERSION and time.monotonic() >= self._due:
            self.compare(ask(_LOOK))
        self._refuse()

    def suspect(self) -> None:
        """Something went wrong: the next call looks."""
        self._due = -math.inf

    def compare(self, found: int | None) -> None:
        """That is what was found. Raise if it is another one: from then on every call does."""
        self._due = time.monotonic() + self._every
        if found != VERSION and self._found == VERSION and found is not None:
            self._found = found
            log.critical("%s", self._words())
        self._refuse()

    def _refuse(self) -> None:
        # Not a SchemaError, which says that a run was refused: it may have begun, and only can't be ended from here.
        if self._found != VERSION:
            raise StoreError(self._words())

    def _words(self) -> str:
        return (
            f"the tables of {self._address.shown} were changed to version {self._found} while this process was working "
            f"with {VERSION}: it writes nothing more, and its runs end as lost. Restart it with the new version of "
            f"Andon."
        )

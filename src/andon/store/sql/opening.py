# SPDX-License-Identifier: Apache-2.0
"""A database is opened once, by the first call that needs it; the others wait for that."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

from andon.errors import StoreError


class Opening:
    """Done, or yet to be done. After a failure it is tried again."""

    def __init__(self, shown: str) -> None:
        self._shown = shown
        self._lock = threading.Lock()
        self._failed = -math.inf
        self.done = False

    def ensure(self, do: Callable[[], None], since: float) -> None:
        """Have it done. Calls that have waited since before a failure are told of it at once: if each tried by itself,
        the last one would wait as many times as long as there are of them.
        """
        with self._lock:
            if self.done:
                return
            if since < self._failed:
                raise StoreError(f"the database {self._shown} could not be opened. Trying again may help.")
            try:
                do()
            except StoreError:
                self._failed = time.monotonic()
                raise
            self.done = True

# SPDX-License-Identifier: Apache-2.0
"""A database is opened once, by the first call that needs it. Other calls wait for that."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

from andon.errors import StoreError


class Opening:
    """Opens once. After a failure, a later call tries again."""

    def __init__(self, shown: str) -> None:
        self._shown = shown
        self._lock = threading.Lock()
        self._failed = -math.inf
        self.done = False

    def ensure(self, do: Callable[[], None], since: float) -> None:
        """Open, unless that is done. A call that was waiting when another one failed fails at once too. If each tried
        by itself, the last one would wait for all the attempts before it.
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

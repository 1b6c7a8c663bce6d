# SPDX-License-Identifier: Apache-2.0
"""Where conversations and runs are kept. The seam is `andon.core.store`; here are its implementations.

A database is an extra: `open_store` and `open_events` import what a URL needs, and `andon.store.sql` has the class.
"""

from andon.store.memory import MemoryStore
from andon.store.open import open_events, open_store

__all__ = ["MemoryStore", "open_events", "open_store"]

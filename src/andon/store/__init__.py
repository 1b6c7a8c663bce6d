# SPDX-License-Identifier: Apache-2.0
"""Where conversations and runs are kept. The seam is `andon.core.store`; here are its implementations."""

from andon.store.memory import MemoryStore

__all__ = ["MemoryStore"]

# SPDX-License-Identifier: Apache-2.0
"""When to try a model call again, and how long to wait first."""

from __future__ import annotations

from msgspec import Struct

from andon.errors import ModelError


class Retry(Struct, frozen=True, gc=False):
    """Exponential back-off with jitter. Only for errors that are retryable, and only before any output was shown."""

    attempts: int = 3
    """How often a call is tried in total; 1 switches retries off."""
    base_seconds: float = 0.5
    cap_seconds: float = 20.0
    longest_seconds: float = 60.0
    """If the provider asks for a longer wait than this, the call fails at once and says so."""

    def delay(self, error: Exception, attempt: int) -> float | None:
        """How long to wait after the `attempt`-th failure; None to give up."""
        if not isinstance(error, ModelError) or not error.retryable or attempt >= self.attempts:
            return None
        if error.retry_after is not None:
            return error.retry_after if error.retry_after <= self.longest_seconds else None
        import random  # here, because it is slow to import, and most runs never need it

        longest: float = min(self.cap_seconds, self.base_seconds * 2 ** (attempt - 1))
        return longest * random.uniform(0.5, 1.0)

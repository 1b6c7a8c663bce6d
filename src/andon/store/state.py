# SPDX-License-Identifier: Apache-2.0
"""The size limit of a session's state. Each change reads and writes the whole state, so its size is its cost."""

from __future__ import annotations

from andon.errors import ConfigurationError, StateTooLargeError

MAX_STATE = 256 * 2**10
"""In bytes, as JSON, unless a store was made with another limit."""


def checked_limit(limit: int) -> int:
    if not (isinstance(limit, int) and not isinstance(limit, bool) and limit >= 2):
        raise ConfigurationError(f"max_state is {limit!r}; it is a whole number of bytes, 2 or more")
    return limit


def check_size(size: int, limit: int) -> None:
    """Raise if a state of this number of bytes is too large."""
    if size > limit:
        raise StateTooLargeError(
            f"the session's state would take {size:,} bytes as JSON, and may take {limit:,}; it was left as it was."
            " Store large values elsewhere, and keep a reference to them in the state"
        )

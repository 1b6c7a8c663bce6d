# SPDX-License-Identifier: Apache-2.0
"""The time limits after a cancel, and the other limits of a runtime. `Runtime` documents each of them."""

from __future__ import annotations

from msgspec import Struct

from andon.core.receipt import is_seconds
from andon.errors import ConfigurationError


class Bounds(Struct, frozen=True, gc=False):
    """The bounds of a runtime's runs. Those that are not called threads are in seconds."""

    arm_seconds: float
    cut_seconds: float
    abandon_seconds: float
    hook_seconds: float
    settle_seconds: float
    child_seconds: float
    lease_seconds: float
    kill_seconds: float
    abandoned_threads: int
    abandoned_user_threads: int
    finish_seconds: float = 10.0
    undo_seconds: float = 5.0

    def check(self) -> None:
        """Raise if one of them is not a valid bound."""
        for name in Bounds.__struct_fields__:
            if (value := getattr(self, name)) is None or not is_seconds(value):
                raise ConfigurationError(f"{name} is {value!r}; it must be a number, 0 or more")

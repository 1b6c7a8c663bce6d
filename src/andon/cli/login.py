# SPDX-License-Identifier: Apache-2.0
"""The login name of the user who runs a command: `by` in the receipt of a cancel."""

from __future__ import annotations

import getpass


def login_name() -> str | None:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return None

# SPDX-License-Identifier: Apache-2.0
"""Which line is the user's own, wherever a package that raises has been installed."""

from __future__ import annotations

import sysconfig
from typing import Any

import pytest

from andon.core.source_lines import users_line_of

PLACES = [
    sysconfig.get_paths()["purelib"],
    "/home/ada/.local/lib/python3.13/site-packages",  # pip install --user
    "/usr/lib/python3/dist-packages",  # the system's, below a virtual environment that sees it
]


@pytest.mark.parametrize("place", PLACES)
def test_an_installed_package_is_not_the_user_s_own(place: str) -> None:
    package: dict[str, Any] = {}
    exec(compile("def get():\n    raise LookupError", f"{place}/package/client.py", "exec"), package)
    with pytest.raises(LookupError) as raised:
        package["get"]()
    line = users_line_of(raised.value)
    assert line is not None
    assert (line.file, line.text) == (__file__, 'package["get"]()')

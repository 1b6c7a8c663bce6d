# SPDX-License-Identifier: Apache-2.0
"""How often a race is run: a tenth as often where the variable ANDON_TEST_AGAIN says that it was run before.

On the first Python a race is run so often that it meets rare orders of steps, too. Another Python and another event
loop have orders of their own, which they take each time.
"""

from __future__ import annotations

import os

VARIABLE = "ANDON_TEST_AGAIN"


def times(number: int) -> int:
    return number // 10 if os.environ.get(VARIABLE) else number

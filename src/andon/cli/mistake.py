# SPDX-License-Identifier: Apache-2.0
"""What commands raise for something that the user can put right."""


class Mistake(Exception):  # noqa: N818 - it is the user's, and no error of ours
    """One sentence that says what is wrong and what to do."""

# SPDX-License-Identifier: Apache-2.0
"""Runs and their cancelling. Knows only errors and messages; what a run does is given to it (`work`)."""

import logging

# A library leaves it to the program what becomes of its log.
logging.getLogger("andon").addHandler(logging.NullHandler())

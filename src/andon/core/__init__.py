# SPDX-License-Identifier: Apache-2.0
"""Runs and their cancelling. Knows only errors and messages; what a run does is given to it (`work`)."""

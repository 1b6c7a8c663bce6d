# SPDX-License-Identifier: Apache-2.0
"""Runs on a store that several processes share. It imports `core/run`; nothing there imports this."""

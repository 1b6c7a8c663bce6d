# SPDX-License-Identifier: Apache-2.0
"""Tools: what a tool is to the loop (`base`), and functions as tools (`function`)."""

# SPDX-License-Identifier: Apache-2.0
"""The agent (`agent`), what it does (`loop`), and how that is brought to a valid end (`settle`)."""

# SPDX-License-Identifier: Apache-2.0
"""Andon and six other frameworks, each in an environment of its own, side by side. `make bench-peers` runs all of it.
"""

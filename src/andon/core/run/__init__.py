# SPDX-License-Identifier: Apache-2.0
"""A run, made of parts. `run.py` puts them together."""

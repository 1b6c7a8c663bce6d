# SPDX-License-Identifier: Apache-2.0
"""Andon in the surroundings that docs/compatibility.md lists: each row there names its proof here."""

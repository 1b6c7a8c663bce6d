# SPDX-License-Identifier: Apache-2.0
"""Gemini's API: how it writes answers (gemini), and what it rejects (rules, history).

`errors` has the errors in Google's shape. `memory` is what the fake remembers of the signatures that it issued.
"""

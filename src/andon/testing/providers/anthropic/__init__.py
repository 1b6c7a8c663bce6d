# SPDX-License-Identifier: Apache-2.0
"""Anthropic's API: how it writes answers (messages), and what it rejects.

`rules` checks a request, `blocks` the blocks of its messages, `schemas` the schema of its output. `memory` is what the
fake remembers of its answers. `errors` are Anthropic's errors, in its words as far as they are known.
"""

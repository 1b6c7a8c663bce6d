# SPDX-License-Identifier: Apache-2.0
"""Bedrock's Converse: how it writes answers (converse, in the binary frames of frames), and what it rejects.

`rules` checks a request, with `history_rules` for its messages and `tool_rules` for tools and output; `errors` has the
service's form of an error. `memory` is what is known of the signatures that were issued.
"""

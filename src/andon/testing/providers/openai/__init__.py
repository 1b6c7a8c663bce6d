# SPDX-License-Identifier: Apache-2.0
"""OpenAI's two APIs: how they write answers (chat, responses), and what they reject (chat_rules, responses_rules).

`rules` has the checks and the errors that both share. `memory` is what Responses remembers of its answers.
"""

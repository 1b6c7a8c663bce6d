# SPDX-License-Identifier: Apache-2.0
"""Anthropic's models, on the official SDK: `Anthropic`.

    model         the model: its options, and the body of a request
    conversation  the conversation as it is sent
    answer        what is received
    seals         what must be sent back as it came: signed thinking, blocks of the provider's own tools
    endpoint      where requests go, and when one is sent again
    limits        how many tokens an answer of a model may have
    clients       how a client is made, and which secrets it sends
    errors        what Anthropic's codes mean, and how its SDK reports errors
    media         images and files
    schema        JSON schemas for structured output

Everything else is in `models/common`. The SDK is imported at the first request, not here.
"""

from andon.models.anthropic.model import Anthropic

__all__ = ["Anthropic"]

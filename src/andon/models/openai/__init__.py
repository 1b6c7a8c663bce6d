# SPDX-License-Identifier: Apache-2.0
"""OpenAI's models, on the official SDK: `OpenAIResponses`, and `OpenAIChat` for any compatible server.

    chat        Chat Completions: the model, what is sent, and what is received
    responses   Responses: the model, and what is sent
    answer      Responses: what is received
    endpoint    one interface: where requests go, and with which options; both models hold one
    clients     how a client is made, and which secrets it sends
    errors      what OpenAI's codes mean, and how its SDK reports errors
    media       images and files
    schema      JSON schemas for strict mode

Everything else is in `models/common`. The SDK is imported at the first request, not here.
"""

from andon.models.openai.chat import OpenAIChat
from andon.models.openai.responses import OpenAIResponses

__all__ = ["OpenAIChat", "OpenAIResponses"]

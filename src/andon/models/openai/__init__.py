# SPDX-License-Identifier: Apache-2.0
"""OpenAI's models, on the official SDK: `OpenAIResponses`, and `OpenAIChat` for any compatible server.

    chat        Chat Completions: what is sent, and what is received
    responses   Responses: the same
    wire        one request, from the client to the last byte; where a cancel closes the connection
    answer      the events of Responses
    clients     the SDK's clients, one per event loop and settings, and who closes them
    faults      the provider's errors in our tree
    secrets     what goes along with a request, and is kept out of what is said about it
    schema      what OpenAI wants of a JSON schema
    setup       options that can't be right, found before a run begins

The SDK is imported at the first request, not here.
"""

from andon.models.openai.chat import OpenAIChat
from andon.models.openai.responses import OpenAIResponses

__all__ = ["OpenAIChat", "OpenAIResponses"]

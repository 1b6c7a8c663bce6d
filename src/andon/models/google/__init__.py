# SPDX-License-Identifier: Apache-2.0
"""Google's Gemini, on the official SDK (google-genai): the Gemini API, and Vertex AI.

    gemini      the model: its options, and the body of a request
    history     a conversation as Gemini takes it: signatures, calls and their results
    answer      what is received
    endpoint    where requests go; an answer that Google interrupts goes on with a second request
    wire        a request on the SDK's way to its bytes, which has private names
    typed       the same request on the SDK's public way: slower, used if the private names are gone
    clients     how a client is made, and which secrets it sends
    errors      what Google's errors mean, and how its SDK reports them
    media       images and files
    schema      JSON schemas

Everything else is in `models/common`. The SDK is imported at the first request, not here.
"""

from andon.models.google.gemini import Gemini

__all__ = ["Gemini"]

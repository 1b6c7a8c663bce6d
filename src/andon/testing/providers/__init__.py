# SPDX-License-Identifier: Apache-2.0
"""Strict fakes of providers: real HTTP servers on loopback, to which the providers' own SDKs talk.

    with FakeChat([[text("Once upon a time"), stall()]]) as fake:
        model = OpenAIChat(id="any", base_url=fake.base_url, api_key=fake.api_key)

- `FakeChat`, `FakeResponses`: OpenAI's two APIs (openai/). They reject what OpenAI rejects, and keep a record of each
  request (served). What all fakes share is fake; what a fake must know of its provider is api.
- `FakeAnthropic`: Anthropic's Messages (anthropic/), with a memory of the thinking that it has signed.
- `FakeBedrock`: Amazon Bedrock's Converse (bedrock/).
- `FakeGemini`: Google's Gemini, and Vertex (google/).
- `text`, `reasoning`, `call`, … are the words of a script (script). play plays them, on the HTTP server of server.
- `connect_never` is an address at which connecting hangs (never).
"""

from andon.testing.providers.anthropic.messages import FakeAnthropic
from andon.testing.providers.bedrock.converse import FakeBedrock
from andon.testing.providers.google.gemini import FakeGemini
from andon.testing.providers.never import ConnectNever, connect_never
from andon.testing.providers.openai.chat import FakeChat
from andon.testing.providers.openai.responses import FakeResponses
from andon.testing.providers.script import (
    Answer,
    Script,
    Word,
    call,
    cut,
    end,
    fail,
    finish,
    pause,
    raw,
    reasoning,
    silence,
    stall,
    text,
    until,
    usage,
)
from andon.testing.providers.served import Served

__all__ = [
    "Answer",
    "ConnectNever",
    "FakeAnthropic",
    "FakeBedrock",
    "FakeChat",
    "FakeGemini",
    "FakeResponses",
    "Script",
    "Served",
    "Word",
    "call",
    "connect_never",
    "cut",
    "end",
    "fail",
    "finish",
    "pause",
    "raw",
    "reasoning",
    "silence",
    "stall",
    "text",
    "until",
    "usage",
]

# SPDX-License-Identifier: Apache-2.0
"""Every provider's interface as a pair: the strict fake, and the model that talks to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from andon.models.anthropic import Anthropic
from andon.models.base import Model
from andon.models.bedrock import Bedrock
from andon.models.google import Gemini
from andon.models.openai import OpenAIChat, OpenAIResponses
from andon.testing.providers import (
    FakeAnthropic,
    FakeBedrock,
    FakeChat,
    FakeGemini,
    FakeResponses,
    Script,
)

AnyFake = FakeChat | FakeResponses | FakeAnthropic | FakeBedrock | FakeGemini


@dataclass(frozen=True)
class Provider:
    name: str
    fake: Callable[..., AnyFake]
    model: Callable[[AnyFake], Model]

    def serve(self, script: Script | None = None, **options: Any) -> AnyFake:
        return self.fake(script, **options)


PROVIDERS = [
    Provider("chat", FakeChat, lambda fake: OpenAIChat("gpt-5.2", fake.api_key, fake.base_url)),
    Provider("responses", FakeResponses, lambda fake: OpenAIResponses("gpt-5.2", fake.api_key, fake.base_url)),
    Provider(
        "anthropic",
        FakeAnthropic,
        lambda fake: Anthropic("claude-opus-5-5", fake.api_key, fake.base_url, thinking=True),
    ),
    Provider(
        "bedrock",
        FakeBedrock,
        lambda fake: Bedrock("anthropic.claude-sonnet-4-5-20250929-v1:0", base_url=fake.base_url, api_key=fake.api_key),
    ),
    Provider("gemini", FakeGemini, lambda fake: Gemini("gemini-3.8-flash", fake.api_key, fake.base_url)),
]

each_provider = pytest.mark.parametrize("provider", PROVIDERS, ids=lambda provider: provider.name)

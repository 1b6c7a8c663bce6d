# SPDX-License-Identifier: Apache-2.0
"""OpenAI's two interfaces as a pair: the fake, and the model that talks to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from andon.models.openai import OpenAIChat, OpenAIResponses
from andon.testing.providers import FakeChat, FakeResponses, Script

Fake = FakeChat | FakeResponses
Model = OpenAIChat | OpenAIResponses

ID = "gpt-5.2"


@dataclass(frozen=True)
class Api:
    name: str
    make_fake: Callable[..., Fake]
    make_model: Callable[..., Model]

    def fake(self, script: Script | None = None, **options: Any) -> Fake:
        return self.make_fake(script, **options)

    def model(self, fake: Any, **options: Any) -> Model:
        return self.make_model(ID, base_url=fake.base_url, api_key=fake.api_key, **options)


APIS = [Api("chat", FakeChat, OpenAIChat), Api("responses", FakeResponses, OpenAIResponses)]

each_api = pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)

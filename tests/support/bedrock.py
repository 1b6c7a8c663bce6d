# SPDX-License-Identifier: Apache-2.0
"""Bedrock's Converse as a pair: the fake, and the model that talks to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiobotocore.config import AioConfig
from aiobotocore.session import AioSession

from andon.models.bedrock import Bedrock
from andon.testing.providers import FakeBedrock

CLAUDE = "anthropic.claude-sonnet-4-5-20250929-v1:0"
BINDING = "us.anthropic.claude-opus-5-5-20260801-v1:0"
NOVA = "us.amazon.nova-pro-v1:0"
LLAMA = "meta.llama4-maverick-17b-instruct-v1:0"


def model_of(fake: Any, id: str = CLAUDE, **options: Any) -> Bedrock:
    return Bedrock(id, base_url=fake.base_url, **{"api_key": fake.api_key, **options})


@asynccontextmanager
async def client_of(fake: FakeBedrock, **options: Any) -> AsyncIterator[Any]:
    """The SDK's own client, with AWS's signatures."""
    config = AioConfig(retries={"total_max_attempts": 1}, parameter_validation=False, **options)
    async with AioSession().create_client(
        "bedrock-runtime",
        region_name="us-east-1",
        endpoint_url=fake.base_url,
        aws_access_key_id=fake.access_key_id,
        aws_secret_access_key="the-secret-access-key",
        config=config,
    ) as client:
        yield client

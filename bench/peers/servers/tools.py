# SPDX-License-Identifier: Apache-2.0
"""The tools of the agents on servers, as plain functions."""

import asyncio
import time


async def slow(seconds: float) -> str:
    """Wait for some seconds, as an async function does."""
    await asyncio.sleep(seconds)
    return "slow is done"


def block(seconds: float) -> str:
    """Wait for some seconds, as a blocking function does."""
    time.sleep(seconds)
    return "block is done"

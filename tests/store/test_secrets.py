# SPDX-License-Identifier: Apache-2.0
"""A secret that all processes of a store share: made once, whoever asks first, and the same ever after."""

from __future__ import annotations

import asyncio

from andon.core.shared.store import SecretStore
from andon.store.sql import SQLStore
from tests.store.making import opened
from tests.support import play


def test_all_who_ask_are_told_the_same(url: str) -> None:
    async def main() -> None:
        async with opened(url) as one, opened(url) as other:
            assert isinstance(one, SecretStore)
            stores: list[SQLStore] = [one, other] * 4
            told = set(await asyncio.gather(*(store.secret("tickets") for store in stores)))
            assert len(told) == 1
            assert len(told.pop()) == 64
            assert await one.secret("tickets") != await one.secret("another")
        async with opened(url) as later:
            assert await later.secret("another") != await later.secret("tickets")

    play(main)


def test_it_is_the_same_after_a_restart(url: str) -> None:
    told: list[str] = []

    async def main() -> None:
        async with opened(url) as store:
            told.append(await store.secret("tickets"))

    play(main)
    play(main)
    assert told[0] == told[1]


def test_nothing_is_pruned_of_it(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            before = await store.secret("tickets")
            await store.prune(-3600)
            assert await store.secret("tickets") == before

    play(main)

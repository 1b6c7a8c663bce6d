# SPDX-License-Identifier: Apache-2.0
"""A fake provider in a process of its own, which sends long answers as fast as it can.

    python -m bench.provider chat 20000 1

The last number says whether every token is an HTTP chunk of its own, as servers do that flush each event, or those that
leave together share one. Prints its address, and ends with its standard input.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

from bench.fresh import ROOT

KEY = "sk-bench"
LONG = "Tell me a long story."
SHORT = "Say a few words."
"""The prompt that is answered with a few tokens, to warm up."""


def fake_of(api: str) -> Callable[..., Any]:
    """The fake of this API. Imported here, so that a measured client does not have it in its memory."""
    from andon.testing import providers

    return {
        "chat": providers.FakeChat,
        "responses": providers.FakeResponses,
        "anthropic": providers.FakeAnthropic,
        "bedrock": providers.FakeBedrock,
        "gemini": providers.FakeGemini,
    }[api]


# About as many bytes as one event has, so that there is about one event in a chunk.
_EVENT_BYTES = {"chat": 205, "responses": 250}


@contextlib.contextmanager
def provider(api: str, count: int, apart: bool) -> Iterator[str]:
    """The address of a provider in another process."""
    command = [sys.executable, "-m", "bench.provider", api, str(count), str(int(apart))]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.communicate()


def serve(api: str, count: int, apart: bool) -> None:
    from andon.testing.providers import text

    long, short = [text(pieces=["word "] * count)], [text("A few words.")]

    def script(body: dict[str, Any]) -> Any:
        return short if SHORT in json.dumps(body) else long

    with fake_of(api)(script, api_key=KEY, split=_EVENT_BYTES[api] if apart else None) as fake:
        print(fake.base_url, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), sys.argv[3] == "1")

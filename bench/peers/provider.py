# SPDX-License-Identifier: Apache-2.0
"""The strict fakes `FakeChat` and `FakeAnthropic` in a process of their own, told what to play in lines of JSON.

    python -m bench.peers.provider

It knows more of a run than its system says: which requests came, which were rejected, when a connection was closed, and
what was sent after a moment.
"""

from __future__ import annotations

import json
import math
import sys
from typing import Any

from andon.testing.providers import FakeAnthropic, FakeChat, Served
from bench.peers.scripts import Play

KEY = "sk-bench"
Json = dict[str, Any]
# Parameters of OpenAI-compatible servers that some systems send.
EXTRA: tuple[str, ...] = ()


class Provider:
    """The fakes, and the commands about them."""

    def __init__(self, chat: FakeChat, anthropic: FakeAnthropic, play: Play) -> None:
        self._fakes: dict[str, FakeChat | FakeAnthropic] = {"openai": chat, "anthropic": anthropic}
        self._fake: FakeChat | FakeAnthropic = chat
        self._play = play
        self._from = 0

    def do_play(self, command: Json) -> Json:
        """Play a situation from the next request on."""
        self._fake = self._fakes[command.get("api", "openai")]
        self._play.now, self._play.child = command["now"], command.get("child")
        self._play.delegate = tuple(command.get("delegate", ("child", {})))
        self._from = len(self._fake.served)
        return {}

    def do_wait(self, command: Json) -> Json:
        """Until a request has reached a state, or so many pieces of it were sent."""
        model, state, pieces = command.get("model"), command["state"], command.get("pieces", 0)

        def reached() -> bool:
            return any(
                state in each.reached and each.pieces_sent >= pieces and model in (None, each.body.get("model"))
                for each in self._fake.served[self._from :]
            )

        self._fake.wait_until(reached, command["timeout"], f"a request at {state!r}")
        return {}

    def do_requests(self, command: Json) -> Json:
        """What came since the situation began, and what was sent after a moment."""
        asked = command.get("asked")
        return {"requests": [describe(each, asked) for each in self._fake.served[self._from :]]}


def describe(served: Served, asked: float | None) -> Json:
    late = 0 if asked is None else served.sent_after(asked)
    a_piece = served.bytes_sent / served.pieces_sent if served.pieces_sent else math.inf
    return {
        "model": served.body.get("model"),
        "at": served.reached["received"],
        "rejected": served.error,
        "finished": served.finished,
        "over": served.over,
        "left_at": served.left_at,
        "finished_at": served.reached.get("finished"),
        "pieces": served.pieces_sent,
        "pieces_after": min(served.pieces_sent, math.ceil(late / a_piece)),
        "messages": json.dumps(served.body.get("messages")),
    }


def main() -> None:
    play = Play()
    with FakeChat(play, api_key=KEY, extra=EXTRA) as chat, FakeAnthropic(play, api_key=KEY) as anthropic:
        provider = Provider(chat, anthropic, play)
        urls = {"openai": chat.base_url, "anthropic": anthropic.base_url}
        print(json.dumps({"event": "ready", "urls": urls}), flush=True)
        for line in sys.stdin:
            command = json.loads(line)
            try:
                answer = getattr(provider, f"do_{command['do']}")(command)
            except TimeoutError as error:
                answer = {"error": str(error)[:300]}
            print(json.dumps({"answer_to": command["do"], **answer}), flush=True)


if __name__ == "__main__":
    main()

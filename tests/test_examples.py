# SPDX-License-Identifier: Apache-2.0
"""Every example is run as a user runs it: as a program, from the repository's root, warnings being errors."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.no_cover  # the examples show what other tests cover

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
HANG_SECONDS = 60

TELLING: dict[str, list[str]] = {
    "cancel_from_thread.py": [
        "-- asked to stop --",
        "ended as cancelled, ",
        "the same agent goes on: completed",
    ],
    "cookie_access.py": [
        "before: 401",
        "signed in: hello, ada",
        "our page: Once upon a time.",
        "another page: 403",
        "an EventSource: 6 events",
        "after: 401",
    ],
    "demo.py": [
        "ok  the story stopped in mid-sentence",
        "| tool find_train  | completed ",
        "| tool hold_room   | cut ",
        "| tool buy_tickets | not_started ",
        "All as promised.",
    ],
    "explore_my_agent.py": [
        "careless: 1 problem(s) in ",
        "the check failed: AssertionError: a connection is still open",
        "careful: no problem in ",
    ],
    "jwt_access.py": [
        "nobody: 401 the user of this request is not known",
        "ada: 200 Once upon a time.",
        "ada, too late: 401",
        "forged: 401",
        "bob, about ada's run: 404 agent 'storyteller' has no run 'r1'",
        "olga, an admin: 200 Once upon a time.",
    ],
    "long_conversation.py": [
        "trimmed: 9 of 23 messages",
        "summarised: 9 of 23 messages, told 6 times; it begins: 'The beginning of this conversation was l'",
        "2 summaries were written",
        "by a function: 3 of 23 messages",
        "cancelled in the middle of a summary: CANCELLED, 2 tokens were spent",
    ],
    "modes.py": [
        "now: 'Page'; no tools",
        "after_tools: 'Page'; no tools",
        "after_turn: 'Page one is done.'; save completed",
        "now: 'Page one is done.'; save cut",
        "after_tools: 'Page one is done.'; save completed",
        "after_tools, grace 0.5: ''; print_book cut",
    ],
    "own_tool_cleanup.py": [
        "transfer: rolled back call_1\n  outcome: cut; left: nothing",
        "count: stopped counting",
        "listen: woken by the cancel",
    ],
    "queue_and_supersede.py": [
        "reject: True",
        "queue: the first is COMPLETED, the second COMPLETED, 4 messages",
        "cancel: the first is CANCELLED (superseded), the second COMPLETED",
    ],
    "stop_button.py": [
        'pressed: {"outcome": "requested", "phase": "streaming", "left": "nothing"}',
        'pressed again: {"outcome": "already_finished"}',
        "the same conversation: Good to hear from you!",
    ],
    "time_limit.py": [
        "timeout=0.5: CANCELLED, cause deadline, ",
        "Text(text='Cancelled: out of time')",
        "asyncio.timeout(0.5): TimeoutError",
        "Text(text='Cancelled by the caller')",
    ],
}


def test_every_example_is_tested() -> None:
    assert sorted(TELLING) == sorted(path.name for path in EXAMPLES.glob("*.py"))


@pytest.mark.parametrize("name", sorted(TELLING))
def test_example(name: str) -> None:
    # Without a key, so that nothing leaves this machine; without a terminal and without input.
    environment = {key: value for key, value in os.environ.items() if key != "OPENAI_API_KEY"}
    ended = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name)],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stderr == ""
    for line in TELLING[name]:
        assert line in ended.stdout


def test_the_demo_fails_if_a_promise_is_broken() -> None:
    demo = runpy.run_path(str(EXAMPLES / "demo.py"))
    with pytest.raises(SystemExit, match="BROKEN  it stops"):
        demo["promise"]("it stops", False)

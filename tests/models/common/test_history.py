# SPDX-License-Identifier: Apache-2.0
"""Turns that a model declined are not sent again."""

from __future__ import annotations

from andon.core.markers import REFUSED
from andon.messages import Message, Text, ToolCall, ToolResult, assistant, user
from andon.models.common.history import without_refused

DECLINED = assistant(Text("I "), Text(REFUSED))
CALL = assistant(ToolCall("c1", "search", {}))
RESULT = Message("tool", [ToolResult("c1", "search", "found")])


def test_a_declined_turn_goes_as_a_whole() -> None:
    before, after = [user("Hi"), assistant(Text("Hello."))], [user("And now?")]
    assert without_refused([*before, user("Bad"), DECLINED, *after]) == [*before, *after]
    assert without_refused([*before, user("Bad"), CALL, RESULT, DECLINED, *after]) == [*before, *after]
    assert without_refused([user("Bad"), DECLINED, *after]) == after


def test_other_turns_stay() -> None:
    messages = [user("Hi"), CALL, RESULT, assistant(Text("Hello.")), user(REFUSED)]
    assert without_refused(messages) == messages

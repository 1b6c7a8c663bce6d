# SPDX-License-Identifier: Apache-2.0
"""Checks a conversation that the caller gives, and repairs it into a form that every provider accepts.

It is repaired as `settle` does it. A tool call without a result gets one that says that its outcome is unknown.
Consecutive messages of one role become one message. A missing answer is replaced by a text that says so. What can't be
repaired without a guess is refused, with the index of the message.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from andon.agent.call_record import CUT
from andon.agent.settle import NO_ANSWER, answer
from andon.core.store import SessionStore, Store
from andon.errors import ConfigurationError, HistoryError, say
from andon.messages import Block, File, Image, Message, Reasoning, Role, Text, ToolCall, ToolResult, assistant, sendable
from andon.tools.base import NO_OUTPUT

BEGINNING = "(the conversation begins)"
"""The user's message before a first answer: providers want a user to begin."""

_BELONGS: dict[Role, tuple[type[Block], ...]] = {
    "user": (Text, Image, File),
    "assistant": (Text, Reasoning, ToolCall),
    "tool": (ToolResult,),
}
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def check_history(given: object, store: Store) -> list[Message]:
    """The `messages` option of a run, checked and repaired. The store must keep sessions."""
    if not isinstance(store, SessionStore):
        raise ConfigurationError("messages can't be given: the store keeps runs and no sessions; use a SessionStore")
    return read_history(given)


def read_history(given: object) -> list[Message]:
    """The messages, repaired so that a prompt can follow them. Raises `HistoryError`."""
    if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        raise HistoryError(f"messages must be a list of messages, not {type(given).__name__}")
    repaired = _Repaired()
    for index, each in enumerate(given):
        try:
            repaired.add(*_read(each))
        except ValueError as error:
            raise HistoryError(f"messages[{index}] {say(error)}", index=index) from None
    return repaired.end()


class _Repaired:
    """A valid conversation, built message by message."""

    def __init__(self) -> None:
        self._done: list[Message] = []
        self._used: set[str] = set()
        self._calls: dict[str, ToolCall] = {}
        """The calls of the last answer."""
        self._results: dict[str, ToolResult] = {}

    def add(self, role: Role, blocks: list[Block]) -> None:
        if role == "tool":
            for block in blocks:
                if isinstance(block, ToolResult):
                    self._add_result(block)
            return
        self._end_calls()
        if role == "user":
            self._append(Message("user", blocks))
            return
        for block in blocks:
            if isinstance(block, ToolCall):
                self._add_call(block)
        blocks = answer(blocks)
        if isinstance(blocks[-1], Reasoning):
            blocks = [*blocks, Text(NO_ANSWER)]
        self._append(assistant(*blocks))

    def end(self) -> list[Message]:
        self._end_calls()
        if self._done and self._done[-1].role != "assistant":
            self._done.append(assistant(Text(NO_ANSWER)))
        return self._done

    def _add_call(self, call: ToolCall) -> None:
        if not _TOOL_NAME.fullmatch(call.name):
            raise ValueError(f"calls {call.name!r}, which is no name for a tool (letters, digits, _ and -, up to 64)")
        if call.id in self._used:
            raise ValueError(f"uses the call id {call.id!r}, which was used before")
        self._used.add(call.id)
        self._calls[call.id] = call

    def _add_result(self, result: ToolResult) -> None:
        call = self._calls.get(result.call_id)
        if call is None:
            raise ValueError(f"has a result for {result.call_id!r}, which the answer before it doesn't call")
        if result.call_id in self._results:
            raise ValueError(f"has a second result for {result.call_id!r}")
        content = result.content if result.content.strip() else NO_OUTPUT
        self._results[call.id] = ToolResult(call.id, call.name, content, result.status, result.attachments)

    def _end_calls(self) -> None:
        """No more results follow for the calls of the last answer: write their message."""
        if self._calls:
            open_call = {call.id: ToolResult(call.id, call.name, CUT, "error") for call in self._calls.values()}
            self._done.append(Message("tool", list({**open_call, **self._results}.values())))
            self._calls, self._results = {}, {}

    def _append(self, message: Message) -> None:
        before = self._done[-1] if self._done else None
        if before is None and message.role == "assistant":
            self._done.append(Message("user", [Text(BEGINNING)]))
        elif before is not None and before.role == message.role:
            before.content.extend(message.content)  # a message made here: the caller's messages are not changed
            return
        elif before is not None and before.role == "tool" and message.role == "user":
            self._done.append(assistant(Text(NO_ANSWER)))
        self._done.append(message)


# -- reading one message ----------------------------------------------------------------------------------------------


def _read(given: object) -> tuple[Role, list[Block]]:
    fields: Mapping[str, Any]
    if isinstance(given, Message):
        fields = {"role": given.role, "content": given.content}
    elif isinstance(given, Mapping):
        fields = given
    else:
        raise ValueError(f'is {type(given).__name__}; a message is a Message, or {{"role": "user", "content": "…"}}')
    role = _role(fields.get("role"))
    if role == "tool" and "tool_call_id" in fields:
        return role, [_chat_result(fields)]
    blocks = [block for each in _items(fields.get("content")) if (block := _block(each)) is not None]
    if role == "assistant":
        blocks += [_chat_call(each) for each in fields.get("tool_calls") or ()]
    for block in blocks:
        if not isinstance(block, _BELONGS[role]):
            raise ValueError(f"has a {block.type} block, which the role {role!r} can't have")
    if not blocks and role != "assistant":
        raise ValueError("has no text" if role == "user" else "has no result")
    return role, blocks


def _role(given: object) -> Role:
    if given == "user" or given == "assistant" or given == "tool":
        return given
    if given in ("system", "developer"):
        raise ValueError(f"has the role {given!r}: give such text to the agent as its instructions")
    raise ValueError(f"has the role {given!r}; use user, assistant or tool")


def _items(content: object) -> list[Any]:
    if content is None:
        return []
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list | tuple):
        raise ValueError(f"has {type(content).__name__} as its content; it is text, or a list of blocks")
    return list(content)


def _block(given: Any) -> Block | None:
    """None for blank text, which providers refuse."""
    if isinstance(given, str):
        return Text(sendable(given)) if given.strip() else None
    try:
        # Blocks that the caller made are checked too: their constructors check no types.
        plain = msgspec.to_builtins(given)
        block = msgspec.convert(plain, Block)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"has a block that can't be read: {say(error)}") from None
    assert isinstance(block, Block)
    return None if isinstance(block, Text) and not block.text.strip() else block


def _chat_call(given: Any) -> ToolCall:
    """A tool call as OpenAI's chat API writes it."""
    function = given.get("function") if isinstance(given, Mapping) else None
    if not isinstance(function, Mapping):
        wanted = '{"id": …, "function": {"name": …, "arguments": "{…}"}}'
        raise ValueError(f"has a tool call that can't be read; write {wanted}")
    arguments = function.get("arguments") or "{}"
    try:
        parsed = msgspec.json.decode(arguments) if isinstance(arguments, str) else arguments
        return msgspec.convert(
            {"type": "tool_call", "id": given.get("id"), "name": function.get("name"), "arguments": parsed}, ToolCall
        )
    except (ValueError, RecursionError) as error:
        raise ValueError(f"has a tool call that can't be read: {say(error)}") from None


def _chat_result(given: Mapping[str, Any]) -> ToolResult:
    """The result of a tool call, as OpenAI's chat API writes it."""
    call_id, content = given["tool_call_id"], given.get("content")
    texts = [_block(each) for each in _items(content)]
    if not isinstance(call_id, str) or not all(isinstance(each, Text | None) for each in texts):
        wanted = '{"role": "tool", "tool_call_id": "…", "content": "…"}'
        raise ValueError(f"has a result that can't be read; write {wanted}")
    text = "\n".join(each.text for each in texts if isinstance(each, Text))
    return ToolResult(call_id, "", text, "error" if given.get("tool_call_error") else "ok")

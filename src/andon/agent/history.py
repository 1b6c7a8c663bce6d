# SPDX-License-Identifier: Apache-2.0
"""A conversation that somebody brings: checked, and mended into a form that every provider accepts.

It is mended as `settle` does it. A tool call without a result gets one that says that its outcome is unknown. Messages
of one side that follow each other become one. An answer that is missing is said to be missing. What can't be mended
without a guess is refused, with the place of the message.
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
from andon.messages import Block, Message, Reasoning, Role, Text, ToolCall, ToolResult, assistant, sendable
from andon.tools.base import NO_OUTPUT

BEGINNING = "(the conversation begins)"
"""What stands before an answer that nobody asked for: providers want a user to begin."""

_BELONGS: dict[Role, tuple[type[Block], ...]] = {
    "user": (Text,),
    "assistant": (Text, Reasoning, ToolCall),
    "tool": (ToolResult,),
}
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def bring(given: object, store: Store) -> list[Message]:
    """A history for a run whose store is this one."""
    if not isinstance(store, SessionStore):
        raise ConfigurationError("messages can't be given: the store keeps runs and no sessions; use a SessionStore")
    return read_history(given)


def read_history(given: object) -> list[Message]:
    """The messages as a conversation that a prompt can follow. Raises `HistoryError`."""
    if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        raise HistoryError(f"messages must be a list of messages, not {type(given).__name__}")
    mending = _Mending()
    for index, each in enumerate(given):
        try:
            mending.add(*_read(each))
        except ValueError as error:
            raise HistoryError(f"messages[{index}] {say(error)}", index=index) from None
    return mending.end()


class _Mending:
    """A conversation that is being put together."""

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
                    self._answer(block)
            return
        self._close()
        if role == "user":
            self._say(Message("user", blocks))
            return
        for block in blocks:
            if isinstance(block, ToolCall):
                self._ask(block)
        blocks = answer(blocks)
        if isinstance(blocks[-1], Reasoning):
            blocks = [*blocks, Text(NO_ANSWER)]
        self._say(assistant(*blocks))

    def end(self) -> list[Message]:
        self._close()
        if self._done and self._done[-1].role != "assistant":
            self._done.append(assistant(Text(NO_ANSWER)))
        return self._done

    def _ask(self, call: ToolCall) -> None:
        if not _TOOL_NAME.fullmatch(call.name):
            raise ValueError(f"calls {call.name!r}, which is no name for a tool (letters, digits, _ and -, up to 64)")
        if call.id in self._used:
            raise ValueError(f"uses the call id {call.id!r}, which was used before")
        self._used.add(call.id)
        self._calls[call.id] = call

    def _answer(self, result: ToolResult) -> None:
        call = self._calls.get(result.call_id)
        if call is None:
            raise ValueError(f"has a result for {result.call_id!r}, which the answer before it doesn't call")
        if result.call_id in self._results:
            raise ValueError(f"has a second result for {result.call_id!r}")
        content = result.content if result.content.strip() else NO_OUTPUT
        self._results[call.id] = ToolResult(call.id, call.name, content, result.status)

    def _close(self) -> None:
        """The calls of the last answer get no further results."""
        if self._calls:
            open_call = {call.id: ToolResult(call.id, call.name, CUT, "error") for call in self._calls.values()}
            self._done.append(Message("tool", list({**open_call, **self._results}.values())))
            self._calls, self._results = {}, {}

    def _say(self, message: Message) -> None:
        before = self._done[-1] if self._done else None
        if before is None and message.role == "assistant":
            self._done.append(Message("user", [Text(BEGINNING)]))
        elif before is not None and before.role == message.role:
            before.content.extend(message.content)  # a message of ours: those that were given are not changed
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
    """None for text that says nothing, which providers refuse."""
    if isinstance(given, str):
        return Text(sendable(given)) if given.strip() else None
    try:
        # What was made by hand is checked as well: nothing has looked at the types of its fields.
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

# SPDX-License-Identifier: Apache-2.0
"""Messages as Converse takes them.

Converse refuses what others let pass: blank text, two messages of one role in a row, results without their calls,
documents without text beside them. What must stay true: a message is written in the same way in every later request,
because some signatures hold only for an unchanged conversation; and each signed block of reasoning is sent every time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from andon.core.markers import NO_ANSWER
from andon.messages import File, Media, Message, Reasoning, Text, ToolCall, ToolResult
from andon.models.base import ToolSpec
from andon.models.bedrock.answer import read_seal
from andon.models.bedrock.family import Family
from andon.models.bedrock.media import MediaWriter
from andon.models.common.history import without_refused

NO_OUTPUT = "(no output)"
BEGINNING = "(the conversation begins)"
SEE_DOCUMENT = "See the document."
NO_PROMPT = "(no text)"

Json = dict[str, Any]


def messages_of(messages: Sequence[Message], family: Family) -> list[Json]:
    """The conversation, as it is sent."""
    media = MediaWriter()
    written: list[Json] = []
    for message in without_refused(messages) or messages:
        if message.role == "assistant":
            _add(written, "assistant", _assistant(message, family))
        elif message.role == "tool":
            _add_results(written, message, family, media)
        else:
            if written and "toolResult" in written[-1]["content"][-1]:  # many models refuse text beside results
                _add(written, "assistant", [{"text": NO_ANSWER}])
            _add(written, "user", _user(message, media))
    for each in written:
        if each["role"] == "user":
            _complete(each["content"])
    if written and written[0]["role"] == "assistant":
        written.insert(0, {"role": "user", "content": [{"text": BEGINNING}]})
    return written


def _add(written: list[Json], role: str, content: list[Json]) -> None:
    """Roles must alternate, so messages of one role in a row become one."""
    if written and written[-1]["role"] == role:
        written[-1]["content"] += content
    elif content:
        written.append({"role": role, "content": content})
    if role == "assistant" and written:
        # After a call only more of them may come in its message.
        written[-1]["content"].sort(key=lambda block: "toolUse" in block)


def _user(message: Message, media: MediaWriter) -> list[Json]:
    found: list[Json] = []
    for block in message.content:
        if isinstance(block, Media):
            found.append(media.block(block))
        elif isinstance(block, Text) and block.text.strip():
            found.append({"text": block.text})
    return found or [{"text": NO_PROMPT}]


def _complete(content: list[Json]) -> None:
    """A document needs text beside it."""
    if any("document" in block for block in content) and not any("text" in block for block in content):
        content.append({"text": SEE_DOCUMENT})


def _assistant(message: Message, family: Family) -> list[Json]:
    found: list[Json] = []
    for block in message.content:
        if isinstance(block, Text):
            if block.text.strip():
                found.append({"text": block.text})
        elif isinstance(block, ToolCall):
            found.append({"toolUse": {"toolUseId": block.id, "name": block.name, "input": block.arguments}})
        elif isinstance(block, Reasoning) and (reasoning := _reasoning(block, family)) is not None:
            found.append({"reasoningContent": reasoning})
    if not any("text" in block or "toolUse" in block for block in found):
        found.append({"text": NO_ANSWER})
    return found


def _reasoning(block: Reasoning, family: Family) -> Json | None:
    """The block as it came, or None for one that another model made: that model's signature means nothing here."""
    seal = read_seal(block.signature)
    if seal is None or seal.family != family.name:
        return None
    if seal.redacted is not None:
        return {"redactedContent": seal.redacted}
    return None if seal.signature is None else {"reasoningText": {"text": block.text, "signature": seal.signature}}


def _add_results(written: list[Json], message: Message, family: Family, media: MediaWriter) -> None:
    """The results of the calls just before them, and of no others."""
    before = written[-1]["content"] if written else []
    calls = {block["toolUse"]["toolUseId"] for block in before if "toolUse" in block}
    results = [_result(each, family, media) for each in message.tool_results if each.call_id in calls]
    _add(written, "user", results)


def _result(result: ToolResult, family: Family, media: MediaWriter) -> Json:
    content: list[Json] = [media.block(each) for each in result.attachments]
    if result.content.strip():
        content.insert(0, {"text": result.content})
    elif not content or any(isinstance(each, File) for each in result.attachments):
        content.insert(0, {"text": NO_OUTPUT})
    found: Json = {"toolUseId": result.call_id, "content": content}
    if result.status == "error" and family.has_status:
        found["status"] = "error"
    return {"toolResult": found}


# -- tools ------------------------------------------------------------------------------------------------------------


def tools_of(tools: Sequence[ToolSpec], written: Iterable[Json]) -> list[Json]:
    """The tools. If there are none now, but the conversation has calls: these, because Converse wants to know them."""
    specs = [_tool(spec.name, spec.description, spec.parameters) for spec in tools]
    if specs:
        return specs
    called = (block["toolUse"]["name"] for each in written for block in each["content"] if "toolUse" in block)
    gone = "This tool is no longer available. Do not call it."
    return [_tool(name, gone, {"type": "object"}) for name in dict.fromkeys(called)]


def _tool(name: str, description: str, schema: Json) -> Json:
    spec: Json = {"name": name, "inputSchema": {"json": schema}}
    if description.strip():
        spec["description"] = description
    return {"toolSpec": spec}

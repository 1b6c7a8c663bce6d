# SPDX-License-Identifier: Apache-2.0
"""What Converse rejects in a conversation.

What must stay true: roles alternate, beginning and ending with the user. Each result follows its call. Reasoning comes
back as it was issued.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from andon.testing.providers.api import Json
from andon.testing.providers.bedrock.errors import Rejected, listed, malformed, one_of, string, thing
from andon.testing.providers.bedrock.memory import Issued, Memory, digest, marks

BINDS = re.compile(r"claude-(?:fable|mythos|opus|sonnet|haiku)-(?:5-[1-9]|[6-9])(?!\d)")
_BINDS_LATER = re.compile(r"claude-(?:opus|sonnet|haiku)-5-[1-4](?!\d)")
_ID = re.compile(r"[a-zA-Z0-9_.:-]{1,64}")
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_DOCUMENT_NAME = re.compile(r"[a-zA-Z0-9\s\-()\[\]]{1,200}")
_IMAGES = ("png", "jpeg", "gif", "webp")
_DOCUMENTS = ("pdf", "csv", "doc", "docx", "xls", "xlsx", "html", "txt", "md")
_BLOCKS = frozenset({"text", "image", "document", "toolUse", "toolResult", "cachePoint", "reasoningContent"})
_ONLY_OF = {"image": "user", "document": "user", "toolResult": "user", "toolUse": "assistant"}
_ONLY_OF["reasoningContent"] = "assistant"


def check(body: Json, memory: Memory) -> None:
    messages = listed(body.get("messages"), "messages", least=1)
    names: list[str] = []
    for number, message in enumerate(messages):
        where = f"messages.{number}"
        thing(message, where, frozenset({"role", "content"}), frozenset({"role", "content"}))
        if message["role"] not in ("user", "assistant"):
            raise malformed(f"{where}.role", "Member must satisfy enum value set: [user, assistant]")
        if not listed(message["content"], f"{where}.content"):
            raise Rejected(f"The content field in the Message object at {where} is empty.")
        for index, block in enumerate(message["content"]):
            _block(block, message["role"], f"{where}.content.{index}", names)
        _together(message["content"], where, body)
    _alternate(messages)
    _pairs(messages)
    if len(set(names)) < len(names):
        raise Rejected("Messages contain duplicate document file names.")
    if not body.get("toolConfig") and any(
        "toolUse" in block or "toolResult" in block for message in messages for block in message["content"]
    ):
        raise Rejected("The toolConfig field must be defined when using toolUse and toolResult content blocks.")
    for number, message in enumerate(messages):
        if message["role"] == "assistant":
            _reasoning(body, messages, number, memory)


def is_of(body: Json, *families: str) -> bool:
    """Whether the model is one of these companies'."""
    found = re.search(r"(?:^|[/.])([a-z0-9]+)\.[^./]+[^/]*$", re.sub(r"^(?:us|eu|apac|global)\.", "", body["modelId"]))
    return found is not None and found[1] in families


# -- blocks -----------------------------------------------------------------------------------------------------------


def _block(block: Json, role: str, where: str, names: list[str]) -> None:
    kind, value = one_of(block, where, _BLOCKS)
    if _ONLY_OF.get(kind, role) != role:
        raise Rejected(f"The {kind} block at {where} is only allowed in messages of the {_ONLY_OF[kind]} role.")
    if kind == "text":
        text(value, where, "ContentBlock")
    elif kind == "image":
        _image(value, f"{where}.image")
    elif kind == "document":
        names.append(_document(value, f"{where}.document"))
    elif kind == "toolUse":
        _call(value, f"{where}.toolUse")
    elif kind == "toolResult":
        _result(value, f"{where}.toolResult", names)
    elif kind == "cachePoint":
        cache_point(value, f"{where}.cachePoint")


def text(value: object, where: str, what: str) -> None:
    if not string(value, f"{where}.text").strip():
        raise Rejected(
            f"The text field in the {what} object at {where} is blank. Add text to the text field, and try again."
        )


def cache_point(value: Json, where: str) -> None:
    thing(value, where, frozenset({"type", "ttl"}), frozenset({"type"}))
    if value["type"] != "default" or value.get("ttl", "5m") not in ("5m", "1h"):
        raise malformed(where, "Member must satisfy enum value set: [default], [5m, 1h]")


def _source(value: Any, where: str) -> None:
    kind, found = one_of(value, where, frozenset({"bytes", "s3Location"}))
    if kind == "s3Location":
        thing(found, where, frozenset({"uri", "bucketOwner"}), frozenset({"uri"}))
        return
    try:
        data = base64.b64decode(string(found, where), validate=True)
    except binascii.Error:
        raise malformed(where, "Member must be in base64") from None
    if not data:
        raise malformed(where, "Member must have length greater than or equal to 1")


def _image(value: Json, where: str) -> None:
    image = thing(value, where, frozenset({"format", "source"}), frozenset({"format", "source"}))
    if image["format"] not in _IMAGES:
        raise malformed(f"{where}.format", f"Member must satisfy enum value set: {list(_IMAGES)}")
    _source(image["source"], f"{where}.source")


def _document(value: Json, where: str) -> str:
    keys = frozenset({"format", "name", "source", "context", "citations"})
    document = thing(value, where, keys, frozenset({"name", "source"}))
    if document.get("format") not in _DOCUMENTS:
        raise malformed(f"{where}.format", f"Member must satisfy enum value set: {list(_DOCUMENTS)}")
    name = string(document["name"], f"{where}.name")
    if not _DOCUMENT_NAME.fullmatch(name) or re.search(r"\s\s", name):
        raise Rejected(
            "The document file name can only contain alphanumeric characters, whitespace characters, hyphens, "
            "parentheses, and square brackets. The name can't contain more than one consecutive whitespace character."
        )
    _source(document["source"], f"{where}.source")
    return name


def _call(value: Json, where: str) -> None:
    keys = frozenset({"toolUseId", "name", "input"})
    call = thing(value, where, keys | {"type"}, keys)
    for name, pattern in (("toolUseId", _ID), ("name", _NAME)):
        if not pattern.fullmatch(string(call[name], f"{where}.{name}")):
            raise malformed(f"{where}.{name}", f"Member must satisfy regular expression pattern: {pattern.pattern}")
    if not isinstance(call["input"], dict):
        raise Rejected(f"The format of the value at {where}.input is invalid. Provide a json object for the field.")


def _result(value: Json, where: str, names: list[str]) -> None:
    result = thing(value, where, frozenset({"toolUseId", "content", "status"}), frozenset({"toolUseId", "content"}))
    content = listed(result["content"], f"{where}.content")
    if result.get("status", "success") not in ("success", "error"):
        raise malformed(f"{where}.status", "Member must satisfy enum value set: [success, error]")
    if not content and result.get("status") == "error":
        raise Rejected(f"The content at {where} is empty, and must have content when the status is error.")
    for number, block in enumerate(content):
        at = f"{where}.content.{number}"
        kind, found = one_of(block, at, frozenset({"text", "json", "image", "document"}))
        if kind == "text":
            text(found, at, "ToolResultContentBlock")
        elif kind == "image":
            _image(found, f"{at}.image")
        elif kind == "document":
            names.append(_document(found, f"{at}.document"))


def _together(content: Sequence[Json], where: str, body: Json) -> None:
    """What may stand beside what."""
    kinds = [next(iter(block)) for block in content if "cachePoint" not in block]
    if not kinds:
        raise Rejected(f"The content field in the Message object at {where} is empty.")
    if "document" in kinds and "text" not in kinds:
        raise Rejected("A text block must be included when a document is sent.")
    if "toolResult" in kinds and "text" in kinds and not is_of(body, "anthropic"):
        raise Rejected("Conversation blocks and tool result blocks cannot be provided in the same turn.")
    if "toolUse" in kinds and any(kind != "toolUse" for kind in kinds[kinds.index("toolUse") :]):
        raise Rejected(f"{where}: after a toolUse block, only toolUse blocks are allowed in a message.")


# -- the conversation -------------------------------------------------------------------------------------------------


def _alternate(messages: Sequence[Json]) -> None:
    if messages[0]["role"] != "user":
        raise Rejected("A conversation must start with a user message. Try again with a conversation that starts so.")
    for number, (one, other) in enumerate(pairwise(messages), 1):
        if one["role"] == other["role"]:
            raise Rejected(f"messages.{number}: roles must alternate between user and assistant.")
    if messages[-1]["role"] != "user":
        raise Rejected(
            "This model does not support assistant message prefill. Conversations must end with a user message."
        )


def _pairs(messages: Sequence[Json]) -> None:
    """Each call has its result in the very next message, and each result its call in the message before."""
    seen: set[str] = set()
    open_ids: list[str] = []
    for number, message in enumerate(messages):
        where = f"messages.{number}.content"
        results = [block["toolResult"]["toolUseId"] for block in message["content"] if "toolResult" in block]
        if lacking := [each for each in open_ids if each not in results]:
            raise Rejected(f"Expected toolResult blocks at {where} for the following Ids: {', '.join(lacking)}")
        if len(results) > len(open_ids):
            raise Rejected(
                f"The number of toolResult blocks at {where} exceeds the number of toolUse blocks of previous turn."
            )
        open_ids = [block["toolUse"]["toolUseId"] for block in message["content"] if "toolUse" in block]
        for each in open_ids:
            if each in seen or open_ids.count(each) > 1:
                raise Rejected(f"{where}: `tool_use` ids must be unique. Duplicate: {each}")
        seen |= set(open_ids)


# -- reasoning --------------------------------------------------------------------------------------------------------


def _reasoning(body: Json, messages: Sequence[Json], number: int, memory: Memory) -> None:
    content = messages[number]["content"]
    before: list[str] = []
    for index, block in enumerate(content):
        if "reasoningContent" not in block:
            continue
        where = f"messages.{number}.content.{index}.reasoningContent"
        issued = _issued(block["reasoningContent"], where, memory)
        conversation = digest(body, messages[:number])
        if _binds(body) and (issued.conversation, issued.before) != (conversation, before):
            raise Rejected(
                f"{where}: the `thinking` block is bound to a different conversation and cannot be used here."
            )
        before += marks([block])


def _issued(value: Json, where: str, memory: Memory) -> Issued:
    kind, found = one_of(value, where, frozenset({"reasoningText", "redactedContent"}))
    if kind == "redactedContent":
        issued = memory.redacted.get(string(found, where))
        if issued is None:
            raise Rejected(f"{where}: Invalid `data` in `redacted_thinking` block")
        return issued
    thought = thing(found, where, frozenset({"text", "signature"}), frozenset({"text"}))
    issued = memory.signed.get(thought.get("signature") or "")
    if issued is None:
        raise Rejected(f"{where}: Invalid `signature` in `thinking` block")
    if issued.text != string(thought["text"], where):
        raise Rejected(f"{where}: `thinking` blocks cannot be modified. They must remain as they were in the response.")
    return issued


def _binds(body: Json) -> bool:
    model = body["modelId"]
    if not BINDS.search(model) or _BINDS_LATER.search(model):
        return False
    more = body.get("additionalModelRequestFields") or {}
    binding = (more.get("thinking") or {}).get("block_binding") or {}
    is_allowed = "thinking-binding-controls-2026-08-01" in (more.get("anthropic_beta") or [])
    return not (is_allowed and binding.get("prefix_mismatch_behavior") == "drop_block")

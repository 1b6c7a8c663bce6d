# SPDX-License-Identifier: Apache-2.0
"""Results of an MCP server's tools as models take them, and what a server asks a model, as users' code takes it."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from andon.errors import BadResultError, ToolError
from andon.media import File, Image, Media
from andon.messages import sendable
from andon.tools.base import ATTACHED, NO_OUTPUT, ToolOutput


class SamplingRequest(Struct, frozen=True):
    """What a server asks a model, through us: only if `MCPServer(sampling=…)` has a function for it."""

    server: str
    messages: list[tuple[str, str]]
    """Each with its role, `user` or `assistant`, and its text."""
    system: str | None
    max_tokens: int


def read_sampling(server: str, params: Any) -> SamplingRequest:
    messages = []
    for message in params.messages:
        blocks = message.content if isinstance(message.content, list) else [message.content]
        messages.append((str(message.role), "\n\n".join(block.text for block in blocks if block.type == "text")))
    return SamplingRequest(server, messages, params.system_prompt, params.max_tokens)


def read_result(tool: str, result: Any) -> str | ToolOutput:
    """What a call has returned, for the model. Raises `ToolError` if the tool says that it failed."""
    texts: list[str] = []
    attachments: list[Media] = []
    for block in result.content:
        try:
            _read_block(block, texts, attachments)
        except (binascii.Error, ValueError, TypeError) as error:
            raise BadResultError(f"tool {tool} returned a {block.type} that can't be read ({error})") from None
    if not texts and result.structured_content is not None:
        texts.append(msgspec.json.encode(result.structured_content).decode())
    text = sendable("\n\n".join(texts))
    if result.is_error:
        raise ToolError(text.strip() or "the tool failed, and does not say why")
    if not attachments:
        return text if text.strip() else NO_OUTPUT
    return ToolOutput(text if text.strip() else ATTACHED, attachments)


def _read_block(block: Any, texts: list[str], attachments: list[Media]) -> None:
    match block.type:
        case "text":
            texts.append(block.text)
        case "image":
            attachments.append(Image(base64.b64decode(block.data), block.mime_type))
        case "audio":
            attachments.append(File(base64.b64decode(block.data), block.mime_type, name="audio"))
        case "resource_link":
            texts.append(f"{block.title or block.name}: {block.uri}")
        case "resource":
            _read_resource(block.resource, texts, attachments)
        case other:
            texts.append(f"(a result of the kind {other!r}, which can't be shown)")


def _read_resource(resource: Any, texts: list[str], attachments: list[Media]) -> None:
    uri = str(resource.uri)
    if (text := getattr(resource, "text", None)) is not None:
        texts.append(f"{uri}:\n{text}")
        return
    data, kind = base64.b64decode(resource.blob), resource.mime_type or "application/octet-stream"
    if kind.startswith("image/"):
        attachments.append(Image(data, kind))
    else:
        attachments.append(File(data, kind, name=uri.rpartition("/")[2] or None))


# -- questions to a person --------------------------------------------------------------------------------------------


def describe_question(server: str, params: Any) -> dict[str, Any]:
    """The payload of the interrupt that a server's question becomes."""
    if params.mode == "url":
        return {"server": server, "message": params.message, "url": params.url}
    return {"server": server, "message": params.message, "schema": params.requested_schema}


def accepted(params: Any, answer: Any) -> dict[str, Any] | None:
    """A person's answer, as the server takes it: one value for each field of the form."""
    if params.mode == "url":
        return None
    fields = list(params.requested_schema.get("properties", {}))
    values = answer
    if not isinstance(answer, dict):
        values = {fields[0]: answer} if len(fields) == 1 else {} if not fields else None
    if values is None or not all(map(_fits_a_form, values.values())):
        raise ToolError(
            f"the answer to {params.message!r} has to be an object with {', '.join(fields)}, whose values are texts,"
            " numbers, booleans or lists of texts"
        )
    return dict(values)


def _fits_a_form(value: object) -> bool:
    if isinstance(value, list):
        return all(isinstance(each, str) for each in value)
    return value is None or isinstance(value, str | int | float | bool)


def describe_errors(error: BaseException) -> str:
    """An error of the SDK in a few words. Task groups wrap the one that matters."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(dict.fromkeys(describe_errors(each) for each in _first(error.exceptions)))
    text = str(error).strip()
    return text if text and len(text) > 8 else f"{type(error).__name__}{': ' + text if text else ''}"


def _first(errors: Sequence[BaseException]) -> Sequence[BaseException]:
    return errors[:3]

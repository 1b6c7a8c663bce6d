# SPDX-License-Identifier: Apache-2.0
"""Responses: OpenAI's own interface, with reasoning that is sent back to the model.

By default nothing is stored by the provider, so each request has all that the turn needs. Of a reasoning item these are
its id and its encrypted content. They are complete only when the item is done, and are the block's signature. A
reasoning item is sent back together with what it led to, or not at all. All other items are sent back without their
ids, because the provider does not know the ids of items that were cut.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from andon.core.markers import is_cut
from andon.errors import SetupError
from andon.messages import Block, Media, Message, Reasoning, Text, ToolCall, ToolResult
from andon.models.base import ModelRequest, OutputSpec, Sink, ToolSpec
from andon.models.common.media import fit_media
from andon.models.common.setup import ApiKey, HttpClient, check_id
from andon.models.openai.answer import ResponsesAnswer, read_seal
from andon.models.openai.background import BackgroundCall
from andon.models.openai.clients import Settings
from andon.models.openai.endpoint import Endpoint, without_none
from andon.models.openai.media import RESPONSES, responses_part
from andon.models.openai.schema import strict

_REASONS = r"(?:.*/)?(?:gpt-(?:[5-9]|\d{2,})|o\d|codex|computer-use|gpt-oss)"
_CHATS = r".*-chat(?:-|$)"
ENCRYPTED = "reasoning.encrypted_content"


class OpenAIResponses:
    """A model of OpenAI's, behind its Responses interface.

    >>> OpenAIResponses("gpt-5.2", reasoning_effort="low", reasoning_summary="auto")

    Without `api_key` and `base_url`, OPENAI_API_KEY and OPENAI_BASE_URL are used. Options that you
    don't set are not sent, with two exceptions: `store` is False, and models that reason are asked to `include` their
    encrypted reasoning, which goes back to them. `extra_body` takes all other options of the provider.

    With `background`, the provider goes on with an answer whose connection is lost, and the answer is resumed. A cancel
    then also cancels the response at the provider. Such a response is stored there: `store` is True.
    """

    provider = "OpenAI"

    def __init__(
        self,
        id: str,
        api_key: ApiKey | None = None,
        base_url: str | None = None,
        *,
        organization: str | None = None,
        project: str | None = None,
        client: Any = None,
        http_client: HttpClient | None = None,
        timeout: Any = None,
        temperature: float | None = None,
        top_p: float | None = None,
        max_output_tokens: int | None = None,
        reasoning_effort: str | None = None,
        reasoning_summary: str | None = None,
        verbosity: str | None = None,
        parallel_tool_calls: bool | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        store: bool | None = None,
        background: bool | None = None,
        include: Sequence[str] | None = None,
        truncation: str | None = None,
        service_tier: str | None = None,
        metadata: Mapping[str, str] | None = None,
        user: str | None = None,
        safety_identifier: str | None = None,
        prompt_cache_key: str | None = None,
        extra_headers: Mapping[str, str] | None = None,
        extra_query: Mapping[str, object] | None = None,
        extra_body: Mapping[str, object] | None = None,
    ) -> None:
        self.id = check_id(id, f'{type(self).__name__}("gpt-5.2")')
        if include is None and _reasons(id):
            include = [ENCRYPTED]
        options = {
            "timeout": timeout,
            "temperature": temperature,
            "top_p": top_p,
            "max_output_tokens": max_output_tokens,
            "reasoning": without_none({"effort": reasoning_effort, "summary": reasoning_summary}) or None,
            **_storage(store, background),
            "include": list(include or ()) or None,
            "truncation": truncation,
            "service_tier": service_tier,
            "metadata": metadata,
            "user": user,
            "safety_identifier": safety_identifier,
            "prompt_cache_key": prompt_cache_key,
            "extra_headers": extra_headers,
            "extra_query": extra_query,
            "extra_body": extra_body,
        }
        settings = Settings(api_key, base_url, organization, project, http_client)
        self._endpoint = Endpoint("/responses", settings, client, {"model": id, **options})
        # Providers refuse these two if a request has no tools.
        self._with_tools = without_none({"parallel_tool_calls": parallel_tool_calls, "tool_choice": tool_choice})
        self._text = {} if verbosity is None else {"verbosity": verbosity}
        self._stored = bool(store or background)
        self._in_background = bool(background)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r})"  # without the settings: the key is one of them

    def check_setup(self) -> None:
        """Raise `SetupError` for what would keep every request from being sent: no key, no package, a bad option."""
        self._endpoint.check_setup()

    def check_content(self, blocks: Sequence[Block], *, in_result: bool = False) -> None:
        """Raise `UnsupportedContentError` for an image or a file that can't be sent."""
        RESPONSES.check(blocks, in_result=in_result)

    async def aclose(self) -> None:
        """Close this event loop's connections, unless other models use them too.

        A client that was passed as `client=` stays open. Without this call they are closed with the loop.
        """
        await self._endpoint.aclose()

    async def stream(self, request: ModelRequest, sink: Sink) -> None:
        request = fit_media(request, self.check_content, sink)
        body: dict[str, Any] = {"input": _items(request.messages, self._stored)}
        if request.instructions:
            body["instructions"] = request.instructions
        if request.tools:
            body |= {"tools": [_tool(spec) for spec in request.tools], **self._with_tools}
        text = self._text if request.output is None else self._text | _format(request.output)
        if text:
            body["text"] = text
        if self._in_background:
            await BackgroundCall(self._endpoint, body, sink).play()
        else:
            await self._endpoint.ask(body, ResponsesAnswer(sink))


def _storage(store: bool | None, background: bool | None) -> dict[str, Any]:
    if background and store is False:
        raise SetupError("background=True needs a response that is stored: leave store out, or set it to True")
    return {"store": bool(store or background), "background": background}


def _reasons(model: str) -> bool:
    """Whether the model reasons: the others refuse a request for reasoning."""
    return re.match(_REASONS, model) is not None and re.match(_CHATS, model) is None


# -- what is sent -----------------------------------------------------------------------------------------------------


def _items(messages: Sequence[Message], stored: bool) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    for message in messages:
        if message.role == "user":
            items.append({"role": "user", "content": _parts(message.content)})
        elif message.role == "tool":
            items += [
                {"type": "function_call_output", "call_id": result.call_id, "output": _output(result)}
                for result in message.tool_results
            ]
        else:
            items += _assistant(message, stored)
    return items


def _parts(blocks: Sequence[Block]) -> list[dict[str, Any]]:
    return [
        {"type": "input_text", "text": block.text} if isinstance(block, Text) else responses_part(block)
        for block in blocks
        if isinstance(block, Text | Media)
    ]


def _output(result: ToolResult) -> str | list[dict[str, Any]]:
    return _parts([Text(result.content), *result.attachments]) if result.attachments else result.content


def _assistant(message: Message, stored: bool) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    goes_back = _goes_back(message)
    for place, block in enumerate(message.content):
        if isinstance(block, Text):
            part = {"type": "output_text", "text": block.text}
            if items and items[-1].get("role") == "assistant":
                items[-1]["content"].append(part)
            else:
                items.append({"role": "assistant", "content": [part]})
        elif isinstance(block, ToolCall):
            arguments = msgspec.json.encode(block.arguments).decode()
            items.append({"type": "function_call", "call_id": block.id, "name": block.name, "arguments": arguments})
        elif isinstance(block, Reasoning) and goes_back(place) and (item := _reasoning(block, stored)) is not None:
            items.append(item)
    return items


def _goes_back(message: Message) -> Callable[[int], bool]:
    """Whether what a block of reasoning led to is there, and complete: in a cut message only a call is."""
    whole = (ToolCall,) if is_cut(message) else (ToolCall, Text)
    last = max((place for place, block in enumerate(message.content) if isinstance(block, whole)), default=-1)
    return lambda place: place < last


def _reasoning(block: Reasoning, stored: bool) -> dict[str, Any] | None:
    seal = read_seal(block.signature)
    if seal is None or not (stored or seal.encrypted_content):
        return None  # it is another provider's, or the provider has not stored it
    item: dict[str, Any] = {
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": block.text}] if block.text else [],
    }
    if seal.encrypted_content:
        item["encrypted_content"] = seal.encrypted_content
    if not (stored and seal.encrypted_content):
        # A request that is stored looks for the ids among stored answers. An answer that was cut is not one of them,
        # nor is one that was made without `store`. So there the encrypted content goes alone.
        item["id"] = seal.id
    return item


def _tool(spec: ToolSpec) -> dict[str, Any]:
    return {
        "type": "function",
        "name": spec.name,
        "description": spec.description,
        "parameters": spec.parameters,
        "strict": False,
    }


def _format(output: OutputSpec) -> dict[str, Any]:
    return {"format": {"type": "json_schema", **strict(output)}}

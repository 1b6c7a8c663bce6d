# SPDX-License-Identifier: Apache-2.0
"""Chat Completions: OpenAI's older interface, and the one of every compatible server.

Only what is complete is sent back. Reasoning is shown, and never sent back: the interface has no field for it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from andon.messages import Block, Media, Message, Text, ToolCall, Usage, media_of
from andon.models.base import FinishReason, ModelRequest, OutputSpec, Sink, ToolSpec
from andon.models.common.errors import UNREADABLE, gave_up, mended
from andon.models.common.media import fit_media
from andon.models.common.setup import ApiKey, HttpClient, check_id
from andon.models.openai.clients import Settings
from andon.models.openai.endpoint import Endpoint, without_none
from andon.models.openai.errors import in_stream
from andon.models.openai.media import CHAT, chat_part
from andon.models.openai.schema import strict


class OpenAIChat:
    """A model behind Chat Completions: OpenAI's own, or any compatible server's through `base_url`.

    >>> OpenAIChat("llama3.3", base_url="http://localhost:11434/v1")

    Without `api_key` and `base_url`, OPENAI_API_KEY and OPENAI_BASE_URL are used. Options that you
    don't set are not sent. `extra_body` takes all other options of the provider.
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
        verbosity: str | None = None,
        stop: str | Sequence[str] | None = None,
        seed: int | None = None,
        presence_penalty: float | None = None,
        frequency_penalty: float | None = None,
        parallel_tool_calls: bool | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        service_tier: str | None = None,
        store: bool | None = None,
        metadata: Mapping[str, str] | None = None,
        user: str | None = None,
        safety_identifier: str | None = None,
        prompt_cache_key: str | None = None,
        include_usage: bool = True,
        extra_headers: Mapping[str, str] | None = None,
        extra_query: Mapping[str, object] | None = None,
        extra_body: Mapping[str, object] | None = None,
    ) -> None:
        self.id = check_id(id, f'{type(self).__name__}("gpt-5.2")')
        options = {
            "timeout": timeout,
            "temperature": temperature,
            "top_p": top_p,
            "max_completion_tokens": max_output_tokens,
            "reasoning_effort": reasoning_effort,
            "verbosity": verbosity,
            "stop": stop if stop is None or isinstance(stop, str) else list(stop),
            "seed": seed,
            "presence_penalty": presence_penalty,
            "frequency_penalty": frequency_penalty,
            "service_tier": service_tier,
            "store": store,
            "metadata": metadata,
            "user": user,
            "safety_identifier": safety_identifier,
            "prompt_cache_key": prompt_cache_key,
            "stream_options": {"include_usage": True} if include_usage else None,
            "extra_headers": extra_headers,
            "extra_query": extra_query,
            "extra_body": extra_body,
        }
        settings = Settings(api_key, base_url, organization, project, http_client)
        self._endpoint = Endpoint("/chat/completions", settings, client, {"model": id, **options})
        # Providers refuse these two if a request has no tools.
        self._with_tools = without_none({"parallel_tool_calls": parallel_tool_calls, "tool_choice": tool_choice})

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r})"  # without the settings: the key is one of them

    def check_setup(self) -> None:
        """Raise `SetupError` for what would keep every request from being sent: no key, no package, a bad option."""
        self._endpoint.check_setup()

    def check_content(self, blocks: Sequence[Block], *, in_result: bool = False) -> None:
        """Raise `UnsupportedContentError` for an image or a file that can't be sent."""
        CHAT.check(blocks, in_result=in_result)

    async def aclose(self) -> None:
        """Close this event loop's connections, unless other models use them too.

        A client that was passed as `client=` stays open. Without this call they are closed with the loop.
        """
        await self._endpoint.aclose()

    async def stream(self, request: ModelRequest, sink: Sink) -> None:
        request = fit_media(request, self.check_content, sink)
        body: dict[str, Any] = {"messages": _messages(request)}
        if request.tools:
            body |= {"tools": [_tool(spec) for spec in request.tools], **self._with_tools}
        if request.output is not None:
            body["response_format"] = _format(request.output)
        await self._endpoint.ask(body, _Answer(sink))


# -- what is sent -----------------------------------------------------------------------------------------------------


def _messages(request: ModelRequest) -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = []
    if request.instructions:
        sent.append({"role": "system", "content": request.instructions})
    for message in request.messages:
        if message.role == "tool":
            sent += [
                {"role": "tool", "tool_call_id": result.call_id, "content": result.content}
                for result in message.tool_results
            ]
        elif message.role == "user":
            sent.append({"role": "user", "content": _user(message)})
        else:
            sent.append(_assistant(message))
    return sent


def _text(message: Message) -> str:
    """One text, because many servers take no list here.

    A blank line separates its blocks: a marker from the text that was cut, a prompt from the prompt before it.
    """
    return "\n\n".join(block.text for block in message.content if isinstance(block, Text))


def _user(message: Message) -> str | list[dict[str, Any]]:
    if not media_of(message):
        return _text(message)
    return [
        {"type": "text", "text": block.text} if isinstance(block, Text) else chat_part(block)
        for block in message.content
        if isinstance(block, Text | Media)
    ]


def _assistant(message: Message) -> dict[str, Any]:
    sent: dict[str, Any] = {"role": "assistant", "content": _text(message) or None}
    if calls := message.tool_calls:
        sent["tool_calls"] = [_call(call) for call in calls]
    return sent


def _call(call: ToolCall) -> dict[str, Any]:
    arguments = msgspec.json.encode(call.arguments).decode()
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _tool(spec: ToolSpec) -> dict[str, Any]:
    function = {"name": spec.name, "description": spec.description, "parameters": spec.parameters}
    return {"type": "function", "function": function}


def _format(output: OutputSpec) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": strict(output)}


# -- what is received -------------------------------------------------------------------------------------------------


class _Function(Struct, gc=False):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class _Piece(Struct, gc=False):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Delta(Struct, gc=False):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[_Piece] | None = None


class _Choice(Struct, gc=False):
    delta: _Delta | None = None
    finish_reason: str | None = None
    error: Any = None


class _PromptDetails(Struct, gc=False):
    cached_tokens: int | None = None


class _OutputDetails(Struct, gc=False):
    reasoning_tokens: int | None = None


class _Usage(Struct, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _OutputDetails | None = None


class _Chunk(Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: Any = None
    error: Any = None


_decode = msgspec.json.Decoder(_Chunk).decode
_REASONS = {
    "stop": FinishReason.end_turn,
    "tool_calls": FinishReason.tool_calls,
    "function_call": FinishReason.tool_calls,
    "length": FinishReason.length,
    "content_filter": FinishReason.content_filter,
}
"""Compatible servers have many more, which all mean that the answer is complete."""
_NO_REASON = "the provider ended the answer without a finish reason: it may have been cut"
_FAILED = frozenset({"abort", "error", "insufficient_system_resource", "network_error"})
"""The finish reasons of servers that could not complete the answer: vLLM, gateways, DeepSeek, z.AI."""


class _Answer:
    """Decodes one answer."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._calls: dict[int, str] = {}  # the id of the current call of each index
        self._last: int | None = None
        self._reason: str | None = None
        self._said = self._refused = False
        self.finished = False

    def take(self, payloads: list[bytes]) -> None:
        text, said = self._sink.text, False
        for payload in payloads:
            if payload == b"[DONE]":
                self.finished = True
                break
            try:
                chunk = _decode(payload)
            except UNREADABLE as error:
                self.take([mended(payload, error)])
                continue
            # This runs once per token, so it only does something about fields that are there.
            for choice in chunk.choices or ():
                delta = choice.delta
                if delta is not None:
                    if thought := delta.reasoning_content or delta.reasoning:
                        self._sink.reasoning(thought)
                    if delta.content:
                        said = True
                        text(delta.content)
                    elif delta.refusal:
                        said = self._refused = True
                        text(delta.refusal)
                    if delta.tool_calls:
                        for piece in delta.tool_calls:
                            self._take_call(piece)
                if choice.finish_reason:  # some servers send an empty one with every piece
                    self._reason = choice.finish_reason
                    if choice.error:
                        raise in_stream(choice.error)
            if chunk.usage is not None:
                self._take_usage(chunk.usage)
            if chunk.error:
                raise in_stream(chunk.error)
        self._said = self._said or said

    def end(self) -> None:
        """An answer is complete with a finish reason, or with the last line: some servers leave out one of the two.

        Too many servers give no reason to refuse their answers (vllm-mlx, gateways to other models, vLLM and
        llama-cpp-python at times). So an answer with the last line and no reason is complete, with a warning. The last
        line after nothing at all is an early end.
        """
        if self._reason in _FAILED:
            raise gave_up(self._reason)
        self.finished = self._reason is not None or (self.finished and (self._said or bool(self._calls)))
        if not self.finished:
            return
        for call_id in self._calls.values():
            self._sink.tool_call(call_id, done=True)
        if self._refused and self._reason == "stop":
            self._sink.finish(FinishReason.refusal)
        elif self._reason in _REASONS:
            self._sink.finish(_REASONS[self._reason])
        elif self._reason is None:
            self._sink.warn(_NO_REASON)

    def _take_call(self, piece: _Piece) -> None:
        index = piece.index
        if index is None:  # a new call if it has an id, else a piece of the last one
            index = len(self._calls) if piece.id or self._last is None else self._last
        known = self._calls.get(index)
        if known is not None and piece.id and piece.id != known:  # some servers give every call the index 0
            self._sink.tool_call(known, done=True)
            known = None
        if known is None:
            known = self._calls[index] = piece.id or f"call_{os.urandom(12).hex()}"
        self._last = index
        function = piece.function or _Function()
        self._sink.tool_call(known, function.name or "", function.arguments or "")

    def _take_usage(self, said: object) -> None:
        try:
            usage = msgspec.convert(said, _Usage, strict=False)
        except msgspec.ValidationError:  # it can't be read: the answer is good all the same
            return
        prompt, output = usage.prompt_tokens_details, usage.completion_tokens_details
        self._sink.usage(
            Usage(
                usage.prompt_tokens,
                usage.completion_tokens,
                prompt.cached_tokens if prompt else None,
                output.reasoning_tokens if output else None,
            )
        )

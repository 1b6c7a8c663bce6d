# SPDX-License-Identifier: Apache-2.0
"""The model, and the body of its requests."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from andon.errors import ConfigurationError, SetupError
from andon.messages import Block
from andon.models.base import ModelRequest, Sink, ToolSpec
from andon.models.common.media import MediaRules, fit_media
from andon.models.common.schema import as_instruction
from andon.models.common.setup import (
    ApiKey,
    HttpClient,
    check_count,
    check_headers,
    check_id,
    check_json,
    check_mapping,
    check_numbers,
    check_timeout,
)
from andon.models.google.answer import GeminiAnswer
from andon.models.google.clients import Settings
from andon.models.google.endpoint import Endpoint
from andon.models.google.history import contents, is_new, sent_name
from andon.models.google.media import OLD_RULES, RULES
from andon.models.google.schema import as_gemini

_NUMBERS = ("temperature", "topP", "topK", "presencePenalty", "frequencyPenalty")
_MODES = {"AUTO": "AUTO", "ANY": "ANY", "REQUIRED": "ANY", "NONE": "NONE", "VALIDATED": "VALIDATED"}
_THINKS_NOT = r"tts|audio|live|embedding"


class Gemini:
    """A Gemini model of Google's, behind the Gemini API or Vertex AI.

    >>> Gemini("gemini-3.8-flash", thinking_level="low")
    >>> Gemini("gemini-3.8-flash", vertex=True, project="my-project", location="europe-west4")

    Without `api_key` and `base_url`, GOOGLE_API_KEY (or GEMINI_API_KEY) and GOOGLE_GEMINI_BASE_URL are used. Vertex is
    chosen by GOOGLE_GENAI_USE_VERTEXAI too, and uses GOOGLE_CLOUD_PROJECT, GOOGLE_CLOUD_LOCATION and Google's usual
    credentials. Options that you don't set are not sent, with one exception: Gemini 3 and later models are asked to
    show their thoughts (`include_thoughts`). `extra_body` takes all other options of the provider.
    """

    provider = "Google"
    telemetry_name = "gcp.gen_ai"

    def __init__(
        self,
        id: str,
        api_key: ApiKey | None = None,
        base_url: str | None = None,
        *,
        vertex: bool | None = None,
        enterprise: bool | None = None,
        project: str | None = None,
        location: str | None = None,
        credentials: Any = None,
        api_version: str | None = None,
        client: Any = None,
        http_client: HttpClient | None = None,
        timeout: Any = None,
        temperature: float | None = None,
        top_p: float | None = None,
        top_k: float | None = None,
        max_output_tokens: int | None = None,
        stop_sequences: Sequence[str] | None = None,
        seed: int | None = None,
        presence_penalty: float | None = None,
        frequency_penalty: float | None = None,
        thinking_level: str | None = None,
        thinking_budget: int | None = None,
        include_thoughts: bool | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        safety_settings: Sequence[Mapping[str, Any]] | None = None,
        cached_content: str | None = None,
        labels: Mapping[str, str] | None = None,
        extra_headers: Mapping[str, str] | None = None,
        extra_body: Mapping[str, Any] | None = None,
    ) -> None:
        self.id = _checked_id(id)
        self._is_new = is_new(id)
        thinking = _thinking(id, thinking_level, thinking_budget, include_thoughts)
        generation = {
            "temperature": temperature,
            "topP": top_p,
            "topK": top_k,
            "maxOutputTokens": max_output_tokens,
            "stopSequences": None if stop_sequences is None else list(stop_sequences),
            "seed": seed,
            "presencePenalty": presence_penalty,
            "frequencyPenalty": frequency_penalty,
            "thinkingConfig": thinking or None,
        }
        self._generation = _given(generation)
        safety = None if safety_settings is None else [_plain(each) for each in safety_settings]
        self._body = _given({"safetySettings": safety, "cachedContent": cached_content, "labels": labels})
        self._tool_choice = None if tool_choice is None else _calling(tool_choice)
        self._extra_body = {} if extra_body is None else extra_body
        self._extra_headers = {} if extra_headers is None else extra_headers
        self._timeout = timeout
        self._is_checked = False
        is_vertex = _one_of(vertex, enterprise)
        settings = Settings(api_key, base_url, is_vertex, project, location, credentials, api_version, http_client)
        self._endpoint = Endpoint(id, settings, client, timeout, self._extra_headers)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r})"  # without the settings: the key is one of them

    def check_setup(self) -> None:
        """Raise `SetupError` for what would keep every request from being sent: no key, no package, a bad option."""
        self._endpoint.check_setup()
        if not self._is_checked:
            self._check_options()
            self._is_checked = True

    def check_content(self, blocks: Sequence[Block], *, in_result: bool = False) -> None:
        """Raise `UnsupportedContentError` for an image or a file that can't be sent."""
        self._rules.check(blocks, in_result=in_result)

    async def aclose(self) -> None:
        """Close this event loop's connections, unless other models use them too.

        A client that was passed as `client=` stays open. Without this call they are closed with the loop.
        """
        await self._endpoint.aclose()

    async def stream(self, request: ModelRequest, sink: Sink) -> None:
        request = fit_media(request, self.check_content, sink)
        issuer = self._endpoint.issuer
        names = {sent_name(spec.name): spec.name for spec in request.tools}
        await self._endpoint.ask(self._request(request, issuer), GeminiAnswer(sink, issuer, names))

    @property
    def _rules(self) -> MediaRules:
        return RULES if self._is_new else OLD_RULES

    def _check_options(self) -> None:
        generation = self._generation
        check_numbers(generation, _NUMBERS)
        check_count(generation, "maxOutputTokens", least=1, told="max_output_tokens")
        check_count(generation, "seed")
        check_count(generation.get("thinkingConfig", {}), "thinkingBudget", told="thinking_budget")
        check_timeout(self._timeout)
        check_headers(self._extra_headers)
        check_mapping(self._extra_body, "extra_body")
        check_json(self._body, generation, self._tool_choice or {}, self._extra_body)

    # -- what is sent -------------------------------------------------------------------------------------------------

    def _request(self, request: ModelRequest, issuer: str) -> dict[str, Any]:
        body: dict[str, Any] = {"contents": contents(request.messages, issuer, signed=self._is_new), **self._body}
        generation = dict(self._generation)
        instructions = [request.instructions] if request.instructions else []
        tools = [_tool(spec) for spec in request.tools]
        if request.output is not None:
            schema = as_gemini(request.output.schema)
            if tools and not self._is_new:  # older models refuse a form of the answer beside tools
                instructions.append(as_instruction(schema))
            else:
                generation |= {"responseMimeType": "application/json", "responseJsonSchema": schema}
        if "cachedContent" not in self._body:  # else all of these are in the cache, and Google refuses them
            if instructions:
                body["systemInstruction"] = {"parts": [{"text": "\n\n".join(instructions)}]}
            if tools:
                body["tools"] = [{"functionDeclarations": tools}]
                if self._tool_choice is not None:
                    body["toolConfig"] = {"functionCallingConfig": self._tool_choice}
        if generation:
            body["generationConfig"] = generation
        return _merged(body, self._extra_body)


def _checked_id(id: str) -> str:
    """The id becomes part of an address."""
    if not re.fullmatch(r"[\w.@:/-]+", check_id(id, 'Gemini("gemini-3.8-flash")')) or ".." in id:
        raise ConfigurationError(f"the model's id is {id!r}; it is the name of a model, as in gemini-3.8-flash")
    return id


def _one_of(vertex: bool | None, enterprise: bool | None) -> bool | None:
    if vertex is not None and enterprise not in (None, vertex):
        raise ConfigurationError("vertex= and enterprise= are two names of one option: pass one of them")
    return enterprise if vertex is None else vertex


def _thinking(id: str, level: str | None, budget: int | None, include: bool | None) -> dict[str, Any]:
    if include is None and is_new(id) and not re.search(_THINKS_NOT, id):
        include = True
    level = level.upper() if isinstance(level, str) else level
    return _given({"includeThoughts": include, "thinkingLevel": level, "thinkingBudget": budget})


def _tool(spec: ToolSpec) -> dict[str, Any]:
    return {
        "name": sent_name(spec.name),
        "description": spec.description,
        "parametersJsonSchema": as_gemini(spec.parameters),
    }


def _calling(choice: str | Mapping[str, Any]) -> dict[str, Any]:
    """A mode, the name of the one tool that must be called, or Google's own config."""
    if isinstance(choice, Mapping):
        return dict(choice)
    if not isinstance(choice, str):
        raise SetupError(f"tool_choice is {choice!r}; it is auto, any, none, validated, or the name of a tool")
    if (mode := _MODES.get(choice.upper())) is not None:
        return {"mode": mode}
    return {"mode": "ANY", "allowedFunctionNames": [sent_name(choice)]}


def _plain(setting: Any) -> Any:
    """A setting as a dict; the SDK's users may have one of its types."""
    if hasattr(setting, "model_dump"):
        return setting.model_dump(mode="json", by_alias=True, exclude_none=True)
    return dict(setting)


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _merged(body: dict[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """The body with the extra one over it: dicts are merged, and all else is replaced."""
    for name, value in extra.items():
        known = body.get(name)
        if isinstance(known, dict) and isinstance(value, Mapping):
            body[name] = _merged(dict(known), value)
        else:
            body[name] = value
    return body

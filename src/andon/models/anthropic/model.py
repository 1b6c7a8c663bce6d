# SPDX-License-Identifier: Apache-2.0
"""The model: its options, and the body of a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from andon.errors import ConfigurationError
from andon.messages import Block
from andon.models.anthropic.answer import MessagesAnswer
from andon.models.anthropic.clients import Settings, has_key
from andon.models.anthropic.conversation import conversation
from andon.models.anthropic.endpoint import BETA_HEADER, Endpoint
from andon.models.anthropic.media import RULES
from andon.models.anthropic.schema import enforceable
from andon.models.base import ModelRequest, Sink, ToolSpec
from andon.models.common.media import fit_media
from andon.models.common.schema import as_instruction
from andon.models.common.setup import ApiKey, HttpClient, check_id

_CHOICES = {"auto": "auto", "any": "any", "required": "any", "none": "none"}
_TTLS = ("5m", "1h")
_BINDINGS = ("drop_block", "error")


class Anthropic:
    """A model of Anthropic's.

    >>> Anthropic("claude-opus-5-5", thinking=True, effort="high")

    Without `api_key`, `auth_token` and `base_url`, ANTHROPIC_API_KEY, ANTHROPIC_AUTH_TOKEN and ANTHROPIC_BASE_URL are
    used, and then other sources of the SDK, such as a profile. Options that you don't set are not sent, with two
    exceptions. `max_tokens` is the model's own limit. `cache` is on: the provider keeps the conversation for five
    minutes, or an hour with `cache="1h"`, and the next request reads it at a tenth of the price. `extra_body` takes all
    other options of the provider.

    `thinking=True` lets the model decide how much it thinks, and shows a summary of it; a dict is sent as it is.

    Some models refuse a conversation if what precedes their thinking has changed, as when instructions differ from run
    to run or a context policy leaves messages out. Then the request is sent once more, and allows the provider to drop
    such thinking. So does each later request of this model. `block_binding="drop_block"` allows it from the start, and
    `"error"` never.
    """

    provider = "Anthropic"

    def __init__(
        self,
        id: str,
        api_key: ApiKey | None = None,
        base_url: str | None = None,
        *,
        auth_token: str | None = None,
        client: Any = None,
        http_client: HttpClient | None = None,
        timeout: Any = None,
        max_tokens: int | None = None,
        thinking: bool | Mapping[str, Any] | None = None,
        effort: str | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        top_k: int | None = None,
        stop_sequences: Sequence[str] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        parallel_tool_calls: bool | None = None,
        metadata: Mapping[str, Any] | None = None,
        user: str | None = None,
        service_tier: str | None = None,
        cache: bool | str = True,
        block_binding: str | None = None,
        betas: Sequence[str] | None = None,
        extra_headers: Mapping[str, str] | None = None,
        extra_query: Mapping[str, object] | None = None,
        extra_body: Mapping[str, object] | None = None,
    ) -> None:
        self.id = check_id(id, f'{type(self).__name__}("claude-opus-5-5")')
        if api_key is not None and auth_token is not None:
            raise ConfigurationError("pass either api_key= or auth_token=, not both: a request can have only one")
        if block_binding not in (None, *_BINDINGS):
            raise ConfigurationError(f"block_binding is {block_binding!r}; it is {' or '.join(map(repr, _BINDINGS))}")
        options = {
            "timeout": timeout,
            "max_tokens": max_tokens,
            "thinking": _thinking(thinking),
            "temperature": temperature,
            "top_p": top_p,
            "top_k": top_k,
            "stop_sequences": _listed(stop_sequences),
            "metadata": _metadata(metadata, user),
            "service_tier": service_tier,
            "cache_control": _cache_control(cache),
            "extra_headers": _headers(extra_headers, betas),
            "extra_query": extra_query,
            "extra_body": extra_body,
        }
        has_own_header = isinstance(extra_headers, Mapping) and any(has_key(str(name)) for name in extra_headers)
        settings = Settings(api_key, auth_token, base_url, http_client, has_own_header)
        self._endpoint = Endpoint(settings, client, {"model": id, **options}, block_binding)
        self._tool_choice = _tool_choice(tool_choice, parallel_tool_calls)
        self._effort = {} if effort is None else {"effort": effort}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r})"  # without the settings: the key is one of them

    def check_setup(self) -> None:
        """Raise `SetupError` for what would keep every request from being sent: no key, no package, a bad option."""
        self._endpoint.check_setup()

    def check_content(self, blocks: Sequence[Block], *, in_result: bool = False) -> None:
        """Raise `UnsupportedContentError` for an image or a file that can't be sent."""
        RULES.check(blocks, in_result=in_result)

    async def aclose(self) -> None:
        """Close this event loop's connections, unless other models use them too.

        A client that was passed as `client=` stays open. Without this call they are closed with the loop.
        """
        await self._endpoint.aclose()

    async def stream(self, request: ModelRequest, sink: Sink) -> None:
        request = fit_media(request, self.check_content, sink)
        await self._endpoint.ask(self._request(request), MessagesAnswer(sink))

    def _request(self, request: ModelRequest) -> dict[str, Any]:
        body: dict[str, Any] = {}
        schema = None if request.output is None else enforceable(request.output.schema)
        system = [request.instructions or ""]
        if request.output is not None and schema is None:
            system.append(as_instruction(request.output.schema))
        if text := "\n\n".join(each for each in system if each.strip()):
            body["system"] = text
        if request.tools:
            body["tools"] = [_tool(spec) for spec in request.tools]
            if self._tool_choice is not None:  # refused if a request has no tools
                body["tool_choice"] = self._tool_choice
        form = {} if schema is None else {"format": {"type": "json_schema", "schema": schema}}
        if output := {**self._effort, **form}:
            body["output_config"] = output
        body["messages"] = conversation(request.messages)
        return body


# -- options ----------------------------------------------------------------------------------------------------------


def _thinking(given: bool | Mapping[str, Any] | None) -> dict[str, Any] | None:
    if given is None or isinstance(given, Mapping):
        return None if given is None else dict(given)
    if not isinstance(given, bool):
        raise ConfigurationError(f"thinking is {given!r}; it is True, False, or a dict like {{'type': 'adaptive'}}")
    return {"type": "adaptive", "display": "summarized"} if given else {"type": "disabled"}


def _listed(given: Sequence[str] | None) -> list[str] | None:
    if given is None:
        return None
    return [given] if isinstance(given, str) else list(given)


def _metadata(metadata: Mapping[str, Any] | None, user: str | None) -> dict[str, Any] | None:
    if metadata is None and user is None:
        return None
    return dict(metadata or {}) | ({} if user is None else {"user_id": user})


def _cache_control(cache: bool | str) -> dict[str, str] | None:
    if isinstance(cache, bool):
        return {"type": "ephemeral"} if cache else None
    if cache not in _TTLS:
        raise ConfigurationError(f"cache is {cache!r}; it is True, False, or how long: {' or '.join(map(repr, _TTLS))}")
    return {"type": "ephemeral", "ttl": cache}


def _headers(extra: Mapping[str, str] | None, betas: Sequence[str] | None) -> Mapping[str, str] | None:
    if not betas or not isinstance(extra, Mapping | None):  # what is no mapping is refused later, with a reason
        return extra
    headers = dict(extra or {})
    name = next((name for name in headers if name.lower() == BETA_HEADER), BETA_HEADER)
    listed = [betas] if isinstance(betas, str) else list(betas)
    headers[name] = ",".join([*([headers[name]] if name in headers else []), *listed])
    return headers


def _tool_choice(given: str | Mapping[str, Any] | None, parallel: bool | None) -> dict[str, Any] | None:
    choice: dict[str, Any] | None = None
    if isinstance(given, str):
        choice = {"type": _CHOICES[given]} if given in _CHOICES else {"type": "tool", "name": given}
    elif given is not None:
        choice = dict(given)
    if parallel is None or (choice or {}).get("type") == "none":
        return choice
    return {"type": "auto", **(choice or {}), "disable_parallel_tool_use": not parallel}


# -- what is sent -----------------------------------------------------------------------------------------------------


def _tool(spec: ToolSpec) -> dict[str, Any]:
    described = {"description": spec.description} if spec.description else {}
    return {"name": spec.name, **described, "input_schema": spec.parameters}

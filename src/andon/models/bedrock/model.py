# SPDX-License-Identifier: Apache-2.0
"""The model: its options, and the request that is made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from andon.errors import SetupError
from andon.messages import Block
from andon.models.base import ModelRequest, Sink
from andon.models.bedrock.answer import ConverseAnswer
from andon.models.bedrock.binding import has_place, with_leave
from andon.models.bedrock.clients import Settings
from andon.models.bedrock.endpoint import Endpoint
from andon.models.bedrock.family import family_of
from andon.models.bedrock.history import Json, messages_of, tools_of
from andon.models.bedrock.media import check
from andon.models.bedrock.schema import enforced
from andon.models.common.media import fit_media
from andon.models.common.schema import as_instruction
from andon.models.common.setup import (
    check_count,
    check_id,
    check_json,
    check_mapping,
    check_numbers,
)

_CHOICES = ("auto", "any", "tool")
_WORDS = {"auto": "auto", "any": "any", "required": "any"}


class Bedrock:
    """A model on Amazon Bedrock.

    >>> Bedrock("us.anthropic.claude-sonnet-4-5-20250929-v1:0", region="us-east-1", max_tokens=4096)

    `id` is the id of a model or of an inference profile, or the ARN of one. Without `region` and credentials, those of
    AWS's environment variables and files are used. Options that you don't set are not sent, with one exception: `cache`
    is on for Claude models that have a prompt cache, because each turn of a run repeats what the turn before has sent.
    For all other models it is off, because many of them refuse a cache point.

    `thinking` is Claude's: True (adaptive), a number of tokens, or a dict as Claude takes it. `family` says whose model
    it is ("anthropic", "amazon", …), for an ARN that hides it. `additional_model_request_fields` takes all other
    options of the model.

    Some models refuse a conversation if what precedes their thinking has changed, as when instructions differ from run
    to run. Then the request is sent once more, and allows the provider to drop such thinking. So does each later
    request of this model. With `thinking`, models that are known to do this allow it from the start.
    """

    provider = "Amazon Bedrock"
    telemetry_name = "aws.bedrock"

    def __init__(
        self,
        id: str,
        region: str | None = None,
        *,
        api_key: str | None = None,
        aws_access_key_id: str | None = None,
        aws_secret_access_key: str | None = None,
        aws_session_token: str | None = None,
        profile: str | None = None,
        base_url: str | None = None,
        client: Any = None,
        session: Any = None,
        timeout: float | None = None,
        max_connections: int | None = None,
        max_tokens: int | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        stop_sequences: Sequence[str] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        thinking: bool | int | Mapping[str, Any] | None = None,
        effort: str | None = None,
        cache: bool | str | None = None,
        native_output: bool | None = None,
        guardrail: Mapping[str, Any] | None = None,
        performance: str | None = None,
        service_tier: str | None = None,
        request_metadata: Mapping[str, str] | None = None,
        additional_model_request_fields: Mapping[str, Any] | None = None,
        family: str | None = None,
    ) -> None:
        self.id = check_id(id, 'Bedrock("us.anthropic.claude-sonnet-4-5-20250929-v1:0")')
        self._family = family_of(id, family)
        self._inference = _inference(max_tokens, temperature, top_p, stop_sequences)
        self._thinking = thinking
        self._more = {} if additional_model_request_fields is None else additional_model_request_fields
        self._effort = effort
        self._cache = self._family.caches if cache is None else cache
        self._has_output = self._family.has_output if native_output is None else native_output
        self._tool_choice = tool_choice
        self._fixed = _fixed(guardrail, performance, service_tier, request_metadata)
        self._pool = {"timeout": timeout, "max_connections": max_connections}
        settings = Settings(
            region,
            api_key,
            aws_access_key_id,
            aws_secret_access_key,
            aws_session_token,
            profile,
            base_url,
            timeout,
            max_connections,
            session,
        )
        self._endpoint = Endpoint(settings, client, self._check_options)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r})"  # without the settings: the keys are among them

    def check_setup(self) -> None:
        """Raise `SetupError` for what would keep every request from being sent: no region, no package, a bad option."""
        self._endpoint.check_setup()

    def check_content(self, blocks: Sequence[Block], *, in_result: bool = False) -> None:
        """Raise `UnsupportedContentError` for an image or a file that can't be sent."""
        check(blocks, in_result=in_result)

    async def aclose(self) -> None:
        """Close this event loop's connections, unless other models use them too.

        A client that was passed as `client=` stays open. Without this call they are closed with the loop.
        """
        await self._endpoint.aclose()

    async def stream(self, request: ModelRequest, sink: Sink) -> None:
        request = fit_media(request, self.check_content, sink)
        await self._endpoint.ask(self._body(request), ConverseAnswer(sink, self._family.name))

    # -- what is sent -------------------------------------------------------------------------------------------------

    def _body(self, request: ModelRequest) -> Json:
        messages = messages_of(request.messages, self._family)
        system: list[Json] = (
            [{"text": request.instructions}] if request.instructions and request.instructions.strip() else []
        )
        output: Json = {"effort": self._effort}
        if request.output is not None:
            output["textFormat"] = enforced(request.output) if self._has_output else None
            if output["textFormat"] is None:
                system.append({"text": as_instruction(request.output.schema)})
        tools = tools_of(request.tools, messages)
        if self._cache:
            point = {"cachePoint": {"type": "default"} | ({"ttl": self._cache} if isinstance(self._cache, str) else {})}
            # Each point caches all before it, in the order tools, system, messages. The last one moves on with the run.
            for part in (tools, system, messages[-1]["content"]):
                if part:
                    part.append(point)
        config: Json = {"tools": tools}
        if request.tools and self._tool_choice is not None:
            config["toolChoice"] = _choice(self._tool_choice)
        body = {
            "modelId": self.id,
            "messages": messages,
            "system": system or None,
            "inferenceConfig": _without_none(self._inference) or None,
            "toolConfig": config if tools else None,
            "additionalModelRequestFields": self._additional() or None,
            "outputConfig": _without_none(output) or None,
            **self._fixed,
        }
        return _without_none(body)

    def _additional(self) -> Json:
        """Claude's own fields."""
        more = dict(self._more)
        thinking = _thinking(self._thinking)
        if thinking is None:
            return more
        more["thinking"] = thinking
        if self._family.binds_thinking and "block_binding" not in thinking and has_place(more):
            return with_leave(more)
        return more

    def _check_options(self) -> None:
        inference = _without_none(self._inference)
        check_numbers(inference, ("temperature",))
        if "topP" in inference:
            check_numbers({"top_p": inference["topP"]}, ("top_p",))
        check_count(inference, "maxTokens", least=1, told="max_tokens")
        stops = inference.get("stopSequences", [])
        if isinstance(stops, str) or not all(isinstance(each, str) and each for each in stops):
            raise SetupError("stop_sequences is a list of texts, none of them empty")
        timeout = self._pool["timeout"]
        if timeout is not None and (not isinstance(timeout, int | float) or isinstance(timeout, bool) or timeout <= 0):
            raise SetupError(f"the model's timeout is {timeout!r}; it is a number of seconds, more than 0")
        check_count(_without_none(self._pool), "max_connections", least=1)
        for name, value in (
            ("guardrail", self._fixed["guardrailConfig"]),
            ("request_metadata", self._fixed["requestMetadata"]),
            ("additional_model_request_fields", self._more),
        ):
            if value is not None:
                check_mapping(value, name)
        if self._tool_choice is not None:
            _choice(self._tool_choice)
        check_json(inference, _without_none(self._fixed), self._additional())


def _inference(
    max_tokens: int | None, temperature: float | None, top_p: float | None, stops: Sequence[str] | None
) -> Json:
    listed = stops if stops is None or isinstance(stops, str) else list(stops)
    return {"maxTokens": max_tokens, "temperature": temperature, "topP": top_p, "stopSequences": listed}


def _fixed(
    guardrail: Mapping[str, Any] | None,
    performance: str | None,
    service_tier: str | None,
    request_metadata: Mapping[str, str] | None,
) -> Json:
    return {
        "guardrailConfig": guardrail,
        "performanceConfig": None if performance is None else {"latency": performance},
        "serviceTier": None if service_tier is None else {"type": service_tier},
        "requestMetadata": request_metadata,
    }


def _choice(given: str | Mapping[str, Any]) -> Json:
    """A name of a tool, one of Converse's words (or OpenAI's for one of them), or the form of Converse itself."""
    if isinstance(given, str):
        return {_WORDS[given]: {}} if given in _WORDS else {"tool": {"name": given}}
    check_mapping(given, "tool_choice")
    if len(given) != 1 or next(iter(given)) not in _CHOICES:
        raise SetupError(
            'tool_choice is "auto", "any", the name of a tool, or a dict like {"tool": {"name": "search"}}'
        )
    return dict(given)


def _thinking(given: bool | int | Mapping[str, Any] | None) -> Json | None:
    if given is None:
        return None
    if isinstance(given, bool):
        return {"type": "adaptive" if given else "disabled"}
    if isinstance(given, int):
        return {"type": "enabled", "budget_tokens": given}
    if not isinstance(given, Mapping):
        raise SetupError(f"thinking is {given!r}; it is True, False, a number of tokens, or a dict")
    return dict(given)


def _without_none(options: Mapping[str, Any]) -> Json:
    return {name: value for name, value in options.items() if value is not None}

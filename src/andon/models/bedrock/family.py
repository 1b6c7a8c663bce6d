# SPDX-License-Identifier: Apache-2.0
"""What is known of a model by its id: whose it is, and what it takes. Models differ, and Converse does not hide it.

An id is a model's, an inference profile's or an ARN with one of these in it. The ARN of an application inference
profile tells nothing; then `family=` does.
"""

from __future__ import annotations

import re

from msgspec import Struct

_FAMILY = r"(?:^|[/.:])(?P<family>[a-z0-9]+)\.(?P<model>[a-z0-9][a-zA-Z0-9.:-]*)$"
_REGIONS = r"^(?:us-gov|us|eu|apac|jp|au|ca|sa|me|af|global)\."

_NOT_CACHED = r"(?:claude-(?:v\d|instant|3-(?:haiku|sonnet|opus)|3-5-sonnet-20240620))"
_NOT_NATIVE = r"(?:claude-(?:v\d|instant|3-|(?:sonnet|opus)-4-(?:\d{8}|1-)|(?:sonnet|opus)-4$))"
_BINDS = r"claude-(?:(?:fable|mythos)-(?:5-[1-9]|[6-9])|(?:opus|sonnet|haiku)-(?:5-[5-9]|[6-9]))(?!\d)"


class Family(Struct, frozen=True):
    """What a model takes."""

    name: str | None
    """Such as `anthropic`; None if it is not known."""
    caches: bool
    """It takes cache points, and what is read from the cache is cheaper than what writing it costs more."""
    has_output: bool
    """It can be held to a JSON schema."""
    binds_thinking: bool
    """Its signatures hold only for the conversation that they were made in."""
    has_status: bool
    """It takes the status of a tool's result."""


def family_of(id: str, given: str | None = None) -> Family:
    """What is known of a model."""
    last = re.sub(_REGIONS, "", id.rpartition("/")[2])
    found = re.match(_FAMILY, last)
    name = given or (found["family"] if found else None)
    model = found["model"] if found else ""
    is_claude = name == "anthropic"
    return Family(
        name,
        caches=is_claude and bool(model) and not re.match(_NOT_CACHED, model),
        has_output=_has_output(name, model),
        binds_thinking=is_claude and re.match(_BINDS, model) is not None,
        has_status=name in ("anthropic", "amazon"),
    )


def _has_output(name: str | None, model: str) -> bool:
    if name == "anthropic":
        return bool(model) and not re.match(_NOT_NATIVE, model)
    return name in ("deepseek", "google", "minimax", "moonshot", "moonshotai", "nvidia", "openai", "qwen")

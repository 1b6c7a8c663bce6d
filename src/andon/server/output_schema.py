# SPDX-License-Identifier: Apache-2.0
"""The JSON schema that a client wants the answer to match. It is checked before the run begins."""

from __future__ import annotations

from typing import Any

from andon.agent.json_schema import MAX_DEPTH, JsonSchema
from andon.errors import ConfigurationError
from andon.server.body import read_json
from andon.server.problems import Problem


def read_output_schema(given: dict[str, Any] | str | None) -> JsonSchema | None:
    """The schema in the field `output_schema`: an object, or in a form its text."""
    if given is None:
        return None
    try:
        if isinstance(given, str):
            given = read_json(given.encode(errors="replace"), "output_schema", 422, MAX_DEPTH)
        return JsonSchema(given)
    except ConfigurationError as error:
        raise Problem(422, str(error)) from None

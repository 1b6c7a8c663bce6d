# SPDX-License-Identifier: Apache-2.0
"""JSON schemas as OpenAI's strict mode wants them: every object closed, every property required.

In strict mode the provider sees to it that the answer fits. A schema that can't be brought into that form (a dict with
any keys, say) is sent as it is, and not strict; what comes back is checked by us in either case.
"""

from __future__ import annotations

import re
from typing import Any

from andon.models.base import OutputSpec

_NO_WORD = re.compile(r"[^a-zA-Z0-9_-]")
_LEFT_OUT = frozenset({"default", "discriminator", "examples", "minLength", "maxLength", "uniqueItems"})
_NOT_STRICT = frozenset({"prefixItems", "patternProperties", "not", "if", "dependentSchemas", "propertyNames"})


class _NotStrictError(Exception):
    pass


def strict(output: OutputSpec) -> dict[str, Any]:
    """The name, the schema, and whether it is strict, as both interfaces take them."""
    name = _NO_WORD.sub("_", output.name)[:64] or "output"
    try:
        return {"name": name, "schema": _closed(output.schema), "strict": True}
    except _NotStrictError:
        return {"name": name, "schema": output.schema, "strict": False}


def _closed(schema: Any) -> Any:
    if not isinstance(schema, dict):
        raise _NotStrictError
    if _NOT_STRICT & schema.keys() or len(schema.get("allOf", ())) > 1:
        raise _NotStrictError
    if "$ref" in schema:
        return {"$ref": schema["$ref"]}  # nothing may stand beside it
    made = {key: value for key, value in schema.items() if key not in _LEFT_OUT}
    if "oneOf" in made:
        made["anyOf"] = made.pop("oneOf")
    if "allOf" in made:
        made |= _closed(made.pop("allOf")[0])
    for key in ("properties", "$defs", "definitions"):
        if key in made:
            made[key] = {name: _closed(each) for name, each in made[key].items()}
    if "anyOf" in made:
        made["anyOf"] = [_closed(each) for each in made["anyOf"]]
    if "items" in made:
        made["items"] = _closed(made["items"])
    if made.get("type") == "object":
        if made.get("additionalProperties", False) is not False or "properties" not in made:
            raise _NotStrictError
        made |= {"additionalProperties": False, "required": list(made["properties"])}
    elif not made.keys() & {"type", "anyOf", "enum", "const"}:
        raise _NotStrictError  # anything at all
    return made

# SPDX-License-Identifier: Apache-2.0
"""Results, receipts and messages as plain data: a dict, JSON, a field of a pydantic model, a FastAPI response.

What must stay true: `to_dict()`, pydantic and pydantic's JSON schema agree about the fields. Pydantic is only imported
when pydantic itself calls this module.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, get_args, get_origin

import msgspec
from msgspec import Struct

from andon.errors import AndonError, describe, say

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
    from pydantic_core import CoreSchema, SchemaSerializer
    from pydantic_core.core_schema import SerializationInfo, TypedDictField


class Plain(Struct, frozen=True):
    """A struct that can be converted to plain data. The base class adds no field, and no cost until it is used."""

    def to_dict(self) -> dict[str, Any]:
        """The types of JSON: dicts, lists, str, numbers, bools and None. An error becomes its text."""
        plain: dict[str, Any] = msgspec.to_builtins(self, str_keys=True, enc_hook=_write)
        return plain

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """Makes `dict(result)` work. FastAPI uses it for an endpoint without a return type."""
        return iter(self.to_dict().items())

    @property
    def __pydantic_serializer__(self) -> SchemaSerializer:
        """Pydantic uses it for values without a known type: in a `dict[str, Any]`, or in a field of type `Any`."""
        return _serializer()

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return _core_schema(cls, source, handler)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        described = handler(schema)
        handler.resolve_ref_schema(described).update(title=cls.__name__, description=inspect.getdoc(cls) or "")
        return described


def _write(value: Any) -> Any:
    """Convert a value that msgspec does not know. The output of a run may be a pydantic model."""
    if isinstance(value, BaseException):
        return describe(value)
    dump = getattr(value, "model_dump", None)
    return dump(mode="json") if callable(dump) and not isinstance(value, type) else say(value)


def _read(kind: Any, value: Any) -> Any:
    """The reverse of `_write`: an error becomes an `AndonError` with the same text."""
    if isinstance(kind, type) and issubclass(kind, BaseException) and isinstance(value, str):
        return AndonError(value)
    if (validate := getattr(kind, "model_validate", None)) is not None:
        return validate(value)
    raise TypeError(f"{kind!r} can't be read from plain data")


# -- for pydantic -----------------------------------------------------------------------------------------------------

_under_way: ContextVar[tuple[str, ...]] = ContextVar("_under_way", default=())
"""The structs whose schemas are being made: a recursive struct refers to itself by name."""


def _core_schema(cls: type[Plain], source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
    from pydantic_core import core_schema

    # In pydantic's format, from which it makes names such as `RunResult_Ship_`.
    ref = _ref(cls) if get_origin(source) is None else f"{_ref(cls)}[{','.join(map(_ref, get_args(source)))}]"
    if ref in _under_way.get():
        return core_schema.definition_reference_schema(ref)
    before = _under_way.set((*_under_way.get(), ref))
    try:
        given, written = _fields(cls, source, handler)
    finally:
        _under_way.reset(before)

    def validate(value: Any) -> Any:
        if isinstance(value, cls):
            return value
        try:
            return msgspec.convert(value, source, strict=False, dec_hook=_read)
        except msgspec.ValidationError as error:
            raise ValueError(str(error)) from None

    def shape(fields: dict[str, TypedDictField]) -> CoreSchema:
        # The value is plain data already, and is written as it is.
        return core_schema.typed_dict_schema(fields, serialization=core_schema.simple_ser_schema("any"))

    return core_schema.no_info_plain_validator_function(
        validate,
        ref=ref,
        json_schema_input_schema=shape(given),
        serialization=core_schema.plain_serializer_function_ser_schema(
            _as_builtins, info_arg=True, return_schema=shape(written)
        ),
    )


def _ref(kind: Any) -> str:
    return f"{kind.__module__}.{kind.__qualname__}:{id(kind)}" if isinstance(kind, type) else str(kind)


@functools.cache
def _serializer() -> SchemaSerializer:
    from pydantic_core import SchemaSerializer, core_schema

    write = core_schema.plain_serializer_function_ser_schema(_as_builtins, info_arg=True)
    return SchemaSerializer(core_schema.any_schema(serialization=write))


def _as_builtins(value: Any, info: SerializationInfo) -> Any:
    """Parts of a struct come here too; they were converted with the whole struct."""
    if not isinstance(value, Plain):
        return value
    plain: Any = value.to_dict()
    if info.exclude_none or info.exclude_defaults:
        plain = _without(value, plain, none=info.exclude_none, defaults=info.exclude_defaults)
    return plain if info.include is None and not info.exclude else _part(plain, info.include, info.exclude)


def _without(value: Any, plain: Any, *, none: bool, defaults: bool) -> Any:
    """The plain data of a value, without fields of structs that are None, or that have their default.

    Other dicts, such as metadata or the arguments of a call, keep all keys: None is a value there.
    """
    if isinstance(value, Struct) and isinstance(plain, dict):
        left = dict(plain)
        for field in msgspec.structs.fields(value):
            name, part = field.encode_name, getattr(value, field.name)
            if (none and part is None) or (defaults and not field.required and part == _default(field)):
                left.pop(name, None)
            elif name in left:
                left[name] = _without(part, left[name], none=none, defaults=defaults)
        return left
    if isinstance(value, list | tuple) and isinstance(plain, list | tuple):
        pairs = zip(value, plain, strict=True)
        return [_without(part, written, none=none, defaults=defaults) for part, written in pairs]
    return plain


def _default(field: msgspec.structs.FieldInfo) -> Any:
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


def _part(plain: Any, include: Any, exclude: Any) -> Any:
    """The part that pydantic's `include` and `exclude` leave. Both have names or indexes; a dict has more filters."""
    pairs: list[tuple[Any, Any]]
    if isinstance(plain, dict):
        pairs = list(plain.items())
    elif isinstance(plain, list | tuple):
        pairs = list(enumerate(plain))
    else:
        return plain
    left = {}
    for key, value in pairs:
        wanted, unwanted = _below(include, key, len(pairs)), _below(exclude, key, len(pairs))
        if (include is None or wanted is not None) and unwanted is not True:
            left[key] = _part(value, None if wanted is True else wanted, unwanted)
    return left if isinstance(plain, dict) else list(left.values())


def _below(filters: Any, key: Any, size: int) -> Any:
    """The filter for one key: True for all of it, another filter for parts of it, None for nothing."""
    if filters is None:
        return None
    for name in (key, key - size, "__all__") if isinstance(key, int) else (key,):
        if name in filters:
            said = filters[name] if isinstance(filters, Mapping) else True
            if said is not False:
                return True if said is ... else said
    return None


def _fields(
    cls: type[Plain], source: Any, handler: GetCoreSchemaHandler
) -> tuple[dict[str, TypedDictField], dict[str, TypedDictField]]:
    """The fields as input and as output. A field with a default may be missing in the input."""
    from pydantic_core import core_schema

    given: dict[str, TypedDictField] = {}
    written: dict[str, TypedDictField] = {}
    config = cls.__struct_config__
    if config.tag is not None and config.tag_field is not None:
        tag = core_schema.literal_schema([config.tag])
        given[config.tag_field] = written[config.tag_field] = core_schema.typed_dict_field(tag, required=True)
    for field in msgspec.structs.fields(source):
        schema = handler.generate_schema(str | None if field.type == Exception | None else field.type)
        given[field.encode_name] = core_schema.typed_dict_field(schema, required=field.required)
        always = field.required or not config.omit_defaults
        written[field.encode_name] = core_schema.typed_dict_field(schema, required=always)
    return given, written

# SPDX-License-Identifier: Apache-2.0
"""Reading what clients send: JSON, forms and queries, into one typed struct each.

The size is checked while reading, so that no client makes us hold more than the limit, whatever length it announced or
didn't. What can't be read is a 400, what can be read but means nothing a 422. Unknown fields are passed over, because
the clients of the AgentOS family send many; an empty form field is the same as none.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping
from typing import Any, TypeVar, get_args, get_type_hints
from urllib.parse import parse_qsl

import msgspec
from fastapi import Request
from msgspec import Struct
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, HTTPConnection

from andon.server.access import principal_of
from andon.server.problems import Problem

T = TypeVar("T")

CANCEL = ":cancel"
"""What follows a session's id where it is to be cancelled, and so may not be its end."""

ID_LENGTH = 256
_RUN_ID = re.compile(r"[A-Za-z0-9._~:@-]{1,256}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_NO_SUCH_WORD = re.compile(r"Invalid enum value (.*) - at `\$\.(\w+)`", re.DOTALL)


async def read_body(request: Request, kind: type[T], limit: int) -> T:
    """The body of a request as a struct; an empty body is one without fields."""
    return fill(request, await read_fields(request, limit), kind)


async def read_fields(request: Request, limit: int) -> dict[str, Any]:
    """The body's fields, as they were sent: JSON's own types, or text from a form."""
    body = await _read(request, limit)
    if not body:
        return {}
    content_type = request.headers.get("content-type", "application/json")
    media = content_type.partition(";")[0].strip().lower()
    if media == "application/json" or media.endswith("+json"):
        return _of_json(body)
    if media == "application/x-www-form-urlencoded":
        return _of_form(body)
    if media == "multipart/form-data":
        return await _of_multipart(request, body, limit)
    raise Problem(415, f"the content type is {media!r}; send JSON or a form")


def read_query(request: Request, kind: type[T]) -> T:
    return fill(request, _given(request.query_params), kind)


def fill(connection: HTTPConnection, fields: Mapping[str, Any], kind: type[T]) -> T:
    """Fields as a struct, in the name of whoever sent them: a user's token speaks for no other user."""
    given = {name: value for name, value in fields.items() if value is not None}
    names: tuple[str, ...] = getattr(kind, "__struct_fields__", ())
    return parse(principal_of(connection).signed(given, names), kind)


def parse(fields: Mapping[str, Any], kind: type[T]) -> T:
    """Fields as a struct. Text is taken for a number or a truth value where one is wanted; null is the same as none."""
    given = {name: value for name, value in fields.items() if value is not None}
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise Problem(422, _in_words(str(error), kind)) from None


def _in_words(error: str, kind: type[Any]) -> str:
    """What is wrong with a field, and where only some words mean something, which they are."""
    if (found := _NO_SUCH_WORD.fullmatch(error)) is not None:
        given, field = found.groups()
        words = (each for part in get_args(get_type_hints(kind)[field]) for each in get_args(part) or [part])
        return f"{field} is {given}; use one of {', '.join(each for each in words if isinstance(each, str))}"
    return error.replace("`$.", "`").replace("Object missing required", "there is no")


def check_session_id(given: str | None) -> None:
    """Refuse an id that no route could address."""
    if given is not None and (
        given.endswith(CANCEL)
        or "/" in given
        or given in (".", "..")
        or _CONTROL.search(given)
        or len(given) > ID_LENGTH
    ):
        rule = f"end in {CANCEL!r}, have a slash or a control character, be dots alone, or be longer than {ID_LENGTH}"
        raise Problem(
            422, f"session_id {given[:ID_LENGTH]!r} can't be the id of a session: it may not {rule} characters"
        )


def check_user_id(given: str | None) -> None:
    if given is not None and (_CONTROL.search(given) or len(given) > ID_LENGTH):
        rule = f"have a control character, or be longer than {ID_LENGTH} characters"
        raise Problem(422, f"user_id {given[:ID_LENGTH]!r} can't be the id of a user: it may not {rule}")


def check_run_id(given: str | None) -> None:
    if given is not None and not _RUN_ID.fullmatch(given):
        raise Problem(422, "run_id may have letters, digits and . _ ~ : @ -, and 256 of them at the most")


def read_key(request: Request) -> str | None:
    """The idempotency key. It is remembered, so it may not be longer than an id."""
    key = request.headers.get("idempotency-key")
    if key and len(key) > ID_LENGTH:
        raise Problem(422, f"the idempotency key has {len(key):,} characters, and may have {ID_LENGTH}")
    return key or None


def described(kind: type[Struct]) -> dict[str, Any]:
    """What a body may have, for the app's OpenAPI description; the routes read it themselves."""
    schema = msgspec.json.schema(kind)["$defs"][kind.__name__]
    types = ("application/json", "application/x-www-form-urlencoded", "multipart/form-data")
    return {"requestBody": {"content": {each: {"schema": schema} for each in types}}}


async def _read(request: Request, limit: int) -> bytes:
    # The connection is not closed for it: a client that is still sending would never read why.
    too_large = Problem(413, f"the body is larger than {limit:,} bytes")
    announced = request.headers.get("content-length", "0")
    if announced.isdigit() and int(announced) > limit:
        raise too_large
    parts, size = [], 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > limit:
                raise too_large
            parts.append(part)
    except ClientDisconnect:
        raise Problem(400, "the client left before its request was complete") from None
    return b"".join(parts)


def _of_json(body: bytes) -> dict[str, Any]:
    try:
        fields = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise Problem(400, f"the body is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise Problem(422, "the body must be a JSON object")
    return fields


def _of_form(body: bytes) -> dict[str, Any]:
    try:
        pairs = parse_qsl(body.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=1000)
    except ValueError as error:
        raise Problem(400, f"the body is not a form: {error}") from None
    return _given(dict(pairs))


async def _of_multipart(request: Request, body: bytes, limit: int) -> dict[str, Any]:
    async def stream() -> AsyncGenerator[bytes, None]:
        yield body

    parser = MultiPartParser(request.headers, stream(), max_part_size=limit)
    try:
        form = await parser.parse()
    except (MultiPartException, UnicodeDecodeError, KeyError) as error:
        reason = error.message if isinstance(error, MultiPartException) else str(error)
        raise Problem(400, f"the body is not a multipart form: {reason}") from None
    fields: dict[str, str] = {}
    try:
        for name, value in form.multi_items():
            if not isinstance(value, UploadFile):
                fields[name] = value
            elif value.filename or value.size:
                detail = f"files are not taken yet: leave out {value.filename!r} in {name!r}, or send its text"
                raise Problem(422, detail)
    finally:
        await form.close()
    return _given(fields)


def _given(fields: Mapping[str, str]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value != ""}

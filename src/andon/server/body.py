# SPDX-License-Identifier: Apache-2.0
"""Reading what clients send: JSON, forms and queries, into one typed struct each.

A file in a form becomes what a client would send as JSON: an object in a list.

The size is checked while reading: the server never holds more than the limit, with any announced length. A
body that can't be parsed is a 400. A field with a wrong value is a 422, and so is an unknown field: a misspelt limit
would otherwise be no limit. Only fields that clients of other frameworks are known to send are ignored; a struct lists
them in `ignored_fields`. An empty form field counts as missing. The query is checked before (see `query`).
"""

from __future__ import annotations

import asyncio
import base64
import gc
import hashlib
import itertools
import re
from collections.abc import AsyncGenerator, Iterable, Mapping
from typing import Any, TypeVar, get_args, get_type_hints
from urllib.parse import parse_qsl

import msgspec
from fastapi import Request
from msgspec import Struct
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, HTTPConnection

from andon.core.records import RequestKey
from andon.server.access import principal_of
from andon.server.problems import Problem

T = TypeVar("T")

CANCEL = ":cancel"
"""The suffix of a session's id in the path that cancels it. So no session id may end with it."""

MAX_DEPTH = 100
"""How deeply JSON may be nested."""
MAX_PARTS = 200_000
"""How many lists, objects, keys and values JSON may have. Parsing them blocks the event loop."""
MAX_DIGITS = 250_000
"""How many characters all numbers in it may have together. A number with many digits takes long to parse."""
MAX_METADATA = 64 * 2**10
"""How many bytes the metadata of a run may have, as JSON. They are stored, and sent in each response about the run."""
MAX_MESSAGES = 10_000
"""How many messages of history one request may send."""
_MARKS = (b"[", b"{", b",", b":")
"""Each key and each value comes after one of these."""
_SPACE = b" \t\r\n"
_ALL_BUT_BRACKETS = bytes(char for char in range(256) if char not in b"[]{}")
_ALL_BUT_DIGITS = b"[]{},:truefalsn"
"""Without these characters, the characters of numbers are left."""
_STEPS = [1 if char in b"[{" else -1 if char in b"]}" else 0 for char in range(256)]

LARGE_FORM = 2**16
"""In bytes. A larger form is parsed in a thread: text with many `%` takes long, and would block the event loop."""
ID_LENGTH = 256
SHOWN = 10
"""How many unknown fields an error names."""
_RUN_ID = re.compile(r"[A-Za-z0-9._~:@-]{1,256}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_MISSING = re.compile(r"Object missing required field `(\w+)`")
_NO_SUCH_WORD = re.compile(r"Invalid enum value (.*) - at `\$\.(\w+)`", re.DOTALL)


async def read_body(request: Request, kind: type[T], limit: int) -> T:
    """The body of a request as a struct; an empty body has no fields."""
    return convert_fields(request, await read_fields(request, limit), kind)


async def read_fields(request: Request, limit: int) -> dict[str, Any]:
    """The fields of the body as they were sent: JSON types, or text from a form."""
    body = await _read(request, limit)
    if not body:
        return {}
    content_type = request.headers.get("content-type", "application/json")
    media = content_type.partition(";")[0].strip().lower()
    if media == "application/json" or media.endswith("+json"):
        return _parse_json_body(body)
    if media == "application/x-www-form-urlencoded":
        return _parse_form(body) if len(body) < LARGE_FORM else await asyncio.to_thread(_parse_form, body)
    if media == "multipart/form-data":
        return await _parse_multipart(request, body, limit)
    raise Problem(415, f"the content type is {media!r}; send JSON or a form")


async def read_query_and_body(request: Request, limit: int) -> dict[str, Any]:
    """The fields of the query and of the body. A field that is in both must have the same value."""
    query = {name: value for name, value in request.query_params.items() if value != ""}
    body = {name: value for name, value in (await read_fields(request, limit)).items() if value is not None}
    for name in query.keys() & body.keys():
        said = body[name] if isinstance(body[name], str) else msgspec.json.encode(body[name]).decode()
        if said != query[name]:
            shown = f"{query[name][:ID_LENGTH]!r} in the URL and {said[:ID_LENGTH]!r} in the body"
            raise Problem(422, f"{name} is {shown}: leave one of them out")
    return query | body


def read_query(request: Request, kind: type[T]) -> T:
    return convert_fields(request, _empty_as_none(request.query_params), kind)


def convert_fields(connection: HTTPConnection, fields: Mapping[str, Any], kind: type[T]) -> T:
    """The fields as a struct, with the principal's own ids: a user's token can't act for another user."""
    given = {name: value for name, value in fields.items() if value is not None}
    names: tuple[str, ...] = getattr(kind, "__struct_fields__", ())
    signed = principal_of(connection).with_own_ids(given, names)
    ignored_fields: frozenset[str] = getattr(kind, "ignored_fields", frozenset())
    refuse_unknown([name for name in given if name not in names and name not in ignored_fields], names)
    try:
        # Text is converted to a number or a bool where the field has that type.
        return msgspec.convert(signed, kind, strict=False)
    except msgspec.ValidationError as error:
        raise Problem(422, _in_words(str(error), kind, fields)) from None


def refuse_unknown(unknown: list[str], known: Iterable[str], what: str = "field") -> None:
    """Raise a 422 if there are unknown fields."""
    if unknown:
        none = f"there is no {what}" if len(unknown) == 1 else f"there are no {what}s"
        there = f"there are: {', '.join(known)}" if known else "it takes none"
        raise Problem(422, f"{none} {quote_names(unknown)} in this request; {there}", unknown=unknown[:SHOWN])


def quote_names(names: list[str]) -> str:
    """The names, quoted; the first `SHOWN` of them."""
    shown = [repr(name[:ID_LENGTH]) for name in names[:SHOWN]]
    if len(names) > SHOWN:
        shown.append(f"{len(names) - SHOWN} more")
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


def parse_json_field(given: Any, name: str, kind: type, code: int = 422) -> Any:
    """A field that is JSON. In a form it is text."""
    if isinstance(given, str):
        given = read_json(given.encode(errors="replace"), name, code) if given.strip() else None
    if given is not None and not isinstance(given, kind):
        raise Problem(code, f"{name} must be {'an object' if kind is dict else 'a list'}, as JSON")
    return given


def _in_words(error: str, kind: type[Any], fields: Mapping[str, Any]) -> str:
    """The error of a field in our words. For a field with fixed values, it lists them."""
    if (missing := _MISSING.fullmatch(error)) is not None and (name := missing[1]) in fields:
        return f"{name} is empty: this request needs it"
    if (found := _NO_SUCH_WORD.fullmatch(error)) is not None:
        given, field = found.groups()
        words = (each for part in get_args(get_type_hints(kind)[field]) for each in get_args(part) or [part])
        return f"{field} is {given}; use one of {', '.join(each for each in words if isinstance(each, str))}"
    return error.replace("`$.", "`").replace("Object missing required", "there is no")


def read_metadata(given: Any, name: str = "metadata") -> dict[str, Any] | None:
    """The metadata that a client wants to store with a run. In a form it is text."""
    metadata: dict[str, Any] | None = parse_json_field(given, name, dict)
    if metadata is not None and (size := len(msgspec.json.encode(metadata))) > MAX_METADATA:
        detail = f"{name} takes {size:,} bytes as JSON, and may take {MAX_METADATA:,}"
        raise Problem(413, f"{detail}: keep large data elsewhere, and its address here")
    return metadata


def read_messages(given: Any) -> list[Any] | None:
    """A history that a client sends. In a form it is text."""
    messages: list[Any] | None = parse_json_field(given, "messages", list)
    if messages is not None and len(messages) > MAX_MESSAGES:
        detail = f"there are {len(messages):,} messages, and {MAX_MESSAGES:,} are the most"
        raise Problem(413, f"{detail}: leave out the oldest ones, or send a summary of them")
    return messages


def check_session_id(given: str | None) -> None:
    """Refuse an id that can't be used in a path."""
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


def read_key(request: Request, wanted: Struct, *more: str) -> RequestKey | None:
    """The idempotency key of a request, with a digest of the request. It is stored, so its length is limited."""
    key = request.headers.get("idempotency-key")
    if key and len(key) > ID_LENGTH:
        raise Problem(422, f"the idempotency key has {len(key):,} characters, and may have {ID_LENGTH}")
    return RequestKey(key, digest(wanted, *more)) if key else None  # only with a key: a digest takes time


def refuse_key(request: Request) -> None:
    """Refuse an idempotency key. A client whose key is ignored may send the request again and start two runs."""
    if request.headers.get("idempotency-key"):
        here = "POST /agents/{agent_id}/runs and …/runs/{run_id}/continue"
        raise Problem(422, f"the header Idempotency-Key does not work on this route: leave it out, or use {here}")


_HOW = frozenset({"stream", "background", "on_disconnect", "events"})


def digest(wanted: Struct, *more: str) -> str:
    """A digest of what the request asks for, without how it wants the response. A field with its default value makes no
    difference: another version of the server may not know the field.
    """
    fields = {field.name: (getattr(wanted, field.name), field.default) for field in msgspec.structs.fields(wanted)}
    said = sorted((name, value) for name, (value, left_out) in fields.items() if name not in _HOW and value != left_out)
    return hashlib.sha256(repr((*more, said)).encode()).hexdigest()


def openapi_body(kind: type[Struct]) -> dict[str, Any]:
    """The body in the OpenAPI document. The routes parse it themselves."""
    schema = msgspec.json.schema(kind)["$defs"][kind.__name__]
    types = ("application/json", "application/x-www-form-urlencoded", "multipart/form-data")
    return {"requestBody": {"content": {each: {"schema": schema} for each in types}}}


async def _read(request: Request, limit: int) -> bytes:
    # The connection is not closed: a client that is still sending would never read the error.
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


def read_json(text: bytes, what: str = "the body", code: int = 400, levels: int = MAX_DEPTH) -> Any:
    """Parse JSON that is neither too large nor too deep: later code walks the value, some of it by recursion.

    `levels` is the limit that the error names, if the caller has a lower limit.
    """
    too_deep = Problem(code, f"{what} is nested too deeply: {levels} levels are the most")
    bare = None
    if len(text) > MAX_PARTS:  # a shorter text can't have more parts
        bare = _outside_strings(text)
        _check_amount(bare, what)
    try:
        value = _decoded(text)
    except RecursionError:
        raise too_deep from None
    except ValueError as error:  # also for a number with too many digits
        raise Problem(code, f"{what} is not JSON: {error}") from None
    if text.count(b"[") + text.count(b"{") > MAX_DEPTH and _is_deep(_outside_strings(text) if bare is None else bare):
        raise too_deep
    return value


def _decoded(text: bytes) -> Any:
    """Without garbage collection meanwhile: it would find nothing, and take most of the time."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        return msgspec.json.decode(text)
    finally:
        if collecting:
            gc.enable()


def _outside_strings(text: bytes) -> bytes:
    """A JSON text without its strings and white space."""
    every_second = text.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"', 2 * MAX_PARTS)[::2]
    return b"".join(every_second).translate(None, _SPACE)


def _is_deep(bare: bytes) -> bool:
    brackets = bare.translate(None, _ALL_BUT_BRACKETS)
    return max(itertools.accumulate(map(_STEPS.__getitem__, brackets)), default=0) > MAX_DEPTH


def _check_amount(bare: bytes, what: str) -> None:
    """Raise if a JSON text, given without its strings, has too many parts to be parsed quickly."""
    if sum(map(bare.count, _MARKS)) > MAX_PARTS:
        detail = f"{what} has more than {MAX_PARTS:,} lists, objects, keys and values as JSON"
        raise Problem(413, f"{detail}: send less at once, or large data as one text")
    if len(bare.translate(None, _ALL_BUT_DIGITS)) > MAX_DIGITS:
        detail = f"the numbers in {what} have more than {MAX_DIGITS:,} characters together"
        raise Problem(413, f"{detail}: send less at once, or large data as one text")


def _parse_json_body(body: bytes) -> dict[str, Any]:
    fields = read_json(body)
    if not isinstance(fields, dict):
        raise Problem(422, "the body must be a JSON object")
    return fields


def _parse_form(body: bytes) -> dict[str, Any]:
    try:
        pairs = parse_qsl(body.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=1000)
    except ValueError as error:
        raise Problem(400, f"the body is not a form: {error}") from None
    return _empty_as_none(dict(pairs))


async def _parse_multipart(request: Request, body: bytes, limit: int) -> dict[str, Any]:
    async def stream() -> AsyncGenerator[bytes, None]:
        yield body

    parser = MultiPartParser(request.headers, stream(), max_part_size=limit)
    try:
        form = await parser.parse()
    except (MultiPartException, UnicodeDecodeError, KeyError) as error:
        reason = error.message if isinstance(error, MultiPartException) else str(error)
        raise Problem(400, f"the body is not a multipart form: {reason}") from None
    fields: dict[str, str] = {}
    uploads: dict[str, list[dict[str, Any]]] = {}
    try:
        for name, value in form.multi_items():
            if not isinstance(value, UploadFile):
                fields[name] = value
            elif value.filename or value.size:
                uploads.setdefault(name, []).append(await _read_upload(value))
    finally:
        await form.close()
    return {**_empty_as_none(fields), **uploads}


async def _read_upload(upload: UploadFile) -> dict[str, Any]:
    """A file of a form, as the JSON that a client could send in its place."""
    kind = (upload.content_type or "").partition(";")[0].strip().lower()
    data = base64.b64encode(await upload.read()).decode()
    if kind.startswith("image/"):
        return {"type": "image", "data": data, "media_type": kind}
    known = "" if kind == "application/octet-stream" else kind  # clients say that if they don't know the kind
    return {"type": "file", "data": data, "media_type": known, "name": upload.filename}


def _empty_as_none(fields: Mapping[str, str]) -> dict[str, Any]:
    """Empty values become None, which counts as missing. The name stays, for the error if the field is required."""
    return {name: value or None for name, value in fields.items()}

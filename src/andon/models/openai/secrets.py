# SPDX-License-Identifier: Apache-2.0
"""The secrets that go along with a request, and how they are kept out of what is said about it.

Some servers quote what they were sent: in an error, in a page, in half an event. So whatever is quoted from a provider
is cleaned first and cut afterwards. A secret that was cut in two would not be found any more, and its beginning would
be shown.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import functools
import html
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

_ESCAPES = r"\\%&+"
_ESCAPING = frozenset("\\%&+")
"""What a character begins with that is not written as it is."""

_UNFINISHED = re.compile(r"(?:[\\%&]\S{0,10})?")
"""Nothing more; or a character, written in several, of which some may be cut off."""

_BACKSLASH = re.compile(r"\\+u005c|%5c|&#0*92;|&#x0*5c;|\\", re.IGNORECASE)
BACKSLASHES = 8
"""So many may stand for one: each time that a text is quoted in JSON, their number doubles."""

SHOWN = "***"
SHORTEST = 5
"""What is shorter is no secret, and replacing it would garble every sentence."""
BEGINNING = 12
"""So many characters of a secret's beginning, or more, are hidden too: some servers quote a part of a key."""

LONGEST_EXCERPT = 200
"""So many characters of what a provider said are shown, where it was no proper error."""

_HARMLESS = frozenset(
    {
        "accept",
        "accept-encoding",
        "accept-language",
        "api-version",
        "connection",
        "content-type",
        "host",
        "http-referer",
        "openai-beta",
        "openai-organization",
        "openai-project",
        "referer",
        "user-agent",
        "x-title",
    }
)
"""Headers and parameters that hold no secret, and whose values are words that errors need. All others are hidden."""

_TELLING = re.compile(r"auth|key|token|secret|cookie|session|pass|cred|sig", re.IGNORECASE)
"""What a name has in it if its value may be a list, or a scheme, with secrets in it."""


LONGEST_TEXT = 8_192
"""More than this of what a provider said is not even looked at."""


class Secrets:
    """What must not be shown. Made when something has failed, not before."""

    __slots__ = ("_secrets",)

    def __init__(self, values: Iterable[str]) -> None:
        kept = {value for each in values if len(value := each.strip()) >= SHORTEST}
        kept |= {encoded for value in kept for encoded in _in_base64(value)}
        # A run of backslashes is one piece: any number may stand for it.
        self._secrets = [re.findall(r"\\+|.", value, re.DOTALL) for value in kept]

    @classmethod
    def of(cls, client: Any, options: Mapping[str, Any], base_url: str | None = None) -> Secrets:
        """All that a client of the SDK sends with a request that has these options."""
        return cls(_values(client, options, base_url))

    def hide(self, text: str, *, is_cut: bool = False) -> str:
        """The text without any of them, however they are written in it: as they are, escaped or encoded, and without a
        beginning of 12 characters or more.

        If the text itself `is_cut`, a shorter beginning at its end is hidden too.
        """
        if len(text) > LONGEST_TEXT:
            text, is_cut = text[:LONGEST_TEXT], True
        text = text.encode("utf-8", "replace").decode()  # no half characters: a log could not write them down
        # All are found before any is replaced: one may begin with, or within, a part of another.
        return _without(text, sorted(span for pieces in self._secrets for span in _spans(text, pieces, is_cut)))

    def excerpt(self, text: str, *, is_cut: bool = False) -> str:
        """A short piece of the text, without secrets."""
        text = " ".join(self.hide(text, is_cut=is_cut).split())
        return text if len(text) <= LONGEST_EXCERPT else f"{text[:LONGEST_EXCERPT]}…"

    def clean(self, error: BaseException) -> None:
        """Take them out of an error that is not ours, and out of those that led to it, as far as it can be done."""
        seen: BaseException | None = error
        passed: set[int] = set()
        while seen is not None and id(seen) not in passed:
            passed.add(id(seen))
            with contextlib.suppress(Exception):  # another one's class may not let its args be set
                seen.args = tuple(self.hide(each) if isinstance(each, str) else each for each in seen.args)
            seen = seen.__cause__ or seen.__context__


NONE = Secrets(())


# -- how a secret may be written --------------------------------------------------------------------------------------


def _in_base64(value: str) -> Iterator[str]:
    """The value by itself, and as a part of something else: how it is written depends on how much stands before it."""
    data = value.encode("utf-8", "replace")
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        encoded = encode(data).decode()
        yield from (encoded, encoded.rstrip("="))
        for before in range(3):  # of its first and last character, a part may be of what is around it
            bits = 8 * (before + len(data))
            yield encode(bytes(before) + data).decode()[-(-8 * before // 6) : bits // 6]


def _without(text: str, spans: list[tuple[int, int]]) -> str:
    """The text without these parts, which may overlap."""
    shown, done = [], 0
    for start, end in spans:
        if start >= done:
            shown += [text[done:start], SHOWN]
        done = max(done, end)
    return "".join([*shown, text[done:]])


def _spans(text: str, pieces: list[str], is_cut: bool) -> Iterator[tuple[int, int]]:
    """Where this secret, or enough of its beginning, stands in the text."""
    for start in re.finditer(f"[{re.escape(pieces[0][0])}{_ESCAPES}]", text):
        if (end := _end(text, start.start(), pieces, is_cut)) is not None:
            yield start.start(), end


def _end(text: str, start: int, pieces: list[str], is_cut: bool) -> int | None:
    """Where the secret that begins there ends, or as much of it as is there, if that is enough; or the text, in the
    middle of it.
    """
    at, furthest = {start}, start
    for number, piece in enumerate(pieces):
        ends = {end for position in at for end in _ends(text, position, piece)}
        if is_cut and number >= SHORTEST - 2 and any(_UNFINISHED.fullmatch(text, position) for position in at):
            return len(text)
        if not ends:
            return furthest if number >= BEGINNING else None
        at, furthest = ends, max(furthest, *ends)
    return max(at)


def _ends(text: str, at: int, piece: str) -> Iterator[int]:
    """Where a character ends that begins there, in each of the ways to write it."""
    if piece.startswith("\\"):
        for _ in range(BACKSLASHES * len(piece)):
            if (one := _BACKSLASH.match(text, at)) is None:
                return
            yield (at := one.end())
    elif text.startswith(piece, at):
        yield at + len(piece)
    if text[at : at + 1] in _ESCAPING:
        yield from (found.end() for way in _ways(piece) if (found := way.match(text, at)) is not None)


@functools.lru_cache(maxsize=256)
def _ways(piece: str) -> list[re.Pattern[str]]:
    """The ways to write a character but as it is: JSON-escaped, percent-encoded, as an HTML entity."""
    if piece.startswith("\\"):
        return []
    data = piece.encode("utf-16-be", "replace")
    escaped = "".join(rf"\\+u{data[n : n + 2].hex()}" for n in range(0, len(data), 2))
    encoded = "".join(f"%{byte:02x}" for byte in piece.encode("utf-8", "replace"))
    ways = [escaped, encoded, f"&#0*{ord(piece)};", f"&#x0*{ord(piece):x};", re.escape(html.escape(piece))]
    if not piece.isalnum():
        ways.append(rf"\\+{re.escape(piece)}")
    if piece == " ":
        ways.append(r"\+")
    return [re.compile(way, re.IGNORECASE) for way in ways]


# -- where secrets are ------------------------------------------------------------------------------------------------


def _values(client: Any, options: Mapping[str, Any], base_url: str | None) -> Iterator[str]:
    for name in ("api_key", "admin_api_key", "webhook_secret"):
        if isinstance(value := _ask(client, name), str):
            yield value
    http_client = _ask(client, "_client")
    for named in (
        options.get("headers"),
        options.get("params"),
        _ask(client, "default_headers"),
        _ask(client, "default_query"),
        _ask(http_client, "headers"),
        _ask(http_client, "params"),
    ):
        if isinstance(named, Mapping):
            yield from _named(named.items())
    for url in (base_url, _ask(client, "base_url")):
        if url is not None:
            yield from _in_url(str(url))


def _ask(thing: object, name: str) -> object:
    """An attribute of something that isn't ours; None if it has none, or fails to say."""
    try:
        return getattr(thing, name, None)
    except Exception:  # noqa: BLE001 - the boundary: what is wrong with a client is told by its use
        return None


def _named(pairs: Iterable[tuple[object, object]]) -> Iterator[str]:
    """The secrets among headers, or among the parameters of a query."""
    for name, value in pairs:
        told = name.decode("latin-1") if isinstance(name, bytes) else str(name)
        if told.lower() in _HARMLESS or told.lower().startswith("x-stainless-"):
            continue
        for each in value if isinstance(value, list | tuple) else [value]:
            if isinstance(each, str | bytes | int):
                text = each.decode("latin-1") if isinstance(each, bytes) else str(each)
                yield text
                if _TELLING.search(told):
                    yield from _parts(text)


def _parts(value: str) -> Iterator[str]:
    """`Bearer …`, `Basic …`, a cookie's pairs: their parts are secrets by themselves."""
    scheme, blank, credentials = value.partition(" ")
    if blank:
        yield credentials
    if scheme.lower() == "basic":
        with contextlib.suppress(binascii.Error, UnicodeDecodeError):
            name, _, password = base64.b64decode(credentials).decode().partition(":")
            yield from (name, password)
    for pair in re.split(r"[;,\s]+", value):
        if len(word := pair.partition("=")[2].strip('"')) >= 8:
            yield word


def _in_url(url: str) -> Iterator[str]:
    """The name and the password in it, as it has them and as they are sent, and what its query says."""
    with contextlib.suppress(ValueError):
        address = urlsplit(url)
        user, password = address.username or "", address.password or ""
        yield from (user, password, unquote(user), unquote(password))
        yield base64.b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode() if user else ""
        yield from _named(parse_qsl(address.query))

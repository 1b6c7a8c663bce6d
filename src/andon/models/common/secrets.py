# SPDX-License-Identifier: Apache-2.0
"""The secrets that are sent with a request, and how they are removed from errors about it.

Some servers quote what they were sent: in an error, in a page, in half an event. So a text of a provider is first
cleaned, and only then cut. A secret that was cut in two would no longer be found, and its beginning would be shown.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import parse_qsl, unquote, urlsplit

_ESCAPES = r"\\%&+"
_ESCAPING = frozenset("\\%&+")
"""How an escaped character begins."""

_UNFINISHED = r"(?:[\\%&]\S{0,10})?"
"""The end of the text; or an escaped character before it, of which a part may be cut off."""

_BACKSLASH = r"\\+u005c|%5c|&#0*92;|&#x0*5c;|\\"
BACKSLASHES = 8
"""How many backslashes may stand for one: each time that a text is quoted in JSON, their number doubles."""

SHOWN = "***"
SHORTEST = 5
"""A shorter value is not taken for a secret: replacing it would garble every sentence."""
BEGINNING = 12
"""If a text has the first 12 characters of a secret or more, they are hidden: some servers quote a part of a key."""

LONGEST_EXCERPT = 200
"""How many characters of a provider's text are shown, if it was not a proper error."""

HARMLESS = frozenset(
    {
        "accept",
        "accept-encoding",
        "accept-language",
        "api-version",
        "connection",
        "content-length",
        "content-type",
        "host",
        "http-referer",
        "referer",
        "user-agent",
        "x-title",
    }
)
"""Headers and parameters that hold no secret, and whose values are words that errors need. All others are hidden."""

_COMPOUND = r"auth|key|token|secret|cookie|session|pass|cred|sig"
"""Part of a name whose value may be a list, or may begin with a scheme, with secrets in it."""

LONGEST_TEXT = 8_192
"""The rest of a longer text is not searched, and not shown."""


class Secrets:
    """The values that must not be shown. Made after a failure, not before."""

    __slots__ = ("_secrets",)

    def __init__(self, values: Iterable[str]) -> None:
        kept = {value for each in values if len(value := each.strip()) >= SHORTEST}
        kept |= {encoded for value in kept for encoded in _in_base64(value)}
        # Consecutive backslashes are one piece: any number of them may stand for it.
        self._secrets = [re.findall(r"\\+|.", value, re.DOTALL) for value in kept]

    def hide(self, text: str, *, is_cut: bool = False) -> str:
        """The text without the secrets: as they are, escaped or encoded, whole or the first 12 characters or more.

        If the text `is_cut`, a shorter beginning of a secret at its end is hidden too.
        """
        if len(text) > LONGEST_TEXT:
            text, is_cut = text[:LONGEST_TEXT], True
        text = text.encode("utf-8", "replace").decode()  # a log can't write a lone surrogate
        # All are found before any is replaced: two of them may overlap.
        return _without(text, sorted(span for pieces in self._secrets for span in _spans(text, pieces, is_cut)))

    def excerpt(self, text: str, *, is_cut: bool = False) -> str:
        """A short piece of the text, without secrets."""
        text = " ".join(self.hide(text, is_cut=is_cut).split())
        return text if len(text) <= LONGEST_EXCERPT else f"{text[:LONGEST_EXCERPT]}…"

    def clean(self, error: BaseException) -> None:
        """Hide them in an error of another library, and in its causes, as far as their classes allow that."""
        seen: BaseException | None = error
        passed: set[int] = set()
        while seen is not None and id(seen) not in passed:
            passed.add(id(seen))
            with contextlib.suppress(Exception):  # a class may not let its args be set
                seen.args = tuple(self.hide(each) if isinstance(each, str) else each for each in seen.args)
            seen = seen.__cause__ or seen.__context__


NONE = Secrets(())


# -- how a secret may be written --------------------------------------------------------------------------------------


@functools.cache
def _pattern(text: str) -> re.Pattern[str]:
    """Compiled at its first use, and not at the import: secrets are only looked for after a failure."""
    return re.compile(text, re.IGNORECASE)


def _in_base64(value: str) -> Iterator[str]:
    """The value alone, and inside of something else: then its encoding depends on the length of what precedes it."""
    data = value.encode("utf-8", "replace")
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        encoded = encode(data).decode()
        yield from (encoded, encoded.rstrip("="))
        for before in range(3):  # its first and last characters may also encode bits of the neighbours
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
    """Where this secret, or enough of its beginning, is in the text."""
    for start in re.finditer(f"[{re.escape(pieces[0][0])}{_ESCAPES}]", text):
        if (end := _end(text, start.start(), pieces, is_cut)) is not None:
            yield start.start(), end


def _end(text: str, start: int, pieces: list[str], is_cut: bool) -> int | None:
    """Where the secret that begins at `start` ends; None if it does not begin there.

    If only its beginning is there, and is long enough, the end of that. If the text is cut in it, the end of the text.
    """
    at, furthest = {start}, start
    for number, piece in enumerate(pieces):
        ends = {end for position in at for end in _ends(text, position, piece)}
        if (
            is_cut
            and number >= SHORTEST - 2
            and any(_pattern(_UNFINISHED).fullmatch(text, position) for position in at)
        ):
            return len(text)
        if not ends:
            return furthest if number >= BEGINNING else None
        at, furthest = ends, max(furthest, *ends)
    return max(at)


def _ends(text: str, at: int, piece: str) -> Iterator[int]:
    """Where this character ends if it begins at `at`, for each way to write it."""
    if piece.startswith("\\"):
        for _ in range(BACKSLASHES * len(piece)):
            if (one := _pattern(_BACKSLASH).match(text, at)) is None:
                return
            yield (at := one.end())
    elif text.startswith(piece, at):
        yield at + len(piece)
    if text[at : at + 1] in _ESCAPING:
        yield from (found.end() for way in _ways(piece) if (found := way.match(text, at)) is not None)


@functools.lru_cache(maxsize=256)
def _ways(piece: str) -> list[re.Pattern[str]]:
    """The ways to escape a character: for JSON, percent-encoded, as an HTML entity."""
    import html  # here, because its table of entities takes memory, and few programs ever have such a failure

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


def in_client(
    client: object,
    *,
    keys: Iterable[str],
    urls: Iterable[object] = (),
    headers: Iterable[object] = (),
    harmless: frozenset[str] = frozenset(),
) -> Iterator[str]:
    """The secrets that a client of an SDK sends: its attributes `keys`, its headers, its query, its address.

    `headers` are more headers or parameters, and `urls` more addresses, that a request has besides. `harmless` are the
    names of headers, in lower case, that hold no secret of this provider, besides those of `HARMLESS`.
    """
    for name in keys:
        if isinstance(value := _attribute(client, name), str):
            yield value
    http_client = _attribute(client, "_client")
    for named in (
        *headers,
        _attribute(client, "default_headers"),
        _attribute(client, "default_query"),
        _attribute(http_client, "headers"),
        _attribute(http_client, "params"),
    ):
        if isinstance(named, Mapping):
            yield from in_headers(named.items(), harmless)
    for url in (*urls, _attribute(client, "base_url")):
        if url is not None:
            yield from in_url(str(url), harmless)


def _attribute(thing: object, name: str) -> object:
    """An attribute of another library's object; None if there is none, or reading it fails."""
    try:
        return getattr(thing, name, None)
    except Exception:  # noqa: BLE001 - the boundary: the request with this client reports what is wrong with it
        return None


def in_headers(pairs: Iterable[tuple[object, object]], harmless: frozenset[str] = frozenset()) -> Iterator[str]:
    """The secrets among headers, or among the parameters of a query."""
    for name, value in pairs:
        told = name.decode("latin-1") if isinstance(name, bytes) else str(name)
        lower = told.lower()
        if lower in HARMLESS or lower in harmless or lower.startswith("x-stainless-"):
            continue
        for each in value if isinstance(value, list | tuple) else [value]:
            if isinstance(each, str | bytes | int):
                text = each.decode("latin-1") if isinstance(each, bytes) else str(each)
                yield text
                if _pattern(_COMPOUND).search(told):
                    yield from _parts(text)


def _parts(value: str) -> Iterator[str]:
    """`Bearer …`, `Basic …`, a cookie's pairs: each part is a secret too."""
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


def in_url(url: str, harmless: frozenset[str] = frozenset()) -> Iterator[str]:
    """The name and the password in an address, as written and as sent, and the values of its query."""
    with contextlib.suppress(ValueError):
        address = urlsplit(url)
        user, password = address.username or "", address.password or ""
        yield from (user, password, unquote(user), unquote(password))
        yield base64.b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode() if user else ""
        yield from in_headers(parse_qsl(address.query), harmless)

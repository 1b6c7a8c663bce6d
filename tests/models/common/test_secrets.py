# SPDX-License-Identifier: Apache-2.0
"""Secrets are removed from a text however they are written in it, and are found wherever a client holds them."""

from __future__ import annotations

import base64
import html
import json
import re
import string
import urllib.parse
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from andon.models.common.secrets import (
    BEGINNING,
    LONGEST_EXCERPT,
    LONGEST_TEXT,
    SHORTEST,
    Secrets,
    in_client,
    in_headers,
    in_url,
)

KEY = "sk-proj-aB3dE5fG7h/J9+kL=mN&oP\"q'R\\sT~uV wX%2Fyz"
WAYS: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "in JSON": lambda secret: json.dumps(secret)[1:-1],
    "in JSON in JSON": lambda secret: json.dumps(json.dumps(secret)[1:-1])[1:-1],
    "in JSON with slashes escaped": lambda secret: json.dumps(secret)[1:-1].replace("/", "\\/"),
    "in JSON, every character": lambda secret: "".join(f"\\u{ord(char):04X}" for char in secret),
    "percent-encoded": lambda secret: urllib.parse.quote(secret, safe=""),
    "percent-encoded, in lower case": lambda secret: _lower(urllib.parse.quote(secret, safe="")),
    "in a form": urllib.parse.quote_plus,
    "in HTML": html.escape,
    "in HTML by numbers": lambda secret: "".join(f"&#{ord(char)};" for char in secret),
}
EASY = st.text(string.ascii_letters + string.digits + "-_", min_size=8, max_size=60)
ANY = st.text(st.characters(min_codepoint=33, max_codepoint=0x2FFF, exclude_categories=["Cs", "Z"]), min_size=8)


def _lower(encoded: str) -> str:
    return re.sub("%..", lambda found: found[0].lower(), encoded)


@pytest.mark.parametrize("name", WAYS)
def test_a_key_is_hidden_however_it_is_written(name: str) -> None:
    quoted = WAYS[name](KEY)
    assert Secrets([KEY]).hide(f"bad key {quoted}!") == "bad key ***!"
    assert Secrets([KEY]).hide(f"{quoted}{quoted} {quoted}") == "****** ***"


def test_a_key_that_is_encoded_already() -> None:
    encoded = urllib.parse.quote(KEY, safe="")
    assert Secrets([encoded]).hide(f"<{encoded}> <{WAYS['percent-encoded'](encoded)}>") == "<***> <***>"


@pytest.mark.parametrize("name", WAYS)
def test_a_text_that_was_cut_in_the_middle_of_a_key_shows_nothing_of_it(name: str) -> None:
    quoted = WAYS[name](KEY)
    width = len(WAYS[name]("s"))
    for end in range(3 * width + 1, len(quoted)):
        shown = Secrets([KEY]).excerpt(f"bad key {quoted[:end]}", is_cut=True)
        assert shown == "bad key ***", (end, shown)


@pytest.mark.parametrize("name", WAYS)
def test_a_key_at_the_border_of_the_excerpt(name: str) -> None:
    """It is hidden first, and the text is cut then: so no beginning of it is left over."""
    quoted = WAYS[name](KEY)
    for before in range(LONGEST_EXCERPT - len(quoted) - 2, LONGEST_EXCERPT + 2):
        shown = Secrets([KEY]).excerpt("x" * before + " " + quoted + " and more" * 40)
        assert "sk-" not in shown
        assert quoted[:8] not in shown


@given(secret=EASY | ANY, before=ANY, after=ANY, way=st.sampled_from(list(WAYS)))
@example(secret="aaaaaaaaab", before="aaaaaaaaa", after="b", way="as it is")
@example(secret="%41%42%43%44", before="%", after="%", way="percent-encoded")
def test_whatever_the_secret_is_and_wherever_it_stands(secret: str, before: str, after: str, way: str) -> None:
    shown = Secrets([secret]).hide(f"{before} {WAYS[way](secret)} {after}")
    assert "***" in shown
    assert secret not in shown.replace("***", "\0")


@given(secret=ANY, text=ANY)
def test_a_text_without_the_secret_stays_as_it_is(secret: str, text: str) -> None:
    harmless = "".join(char for char in text if char not in secret + "\\%&+")
    assert Secrets([secret]).hide(harmless) == harmless


@pytest.mark.parametrize("name", WAYS)
def test_a_beginning_of_a_key_is_hidden_wherever_it_stands(name: str) -> None:
    for end in range(BEGINNING, len(KEY)):
        shown = Secrets([KEY]).hide(f"bad key {WAYS[name](KEY[:end])}… try {WAYS[name](KEY[:BEGINNING])}****yz")
        assert shown == "bad key ***… try *******yz", (end, shown)
    short = WAYS[name](KEY[: BEGINNING - 1])
    assert Secrets([KEY]).hide(f"bad key {short}…") == f"bad key {short}…"


@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
@pytest.mark.parametrize("secret", [KEY, "short", "sixsix", "ÿÿÿÿÿ???"])
def test_a_key_in_base64_is_hidden(encode: Callable[[bytes], bytes], secret: str) -> None:
    quoted = encode(secret.encode()).decode()
    assert Secrets([secret]).hide(f"bad key {quoted}!") == "bad key ***!"
    assert Secrets([secret]).hide(f"bad key {quoted.rstrip('=')}!") == "bad key ***!"
    for before in ("u:", "Bearer ", "key=", "…"):
        quoted = encode(f"{before}{secret} and more".encode()).decode()
        shown = Secrets([secret]).hide(quoted)
        first, last = shown.split("***")
        assert len(first) <= len(before.encode()) * 8 / 6 + 1
        assert len(last) <= len(" and more") * 8 / 6 + 5


def test_secrets_that_share_a_beginning_or_overlap_hide_all_of_each_other() -> None:
    old, new = "sk-proj-of-old-11111111", "sk-proj-of-new-2222"
    both = Secrets([f"Bearer {old}", old, new])
    for quoted in (new, f"Bearer {new}", f"Bearer {new[:-2]}", f"{old}", f"Bearer {old[:-3]}"):
        assert both.hide(f"<{quoted}>") == "<***>"
    assert Secrets(["a" * 14 + "b"]).hide("aaa" + "a" * 14 + "b") == "***"


def test_the_longest_secret_is_hidden_first_and_short_ones_never() -> None:
    assert Secrets(["secret", "secret-and-more"]).hide("secret-and-more, secret") == "***, ***"
    assert Secrets(["x" * (SHORTEST - 1), "", "true"]).hide("xxxx, true") == "xxxx, true"


def test_a_long_text_is_not_searched_to_its_end() -> None:
    """And a key that begins where the search ends is hidden as well."""
    for before in range(LONGEST_TEXT - len(KEY), LONGEST_TEXT - 3):
        assert "sk-" not in Secrets([KEY]).hide("y" * before + KEY + "y" * 100_000)
    many = Secrets(["x" * 50 + "Ab9_" * 2_000])
    assert many.hide("x" * 100_000).replace("*", "").strip("x") == ""


def hides(secrets: Secrets, *values: str) -> None:
    for value in values:
        assert secrets.hide(f"<{value}>") == "<***>", value


def test_all_that_a_client_sends_is_a_secret() -> None:
    http_client = SimpleNamespace(
        headers={"X-Own": "own-header", b"x-bytes": b"own-bytes"}, params={"own": "own-parameter"}
    )
    client = SimpleNamespace(
        auth_token="the-auth-token",
        default_headers={"Cookie": "a=first-cookie; b=second-cookie", "X-Version": "version-1", "Accept": "anything"},
        default_query={"code": "default-query", "api-version": "2026-01-01"},
        base_url="https://name%40home:pass%2Fword@example.com/v1?sig=in-the-address",
        _client=http_client,
    )
    basic = base64.b64encode(b"joe:hunter22").decode()
    more = {"Proxy-Authorization": f"Basic {basic}", "token": ["one-token", "two-token"], "number": 12345678}
    secrets = Secrets(
        in_client(
            client,
            keys=["auth_token", "api_key"],
            urls=[None, "https://example.com/?key=in-another-address"],
            headers=[None, more],
            harmless=frozenset({"x-version"}),
        )
    )
    hides(secrets, "the-auth-token", "own-header", "own-bytes", "own-parameter", "first-cookie", "second-cookie")
    hides(secrets, "default-query", "name@home", "pass/word", base64.b64encode(b"name@home:pass/word").decode())
    hides(secrets, "in-the-address", "in-another-address", basic, "hunter22", "one-token", "two-token", "12345678")
    harmless = "version-1, anything, 2026-01-01"
    assert secrets.hide(harmless) == harmless


def test_headers_and_addresses_alone() -> None:
    assert list(in_headers([("X-Api-Key", "Bearer abc"), ("Host", "example.com")])) == ["Bearer abc", "abc"]
    assert "in-it" in list(in_url("https://example.com/?key=in-it"))
    assert list(in_url("http://[broken")) == []


def test_what_is_no_client_has_no_secrets_and_breaks_nothing() -> None:
    class Broken:
        @property
        def api_key(self) -> str:
            raise RuntimeError("no")

    assert list(in_client(Broken(), keys=["api_key"])) == []


def test_errors_of_other_libraries_are_cleaned_with_their_causes() -> None:
    class FixedError(Exception):
        @property
        def args(self) -> tuple[str]:  # type: ignore[override]
            return ("fixed",)

    error = FixedError()
    error.__cause__ = ValueError("bad sk-the-key", 7)
    Secrets(["sk-the-key"]).clean(error)
    assert error.__cause__.args == ("bad ***", 7)

# SPDX-License-Identifier: Apache-2.0
"""What others wrote can't begin another line, steer a terminal, or turn around what is shown."""

from __future__ import annotations

import json
import logging
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from andon.cli.logs import LineFormatter
from andon.cli.report import to_json
from andon.cli.terminal import note, one_line, without_controls
from andon.core.log_text import BIDI, escaped, escaped_json
from andon.server.logs import JsonFormatter, TextFormatter

ODD = "a\nb\r\x1b[31m\x00\x7f\x9b31m\u2028\u202eevil\u2066\u200f\t"
TEXT = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from(ODD))


def is_calm(text: str) -> bool:
    return not any(unicodedata.category(char) in ("Cc", "Zl", "Zp") or char in BIDI for char in text)


def test_all_that_unicode_has_for_turning_text_around_is_known() -> None:
    turning = ("LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI")
    found = {chr(code) for code in range(0x110000) if unicodedata.bidirectional(chr(code)) in turning}
    assert found <= set(BIDI)


@settings(database=None, derandomize=True, deadline=None)
@given(TEXT)
def test_text_is_one_line_that_does_nothing(text: str) -> None:
    assert is_calm(escaped(text))
    assert is_calm(one_line(text))
    assert is_calm(without_controls(text).translate(dict.fromkeys(map(ord, "\n\t\u061c\u200e\u200f"))))
    written = escaped_json(json.dumps({text: [text]}, ensure_ascii=False))
    assert is_calm(written)
    assert json.loads(written) == {text: [text]}
    assert is_calm(to_json({"text": text}))


def test_what_is_plain_stays_as_it_is() -> None:
    for text in ("", "plain", "Grüße, 你好, שלום", "👩‍💻"):
        assert escaped(text) == one_line(text) == without_controls(text) == text
    assert escaped("a\nb\x1b\u202e") == "a\\x0ab\\x1b\\u202e"
    assert without_controls("a\n\tb\x1b[1m") == "a\n\tb�[1m"


def record(message: str, **facts: str) -> logging.LogRecord:
    try:
        raise ValueError(f"no\n2026-01-01 INFO forged {message}")
    except ValueError as error:
        made = logging.LogRecord("andon", logging.WARNING, "", 1, "%s", (message,), (type(error), error, None))
    made.facts = facts
    return made


@settings(database=None, derandomize=True, deadline=None, max_examples=50)
@given(TEXT)
def test_a_line_of_the_log_is_the_formatters_own(text: str) -> None:
    """Whatever the message, an id or an exception says: what is below a line belongs to it, and shows that."""
    first, *below = TextFormatter("%(name)s: %(message)s").format(record(text, user_id=text)).split("\n")
    assert first.startswith("andon: ")
    assert is_calm(first)
    assert below
    assert all(line.startswith("  ") and is_calm(line) for line in below)
    line = JsonFormatter().format(record(text, user_id=text))
    assert is_calm(line)
    assert (json.loads(line)["message"], json.loads(line)["user_id"]) == (text, text)


@pytest.mark.parametrize("breaks", ["", "\n"])
@pytest.mark.parametrize(
    "formatter", [TextFormatter("%(name)s: %(message)s"), LineFormatter("%(name)s: %(message)s"), JsonFormatter()]
)
def test_what_is_very_long_is_cut_and_says_so(formatter: logging.Formatter, breaks: str) -> None:
    long = f"begins {('x' * 99 + breaks) * 50_000} ends"
    line = formatter.format(record(long, run_id="r1"))
    assert len(line) < 40_000
    assert line.count("characters left out") >= 2, "in the message, and in the traceback"
    assert "ValueError: no" in line
    assert "begins" in line
    if breaks:
        assert " ends" in line, "of a long traceback the end is shown, too"
    if not isinstance(formatter, LineFormatter):
        assert "r1" in line
    short = formatter.format(record("short"))
    assert "left out" not in short


def test_a_note_does_not_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    note(f"andon: {ODD}")
    assert capsys.readouterr().err == "andon: a\nb�" + "�[31m��" + "�31m��evil�\u200f\t\n"

# SPDX-License-Identifier: Apache-2.0
"""Keys, addresses and options that can't be right are refused, and no message quotes a secret."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from andon.errors import ConfigurationError, SetupError
from andon.models.common import setup

SECRET = "the-secret"


async def make_key() -> str:
    return SECRET


def test_the_first_variable_that_is_set_and_not_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("FIRST", ""), ("SECOND", "two"), ("THIRD", "three")):
        monkeypatch.setenv(f"ANDON_TEST_{name}", value)
    names = ["ANDON_TEST_NONE", "ANDON_TEST_FIRST", "ANDON_TEST_SECOND", "ANDON_TEST_THIRD"]
    assert setup.from_environment(*names) == "two"
    assert setup.from_environment(*names[:2]) is None


def test_a_missing_key_is_named_with_what_to_set() -> None:
    with pytest.raises(SetupError) as caught:
        setup.check_key(None, "Acme", "ACME_KEY", "ACME_TOKEN")
    assert (
        str(caught.value) == "there is no API key for Acme: set ACME_KEY or ACME_TOKEN, or pass api_key= to the model"
    )


@pytest.mark.parametrize("key", [SECRET, make_key])
def test_a_key_that_is_good(key: Any) -> None:
    assert setup.check_key(key, "Acme", "ACME_KEY") is key


CHECKS: list[tuple[Callable[[], object], str]] = [
    (lambda: setup.check_key(f"{SECRET}\n", "A"), "the API key has characters that no key has"),
    (lambda: setup.check_key(SECRET.encode(), "A"), "the API key is bytes; it must be text"),  # type: ignore[arg-type]
    (lambda: setup.check_url(f"joe:{SECRET}@host"), "base_url is no address of a server"),
    (lambda: setup.check_url(7), "base_url is no address of a server"),  # type: ignore[arg-type]
    (lambda: setup.check_numbers({"heat": "hot"}, ["heat"]), "heat is 'hot'; it is a number"),
    (lambda: setup.check_numbers({"heat": float("inf")}, ["heat"]), "heat is inf; it is a number"),
    (lambda: setup.check_count({"n": 0}, "n", least=1), "n is 0; it is a whole number, 1 or more"),
    (lambda: setup.check_count({"n": 1.5}, "n", told="tokens"), "tokens is 1.5; it is a whole number"),
    (lambda: setup.check_count({"n": True}, "n"), "n is True; it is a whole number"),
    (lambda: setup.check_mapping(SECRET, "extra"), "extra must be a dict, not str"),
    (lambda: setup.check_timeout(-1), "timeout is -1; it is a number of seconds, 0 or more"),
    (lambda: setup.check_timeout("soon"), "timeout is 'soon'"),
    (lambda: setup.check_headers(SECRET), "extra_headers must be a dict, not str"),
    (lambda: setup.check_headers({"X-A": 7}), "the header 'X-A' in extra_headers is int; it must be text"),
    (lambda: setup.check_headers({"X-A": f"{SECRET}\n"}), "the header 'X-A' in extra_headers has characters"),
    (lambda: setup.check_headers({"X A": SECRET}), "a name that no header can have"),
    (lambda: setup.check_json({"a": object()}), "can't be sent as JSON"),
    (lambda: setup.check_json({}, {"a": float("nan")}), "can't be sent as JSON"),
]


@pytest.mark.parametrize(("check", "words"), CHECKS)
def test_what_can_not_be_right(check: Callable[[], object], words: str) -> None:
    with pytest.raises(SetupError) as caught:
        check()
    assert words in str(caught.value)
    assert SECRET not in str(caught.value)


def test_what_is_unusual_and_good() -> None:
    class Model:
        def model_dump(self) -> dict[str, Any]:
            raise AssertionError("the SDK does that")

    setup.check_url(None)
    setup.check_url("http://[::1]:8080")
    setup.check_numbers({"heat": 1, "other": "text"}, ["heat", "absent"])
    setup.check_count({"n": -3}, "n")
    setup.check_count({}, "n", least=1)
    setup.check_timeout(None)
    setup.check_timeout(object())
    setup.check_headers({"X-A": "a\tb", "User-Agent": object()})
    setup.check_json({"at": datetime(2026, 1, 1), "model": Model()})
    assert setup.check_id("m", "Acme('m')") == "m"
    setup.check_client(None, ["key"])
    setup.check_client(object(), [None, None])


def test_an_id_and_a_client() -> None:
    wrong: list[Any] = [None, " ", 7]
    for id in wrong:
        with pytest.raises(ConfigurationError, match=r"it is the name of a model, as in Acme\('m'\)"):
            setup.check_id(id, "Acme('m')")
    with pytest.raises(ConfigurationError, match="either client= or what makes one"):
        setup.check_client(object(), [None, "key"])

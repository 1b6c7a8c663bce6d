# SPDX-License-Identifier: Apache-2.0
"""`--events` and `--keep-events`: what can't work is an error at the start, and what is away is a warning."""

from __future__ import annotations

import argparse
import logging
import sys

import pytest

from andon.cli import event_options
from andon.cli.command_error import CommandError
from andon.store.redis_events import RedisEvents
from tests.support.redis_server import redis_server


def parsed(*given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    event_options.add(parser)
    return parser.parse_args(given)


@pytest.fixture(autouse=True)
def _without_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(event_options.VARIABLE, raising=False)


def test_without_them_all_is_as_before() -> None:
    assert event_options.settings(parsed(), shared=True) == {"keep_event_minutes": None, "events": None}
    assert event_options.settings(parsed(), shared=False) == {"keep_event_minutes": None, "events": None}


def test_a_redis_that_answers_is_used(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    with redis_server() as server:
        found = event_options.settings(parsed("--events", server.url, "--keep-events", "5"), shared=True)
        assert isinstance(found["events"], RedisEvents)
        assert found["keep_event_minutes"] == 5
        monkeypatch.setenv(event_options.VARIABLE, server.url)
        assert isinstance(event_options.settings(parsed(), shared=True)["events"], RedisEvents)
        assert event_options.settings(parsed(), shared=False)["events"] is None, "the variable is for databases"
    assert not caplog.records


@pytest.mark.parametrize("url", ["kafka://broker", "redis://host:port/0", "redis://host/first"])
def test_a_url_that_can_not_work_is_an_error(url: str) -> None:
    with pytest.raises(CommandError, match="--events"):
        event_options.settings(parsed("--events", url), shared=True)


def test_a_wrong_password_is_an_error_that_does_not_show_it() -> None:
    with redis_server("secret") as server:
        wrong = server.url.replace("redis://", "redis://:guess@")
        with pytest.raises(CommandError, match="--events") as raised:
            event_options.settings(parsed("--events", wrong), shared=True)
        assert "guess" not in str(raised.value)


@pytest.mark.parametrize("how", ["kill", "hang"])
def test_a_redis_that_is_away_is_a_warning(
    how: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(event_options, "CHECK_SECONDS", 0.5)
    with redis_server() as server:
        getattr(server, how)()
        with caplog.at_level(logging.WARNING):
            found = event_options.settings(parsed("--events", server.url), shared=True)
    assert isinstance(found["events"], RedisEvents)
    assert f"events go through the database alone until {server.url} answers" in caplog.text


def test_without_the_client_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    monkeypatch.setitem(sys.modules, "redis.asyncio", None)
    monkeypatch.delitem(sys.modules, "andon.store.redis_events")
    with pytest.raises(CommandError, match=r'pip install "andon\[redis\]"'):
        event_options.settings(parsed("--events", "redis://host/0"), shared=True)


@pytest.mark.parametrize("given", [["--keep-events", "5"], ["--events", "redis://host/0"]])
def test_a_store_in_memory_has_neither(given: list[str]) -> None:
    with pytest.raises(CommandError, match="for a database"):
        event_options.settings(parsed(*given), shared=False)

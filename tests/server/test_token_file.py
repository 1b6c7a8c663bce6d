# SPDX-License-Identifier: Apache-2.0
"""A file of tokens: what changes in it counts without a restart, and what can't be used changes nothing."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from andon import Agent, ConfigurationError
from andon.models.scripted import ScriptedModel
from andon.server import Token, TokenFile, create_app, token_file
from tests.server.live import Live, serving


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(token_file, "LOOK_SECONDS", 0.0)  # so that no test waits for a second to pass
    return write(tmp_path / "tokens", "ada-1 user=ada")


def write(path: Path, *lines: str) -> Path:
    """Put another file in its place, as one should: nobody reads half of it."""
    fresh = path.with_suffix(".new")
    fresh.write_text("\n".join(lines))
    os.replace(fresh, path)
    return path


def code(live: Live, secret: str, path: str = "/agents") -> int:
    return live.client.get(path, headers={"authorization": f"Bearer {secret}"}).status_code


def served(*given: Any) -> Any:
    return serving(Agent("Helper", ScriptedModel()), tokens=list(given))


def test_tokens_are_added_and_taken_away_while_it_runs(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    with served("root-1", TokenFile(file)) as live:
        assert [code(live, each) for each in ("root-1", "ada-1", "bob-1")] == [200, 200, 401]
        write(file, "bob-1 user=bob", "olga-1 user=olga admin")
        assert [code(live, each) for each in ("root-1", "ada-1", "bob-1")] == [200, 401, 200]
        assert [code(live, each, "/metrics") for each in ("bob-1", "olga-1")] == [403, 200]
    assert "read again: 3 tokens are in use now" in caplog.text
    assert "bob-1" not in caplog.text


def test_one_token_is_spoken_of_as_one(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    with served(TokenFile(file)) as live:
        write(file, "bob-1 user=bob")
        assert code(live, "bob-1") == 200
    assert "read again: 1 token is in use now" in caplog.text


def test_a_file_that_is_written_to_is_noticed_as_well(file: Path) -> None:
    with served(TokenFile(file)) as live:
        with file.open("a") as more:
            more.write("\nbob-1 user=bob\n")
        assert [code(live, each) for each in ("ada-1", "bob-1")] == [200, 200]


def test_one_that_links_elsewhere_is_noticed_as_well(file: Path, tmp_path: Path) -> None:
    """As Kubernetes puts a secret in place."""
    link = tmp_path / "link"
    link.symlink_to(file)
    with served(TokenFile(link)) as live:
        other = write(tmp_path / "other", "ada-2 user=ada")
        fresh = tmp_path / "fresh"
        fresh.symlink_to(other)
        os.replace(fresh, link)
        assert [code(live, each) for each in ("ada-1", "ada-2")] == [401, 200]


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (lambda file: file.unlink(), "can't be read: No such file"),
        (lambda file: write(file, "geheim"), "line 1: write `TOKEN user=NAME`"),
        (lambda file: write(file, "# nobody"), "has no token"),
        (lambda file: write(file, "root-1 user=eve"), "was given before"),
        (lambda file: write(file, "gehéim user=eve"), "token 1 is empty, or has more"),
        (lambda file: file.write_bytes(b"\xff"), "it is no text"),
    ],
)
def test_what_can_not_be_used_changes_nothing_and_is_told_once(
    file: Path, break_it: Callable[[Path], object], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    with served("root-1", TokenFile(file)) as live:
        break_it(file)
        for _ in range(3):
            assert [code(live, each) for each in ("root-1", "ada-1", "geheim")] == [200, 200, 401]
        (told,) = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert words in told.getMessage()
        assert "the old ones stay in use" in told.getMessage()
        assert "geh" not in told.getMessage()
        write(file, "bob-1 user=bob")
        assert [code(live, each) for each in ("ada-1", "bob-1")] == [401, 200]


def test_it_is_looked_at_once_a_second_at_the_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = TokenFile(write(tmp_path / "tokens", "ada-1 user=ada"))
    assert [token.user_id for token in file.read()] == ["ada"]
    write(file.path, "bob-1 user=bob")
    looked = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: looked)
    assert not file.has_changed()
    monkeypatch.setattr(time, "monotonic", lambda: looked + 1.1)
    assert file.has_changed()
    assert not file.has_changed()


def test_a_file_that_can_not_be_used_keeps_a_server_from_being_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="can't be read"):
        create_app(Agent("Helper", ScriptedModel()), tokens=TokenFile(tmp_path / "nothing"))
    assert repr(TokenFile("a.txt")) == "TokenFile('a.txt')"


def test_any_source_will_do() -> None:
    class Vault:
        names = ("ada",)
        changed = False

        def read(self) -> list[Token]:
            self.changed = False
            return [Token(f"{name}-1", user_id=name) for name in self.names]

        def has_changed(self) -> bool:
            return self.changed

    vault = Vault()
    with served(vault) as live:
        assert [code(live, each) for each in ("ada-1", "bob-1")] == [200, 401]
        vault.names, vault.changed = ("bob",), True
        assert [code(live, each) for each in ("ada-1", "bob-1")] == [401, 200]

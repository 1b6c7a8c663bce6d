# SPDX-License-Identifier: Apache-2.0
"""`andon serve` and who may ask: tokens from three places, other machines, names, pages and limits."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from andon.cli import main

HANG = 60
RUNS = "/agents/helper/runs"
PROGRAM = """
from andon import Agent
from andon.models.scripted import Burst, ScriptedModel

agent = Agent("Helper", ScriptedModel(then=[Burst("x", 100)]))
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("ANDON_TOKEN", raising=False)
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path


@contextmanager
def serving(here: Path, *options: str, **environment: str) -> Iterator[tuple[httpx.Client, str]]:
    """A client to the server, and what it says how to try it."""
    with subprocess.Popen(
        [sys.executable, "-m", "andon", "serve", "program:agent", "--port", "0", *options],
        cwd=here,
        env={**os.environ, "PYTHONWARNINGS": "error", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            found = re.search(r":(\d+)$", process.stdout.readline())
            assert found, process.stderr.read()
            with httpx.Client(base_url=f"http://127.0.0.1:{found[1]}", timeout=HANG, verify=False) as client:
                yield client, process.stdout.readline()
            process.send_signal(signal.SIGTERM)
            assert process.wait(HANG) == 0
        finally:
            process.kill()
        assert process.stderr.read() == ""


def test_tokens_come_from_the_command_the_environment_and_a_file(here: Path) -> None:
    lines = ["", "# people", "ada-1 user=ada   # the first", "", "olga-1 user=olga admin", "robot-1 admin"]
    (here / "tokens").write_text("\n".join([*lines, "#eve-1 admin", "c#1 user=c#2 #c"]))
    (here / "tokens").chmod(0o600)
    options = ("--token", "t1", "--token", "t2", "--token-file", "tokens")
    with serving(here, *options, ANDON_TOKEN="t3\n") as (client, hint):
        assert "$ANDON_TOKEN" in hint

        def codes(path: str) -> list[int]:
            tokens = ("t1", "t2", "t3", "ada-1", "olga-1", "robot-1", "people", "eve-1")
            return [client.get(path, headers={"authorization": f"Bearer {each}"}).status_code for each in tokens]

        assert codes("/agents") == [200] * 6 + [401] * 2
        assert codes("/blocks") == [200, 200, 200, 403, 200, 200, 401, 401]
        assert client.get("/agents").status_code == 401
        for user, code in {"c%232": 200, "c": 403}.items():
            assert client.get(f"/runs?user_id={user}", headers={"authorization": "Bearer c#1"}).status_code == code


def test_other_machines_are_served_with_a_token_or_if_one_says_so(here: Path) -> None:
    with serving(here, "--host", "0.0.0.0", ANDON_TOKEN="t1") as (client, _):
        assert client.get("/agents").status_code == 401
    with serving(here, "--host", "0.0.0.0", "--allow-open", "--allow-host", "agents.example") as (client, hint):
        assert "TOKEN" not in hint
        assert client.get("/agents").status_code == 200
        assert client.get("/agents", headers={"host": "agents.example"}).status_code == 200
        assert client.get("/agents", headers={"host": "evil.example"}).status_code == 403


def test_pages_and_limits(here: Path) -> None:
    options = (
        "--max-events",
        "50",
        "--max-message",
        "5",
        "--max-body",
        "100",
        "--max-user-runs",
        "0",
        "--max-runs",
        "9",
    )
    with serving(here, "--cors-origin", "https://page.example", *options) as (client, _):
        page = client.get("/agents", headers={"origin": "https://page.example"})
        assert page.headers["access-control-allow-origin"] == "https://page.example"
        ended = client.post(RUNS, json={"message": "Hi", "stream": False}).json()
        assert ended["status"] == "CANCELLED"
        assert client.post(RUNS, json={"message": "Hello!"}).status_code == 413
        assert client.post(RUNS, json={"message": "H" * 100}).status_code == 413
        assert client.post(RUNS, json={"message": "Hi", "user_id": "ada"}).status_code == 429


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--host", "0.0.0.0"], "--allow-open"),
        (["--token", ""], "token 1 is empty"),
        (["--token", "geheim geheim"], "token 1"),
        (["--token-file", "nothing"], "can't be read"),
        (["--token-file", "empty"], "has no token"),
        (["--token-file", "forgotten"], "line 2: write `TOKEN user=NAME`"),
        (["--token-file", "mistyped"], "line 1"),
        (["--token-file", "two"], "line 1"),
        (["--token-file", "nobody"], "line 1"),
        (["--token-file", "binary"], "no text"),
        (["--cors-origin", "*"], "give tokens"),
        (["--cors-origin", "page.example"], "no origin"),
        (["--max-runs", "-1"], "0 or more"),
    ],
)
def test_mistakes_are_one_sentence_without_the_token(
    here: Path, options: list[str], words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "empty").write_text("# none yet\n")
    (here / "forgotten").write_text("geheim1 user=ada\ngeheim2\n")
    (here / "mistyped").write_text("geheim usr=ada\n")
    (here / "two").write_text("geheim user=ada user=bob\n")
    (here / "nobody").write_text("geheim user=\n")
    (here / "binary").write_bytes(b"\xff\xfe")
    code, told = fail(here, options, monkeypatch, capsys)
    assert code == 2
    assert words in told
    assert "geheim" not in told
    assert "Traceback" not in told


@pytest.mark.parametrize(("mode", "told"), [(0o644, 1), (0o640, 1), (0o600, 0)])
def test_a_token_file_that_others_can_read_is_told_of(
    here: Path,
    mode: int,
    told: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    (here / "tokens").write_text("geheim admin\n")
    (here / "tokens").chmod(mode)
    fail(here, ["--token-file", "tokens", "--cors-origin", "nonsense"], monkeypatch, capsys)
    assert caplog.text.count("chmod 600 tokens") == told
    assert "geheim" not in caplog.text


def test_an_empty_variable_is_a_mistake(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ANDON_TOKEN", " ")
    code, told = fail(here, [], monkeypatch, capsys)
    assert (code, "unset it" in told) == (2, True)


def fail(
    here: Path, options: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[object, str]:
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.delitem(sys.modules, "program", raising=False)
    try:
        code: object = main(["serve", "program:agent", "--port", "0", *options])
    except SystemExit as error:  # argparse's own
        code = error.code
    return code, capsys.readouterr().err

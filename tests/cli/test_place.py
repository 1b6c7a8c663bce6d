# SPDX-License-Identifier: Apache-2.0
"""Who is asked when nobody was named: the server that answers, and only without one the file in this folder."""

from __future__ import annotations

import http.server
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from andon import Agent, tool
from andon.cli import run_source, server_client
from andon.models.scripted import ScriptedModel
from tests.cli.terminal import Andon
from tests.server.live import serving, serving_on

FILE = "sqlite:///andon.db"
COMMANDS = [["ps"], ["ps", "--json"], ["watch", "r-one"], ["cancel", "r-one"], ["unblock", "--user", "u"]]


@pytest.fixture
def file(here: Path, andon: Andon) -> Path:
    """A database in this folder, with a run that is paused and one that has ended."""
    assert andon("run", "program:asker", "Hi", "--db", FILE)[0] == 4
    return here


def there(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """Have this be the address at which a server is looked for."""
    monkeypatch.setattr(run_source, "DEFAULT_URL", url)


@tool(approval=True)
async def delete(name: str) -> str:
    return f"deleted {name}"


def asker() -> Agent:
    return Agent("Asker", ScriptedModel(then="Done."), tools=[delete])


def brief() -> Agent:
    return Agent("Brief", ScriptedModel(then="Done."))


def test_the_server_is_asked_before_the_file(file: Path, andon: Andon, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(brief()) as live:
        there(monkeypatch, live.url)
        live.post("/agents/brief/runs", message="Hi", stream=False, run_id="r-one")
        code, out, err = andon("ps", "--all", "--json")
        assert code == 0
        assert [line["run_id"] for line in json.loads(out)] == ["r-one"]
        assert f"asking the server at {live.url}; to ask the file in this folder instead: --db {FILE}" in err
        _, out, err = andon("ps", "--all", "--json", "--db", FILE)
        assert [line["agent_id"] for line in json.loads(out)] == ["asker"]
        assert err == "", "it was named, so nobody has to be told"
        assert andon("watch", "r-one", "--quiet") == (0, "Done.\n", "")
        code, _, err = andon("cancel", "r-one")
        assert (code, "asking the server" in err) == (1, True), "it had completed"
        code, _, err = andon("continue", "r-one", "program:asker")
        assert (code, "runs its own agents" in err) == (2, True)


def test_a_run_is_continued_by_the_server_beside_the_file(
    file: Path, andon: Andon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What went wrong: the file answered, that nobody there could go on with it."""
    with serving(brief()) as live:
        there(monkeypatch, live.url)
        live.post("/agents/brief/runs", message="Hi", stream=False, run_id="r-one")
        live.post("/agents/brief/runs/r-one/cancel")
        code, _, err = andon("continue", "r-one")
        assert (code, "is a database" in err) == (1, False)
        assert f"{live.url} says: " in err, "the server has judged it"


def test_a_run_of_the_database_that_the_environment_names_is_continued_by_the_server_that_has_it(
    file: Path, andon: Andon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`ANDON_DB` was set for `andon serve`, and is still set where its run is answered."""
    monkeypatch.setenv("ANDON_DB", FILE)
    (paused,) = json.loads(andon("ps", "--json")[1])
    code, _, err = andon("continue", paused["run_id"], "--no-input")
    assert (code, "is a database" in err) == (2, True), "no server is there"
    with serving_on(FILE, asker()) as live:
        there(monkeypatch, live.url)
        code, out, _ = andon("continue", paused["run_id"], "--answer", "d-1=true")
        assert (code, out) == (0, "Done.\n")
    with serving(brief()) as live:
        there(monkeypatch, live.url)
        code, _, err = andon("continue", paused["run_id"], "--no-input")
        assert (code, "is a database" in err) == (2, True), "that server does not know the run"


def test_without_a_server_the_file_is_asked(file: Path, andon: Andon, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        url = f"http://127.0.0.1:{gone.getsockname()[1]}"
    there(monkeypatch, url)
    code, out, err = andon("ps")
    assert (code, "asker" in out) == (0, True)
    assert err == f"· asking {FILE}: no server answers at {url}\n"
    run_id = json.loads(andon("ps", "--json")[1])[0]["run_id"]
    code, _, err = andon("watch", run_id)
    assert code == 4
    assert f"andon continue {run_id} module:agent --db {FILE} --answer d-1=true" in err, "also if a server comes up"


def test_without_either_the_server_is_missed(andon: Andon, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        there(monkeypatch, f"http://127.0.0.1:{gone.getsockname()[1]}")
    code, out, err = andon("ps")
    assert (code, out) == (5, "")
    assert "is `andon serve` running there?" in err


@pytest.mark.parametrize("command", COMMANDS)
def test_a_server_that_wants_a_token_is_not_passed_over(
    file: Path, andon: Andon, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    with serving(brief(), tokens="t1") as live:
        there(monkeypatch, live.url)
        code, out, err = andon(*command)
        assert (code, out) == (2, "")
        assert f"{live.url} wants a token: give it with --token or ANDON_TOKEN" in err
        assert f"--db {FILE}" in err
        assert "does not know this token" in andon(*command, "--token", "t2")[2]
        assert andon("ps", "--token", "t1")[0] == 0


@contextmanager
def answering(status: int, body: bytes, sent: list[str | None] | None = None) -> Iterator[str]:
    """Some other program. `sent` gets the token of each request."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if sent is not None:
                sent.append(self.headers["authorization"])
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("status", "body"),
    [(200, b"<html>"), (404, b'{"detail": "Not Found"}'), (404, b"no"), (200, b"[]"), (401, b"who are you?")],
)
def test_another_program_at_that_address_is_no_server(
    file: Path, andon: Andon, monkeypatch: pytest.MonkeyPatch, status: int, body: bytes
) -> None:
    with answering(status, body) as url:
        there(monkeypatch, url)
        code, out, err = andon("ps")
        assert (code, "asker" in out) == (0, True)
        assert f"no server answers at {url}" in err


@pytest.mark.parametrize("with_file", [True, False])
def test_another_program_at_that_address_gets_no_token(
    here: Path, andon: Andon, monkeypatch: pytest.MonkeyPatch, with_file: bool
) -> None:
    if with_file:
        andon("run", "program:asker", "Hi", "--db", FILE)
    sent: list[str | None] = []
    with answering(200, b"[]", sent) as url:
        there(monkeypatch, url)
        monkeypatch.setenv("ANDON_TOKEN", "s3cret")
        andon("ps")
    assert sent == [None] * (1 if with_file else 2)


def test_a_server_that_hangs_is_not_passed_over(file: Path, andon: Andon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_client, "ANSWER_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        there(monkeypatch, f"http://127.0.0.1:{silent.getsockname()[1]}")
        code, out, err = andon("ps")
    assert (code, out) == (5, "")
    assert "timed out" in err
    assert "--db" in err

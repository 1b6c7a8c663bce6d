# SPDX-License-Identifier: Apache-2.0
"""`andon mcp --http` and who may call: the tokens of `andon serve`, and other machines."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from andon.errors import ToolSourceError
from andon.tools.mcp import MCPServer
from tests.cli.terminal import Andon
from tests.support import HANG

AGENT = """
from andon import Agent
from andon.models.scripted import ScriptedModel

def answer(request):
    return f"message {len(request.messages)}"

agent = Agent("Helper", ScriptedModel(then=answer))
"""
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("ANDON_TOKEN", raising=False)
    (tmp_path / "program.py").write_text(AGENT)
    return tmp_path


@contextmanager
def serving(here: Path, *options: str, **environment: str) -> Iterator[str]:
    command = [sys.executable, "-m", "andon", "mcp", "program:agent", "--http", "0", *options]
    with subprocess.Popen(
        command, cwd=here, env={**os.environ, **environment}, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            found = re.search(r"at http://\S+:(\d+)/mcp", process.stderr.readline())
            assert found
            yield f"http://127.0.0.1:{found[1]}/mcp"
            process.send_signal(signal.SIGTERM)
            assert process.wait(HANG) == 0
        finally:
            process.kill()


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


async def ask(url: str, token: str | None, session_id: str = "s", **options: Any) -> str:
    headers = None if token is None else bearer(token)
    async with MCPServer(url=url, name="andon", headers=headers, **options) as server:
        return str(await server.call("helper", {"message": "Hello", "session_id": session_id}))


def test_tokens_come_from_the_command_the_environment_and_a_file(here: Path) -> None:
    (here / "tokens").write_text("ada-1 user=ada\nrobot-1 admin\n")
    (here / "tokens").chmod(0o600)

    async def main(url: str) -> None:
        for number, token in enumerate(("t1", "t2", "t3", "ada-1", "robot-1")):
            assert await ask(url, token, str(number)) == "message 1"
        for wrong in ("t4", None):
            with pytest.raises(
                ToolSourceError, match=r"it answered 401 Unauthorized. Does it need another token, headers={…}\?"
            ):
                await ask(url, wrong)
        async with httpx.AsyncClient() as client:
            for headers, said in (({}, "a token is needed"), (bearer("t4"), "this token is not known here")):
                for method in ("POST", "GET", "DELETE"):
                    refused = await client.request(method, url, headers=headers)
                    assert refused.status_code == 401
                    assert refused.headers["www-authenticate"] == "Bearer"
                    assert said in refused.json()["detail"]

    with serving(here, "--token", "t1", "--token", "t2", "--token-file", "tokens", ANDON_TOKEN="t3\n") as url:
        asyncio.run(main(url))


@pytest.mark.parametrize("protocol", ["auto", "legacy"])
def test_a_token_of_a_user_has_that_users_conversations(here: Path, protocol: str) -> None:
    (here / "tokens").write_text("ada-1 user=ada\nada-2 user=ada\nolga-1 user=olga\nrobot-1 admin\n")
    (here / "tokens").chmod(0o600)

    async def main(url: str) -> None:
        for token, said in (("ada-1", 1), ("olga-1", 1), ("ada-2", 3), ("robot-1", 1), ("robot-1", 3)):
            assert await ask(url, token, protocol=protocol) == f"message {said}"

    with serving(here, "--token-file", "tokens") as url:
        asyncio.run(main(url))


def test_a_session_of_the_protocol_is_for_the_user_who_began_it(here: Path) -> None:
    (here / "tokens").write_text("ada-1 user=ada\nolga-1 user=olga\n")
    (here / "tokens").chmod(0o600)
    accepts = {"accept": "application/json, text/event-stream"}
    with serving(here, "--token-file", "tokens") as url, httpx.Client(headers=accepts) as client:
        begun = client.post(url, json=INITIALIZE, headers=bearer("ada-1"))
        assert begun.status_code == 200
        session = {"mcp-session-id": begun.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
        asked = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
        client.post(
            url, json={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=session | bearer("ada-1")
        )
        assert client.post(url, json=asked, headers=session | bearer("ada-1")).status_code == 200
        assert client.post(url, json=asked, headers=session | bearer("olga-1")).status_code == 404


def test_a_token_that_is_taken_out_of_the_file_is_refused(here: Path) -> None:
    (here / "tokens").write_text("ada-1 user=ada\nolga-1 user=olga\n")
    (here / "tokens").chmod(0o600)

    async def main(url: str) -> None:
        async with MCPServer(url=url, name="andon", headers=bearer("ada-1")) as server, httpx.AsyncClient() as client:
            (here / "tokens").write_text("olga-1 user=olga\n")
            async with asyncio.timeout(HANG):
                while (await client.post(url, headers=bearer("ada-1"))).status_code != 401:
                    pass  # the file is looked at once a second
            with pytest.raises(ToolSourceError, match="refuses the call: it answered 401 Unauthorized"):
                await server.call("helper", {"message": "Hello"})
            assert await ask(url, "olga-1") == "message 1"

    with serving(here, "--token-file", "tokens") as url:
        asyncio.run(main(url))


def test_other_machines_need_a_token(here: Path, andon: Andon) -> None:
    code, _, err = andon("mcp", "program:agent", "--http", "0", "--host", "0.0.0.0")
    assert code == 2
    assert "0.0.0.0 can be reached from other machines, and there is no token" in err
    assert "Set ANDON_TOKEN or give --token-file" in err
    with serving(here, "--host", "0.0.0.0", "--token", "t1") as url:
        assert asyncio.run(ask(url, "t1")) == "message 1"
    with serving(here, "--host", "localhost") as url:
        assert asyncio.run(ask(url, None)) == "message 1"


def test_without_a_token_only_names_of_this_machine_are_served(here: Path) -> None:
    """A web page can let its own name point to this machine."""
    with serving(here) as url:
        assert httpx.post(url, json=INITIALIZE, headers={"host": "evil.example"}).status_code == 421


def test_tokens_need_the_server(here: Path) -> None:
    code = """
import sys
sys.modules["fastapi"] = None  # as if it were not installed
from andon.cli import main
sys.exit(main(["mcp", "program:agent", "--http", "0"]))
"""
    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=here,
        env={**os.environ, "ANDON_TOKEN": "t"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2
    assert "tokens (ANDON_TOKEN, --token, --token-file) need an extra" in ended.stderr
    assert 'pip install "andon[server]"' in ended.stderr


def test_mistakes_are_told(here: Path, andon: Andon, monkeypatch: pytest.MonkeyPatch) -> None:
    for options in (["--host", "127.0.0.1"], ["--token", "t"], ["--token-file", "f"]):
        code, _, err = andon("mcp", "program:agent", *options)
        assert code == 2
        assert "--host, --token and --token-file are for --http" in err
    code, _, err = andon("mcp", "program:agent", "--http", "0", "--token-file", "nothing")
    assert code == 2
    assert "--token-file nothing can't be read" in err
    code, _, err = andon("mcp", "program:agent", "--http", "99999")
    assert code == 2
    assert "it is a number from 0 to 65535" in err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, _, err = andon("mcp", "program:agent", "--http", str(taken.getsockname()[1]))
        assert code == 2
        assert "choose another port with --http" in err
    monkeypatch.setenv("ANDON_TOKEN", " ")
    code, _, err = andon("mcp", "program:agent", "--http", "0")
    assert code == 2
    assert "ANDON_TOKEN is set, and empty" in err

# SPDX-License-Identifier: Apache-2.0
"""What a server writes: a line per request, runs by their ids, and never a secret."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from andon.testing.providers import FakeChat, fail
from tests.support import HANG

RUNS = "/agents/helper/runs"
TOKEN, ADA, KEY = "token-of-the-admin", "token-of-ada", "sk-key-of-the-provider"

PROGRAM = """
import logging
import os
from andon import Agent, tool
from andon.models.openai import OpenAIChat
from andon.models.scripted import Call, ScriptedModel, Stall

@tool
async def look() -> str:
    "Look around."
    logging.getLogger("mine").warning("looked\\naround")
    return "Nothing."

@tool
async def fall() -> str:
    "Fall."
    raise ValueError("over a root")

clumsy = Agent("Clumsy", ScriptedModel(Call("fall"), then="Ouch."), tools=[fall])
helper = Agent("Helper", ScriptedModel(Call("look"), then="OK."), tools=[look])
silent = Agent("Silent", ScriptedModel(then=Stall()))
paid = Agent("Paid", OpenAIChat("gpt-5.2", api_key=os.environ["KEY"], base_url=os.environ["URL"]))
agents = [helper, silent, paid, clumsy]
"""


class Logged:
    """A server in a process of its own, and all that it has written at its end."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process, self.output = process, ""
        assert process.stdout is not None
        self.first = process.stdout.readline()
        found = re.search(r"at (http://\S+)$", self.first)
        assert found, self.first + str(process.stderr and process.stderr.read())
        self.client = httpx.Client(base_url=found[1], timeout=HANG, verify=False)

    def end(self) -> list[str]:
        self.client.close()
        self.process.send_signal(signal.SIGTERM)
        out, told = self.process.communicate(timeout=HANG)
        assert self.process.returncode == 0
        self.output = self.first + out + told
        return told.splitlines()


@contextlib.contextmanager
def logging(
    here: Path, *options: str, url: str = "http://127.0.0.1:9", before: str = "", **environment: str
) -> Iterator[Logged]:
    (here / "program.py").write_text(before + PROGRAM)
    (here / "tokens").write_text(f"# who may ask\n{ADA} user=ada\n")
    (here / "tokens").chmod(0o600)
    command = [sys.executable, "-m", "andon", "serve", "program:agents", "--port", "0", "--drain", "0", *options]
    with subprocess.Popen(
        command,
        cwd=here,
        env={**os.environ, "PYTHONWARNINGS": "error", "KEY": KEY, "URL": url, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Logged(process)
        finally:
            process.kill()


def test_every_line_is_an_object_that_names_its_run(tmp_path: Path) -> None:
    with logging(tmp_path, "--log-format", "json") as logged:
        wanted = {"message": "Hi", "run_id": "r1", "session_id": "s1", "user_id": "ada", "stream": False}
        assert logged.client.post(RUNS, json=wanted).status_code == 200
        assert logged.client.get("/runs", params={"session_id": "not-for-the-log"}).status_code == 200
        logged.client.get("/agents/nobody%0Aelse")
        lines: list[dict[str, Any]] = [json.loads(line) for line in logged.end()]
    mine = next(line for line in lines if line["logger"] == "mine")
    assert (mine["level"], mine["message"]) == ("warning", "looked\naround")
    names = {"run_id": "r1", "session_id": "s1", "agent_id": "helper", "user_id": "ada"}
    assert names.items() <= mine.items()
    started, listed, missed = (line for line in lines if line["logger"] == "andon.access")
    assert listed["path"] == "/runs"
    assert {"method": "POST", "path": RUNS, "status": 200, **names}.items() <= started.items()
    assert started["ms"] > 0
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", started["time"])
    assert (missed["path"], missed["status"]) == ("/agents/nobody%0Aelse", 404)
    assert "run_id" not in missed
    assert "not-for-the-log" not in logged.output


def test_in_text_a_line_is_a_line(tmp_path: Path) -> None:
    with logging(tmp_path, "--log-format", "text") as logged:
        logged.client.post(RUNS, data={"message": "Hi", "run_id": "r1", "session_id": "s1"})
        lines = logged.end()
    mine, access = (line for line in lines if " mine " in line or " andon.access " in line)
    assert mine.endswith("WARNING mine looked\\x0aaround [run_id=r1 session_id=s1 agent_id=helper]")
    assert re.search(rf"INFO andon.access POST {RUNS} 200 [\d.]+ ms \[run_id=r1 ", access)


def test_without_being_asked_it_tells_of_nothing_but_trouble(tmp_path: Path) -> None:
    with logging(tmp_path) as logged:
        logged.client.get("/agents")
        assert logged.end() == []


def test_without_being_asked_it_tells_of_trouble_and_who_used_the_kill_switch(tmp_path: Path) -> None:
    with logging(tmp_path, "--token", TOKEN) as logged:
        logged.client.headers["authorization"] = f"Bearer {TOKEN}"
        wanted = {"message": "Hi", "run_id": "r1", "session_id": "s1", "stream": False}
        assert logged.client.post("/agents/clumsy/runs", json=wanted).status_code == 200
        for which in ({"all": True}, {"agent_id": "helper", "reason": "it\nmisbehaves"}, {"session_id": "s1"}):
            assert logged.client.post("/runs/cancel", json={**which, "by": "ann"}).status_code == 200
        blocked = logged.client.post("/runs/cancel", json={"user_id": "bob", "block": True})
        assert blocked.status_code == 200
        lines = logged.end()
    tool, *traceback = lines[: (cancels := [" cancels " in line for line in lines].index(True))]
    about = "[run_id=r1 session_id=s1 agent_id=clumsy]"
    assert tool == f"WARNING andon.agent.tool_runner: tool fall (call_1) failed: ValueError: over a root {about}"
    assert traceback[0] == "    Traceback (most recent call last):"
    assert traceback[-1] == "    ValueError: over a root"
    assert all(line.startswith("    ") for line in traceback)
    assert lines[cancels:] == [
        "WARNING andon.server.authorized_host: ann cancels all runs (no reason given)",
        "WARNING andon.server.authorized_host: ann cancels all runs of agent 'helper' (it\\x0amisbehaves)",
        "WARNING andon.server.authorized_host: admin cancels all runs of user 'bob' (no reason given)",
        "WARNING andon.server.authorized_host: user 'bob' was blocked by admin (no reason given)",
    ]


def test_a_program_that_has_set_up_a_log_keeps_it(tmp_path: Path) -> None:
    """And one that has only silenced a library's complaints has set up none."""
    for setting, kept in (
        ("logging.basicConfig(filename='own.log', level=logging.INFO)", True),
        ("logging.basicConfig(filename='own.log', filemode='w')", True),  # which could not be opened again
        ("logging.getLogger('andon').addHandler(logging.FileHandler('own.log', 'w'))", True),
        ("logging.getLogger().addHandler(logging.NullHandler())", False),
    ):
        with logging(tmp_path, before=f"import logging\n{setting}\n") as logged:
            logged.client.post("/runs/cancel", json={"all": True, "by": "ann\nCRITICAL", "reason": "so\nCRITICAL"})
            lines = logged.end()
        told = (tmp_path / "own.log").read_text() if kept else "\n".join(lines)
        assert "cancels all runs" in told
        assert not any(line.startswith("CRITICAL") for line in told.splitlines())  # a log of one's own escapes nothing
        assert bool(lines) is not kept


@pytest.mark.parametrize("style", ["json", "text"])
def test_no_secret_is_ever_written(tmp_path: Path, style: str) -> None:
    """A server that was used with right and wrong tokens, and whose provider fails and quotes the key."""
    wrong = "a-wrong-token"
    with FakeChat([[fail(401, f"Incorrect API key provided: {KEY}")]] * 2, api_key=KEY) as fake:
        options = ("--token", TOKEN, "--token-file", "tokens", "--log-format", style)
        with logging(tmp_path, *options, url=fake.base_url) as logged:
            told = []
            for secret in (TOKEN, ADA, wrong, f"{TOKEN} and more"):
                headers = {"authorization": f"Bearer {secret}"}
                told.append(logged.client.get("/agents", headers=headers))
                told.append(logged.client.post(RUNS, data={"message": "Hi"}, headers=headers))
                told.append(logged.client.post("/agents/paid/runs", data={"message": "Hi"}, headers=headers))
                wanted = {"message": "Hi", "run_id": f"r{len(told)}", "background": "true", "stream": "false"}
                told.append(logged.client.post("/agents/silent/runs", data=wanted, headers=headers))
                cancel = f"/agents/silent/runs/{wanted['run_id']}/cancel?wait=30"
                told.append(logged.client.post(cancel, headers=headers))
            assert {answer.status_code for answer in told} == {200, 202, 401}
            assert "RunError" in told[2].text
            url = str(logged.client.base_url).replace("http", "ws", 1)
            protocols: Any = ["andon", f"bearer.{wrong}"]
            with pytest.raises(InvalidStatus):
                connect(f"{url}/run_live", subprotocols=protocols, proxy=None)
            logged.client.get(f"/agents?token={wrong}")
            logged.end()
        for text in (logged.output, *(answer.text for answer in told)):
            for secret in (TOKEN, ADA, wrong, KEY):
                assert secret not in text
        assert "run" in logged.output

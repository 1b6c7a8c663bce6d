# SPDX-License-Identifier: Apache-2.0
"""The commands against a real server on loopback: ps, watch, cancel, continue; and servers that are not there."""

from __future__ import annotations

import http.server
import json
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from andon import Agent, CancelCause, tool
from andon.cli import server_client
from andon.cli.server_client import ServerSource
from andon.core.run.handle import local_run
from andon.models.scripted import Call, Fail, ScriptedModel, Stall
from andon.testing import probe
from tests.cli.terminal import Andon
from tests.server.live import Live, serving
from tests.support import HANG, Flag, Hold, Worker, eventually, forever
from tests.support.till import DELETE, PAY, Till


def talker() -> Agent:
    return Agent("Talker", ScriptedModel(then=["One ", Stall()]))


def start(live: Live, agent: Agent, run_id: str = "r-one", **fields: Any) -> str:
    """A run in the background that has begun to speak, or has ended."""
    path = f"/agents/{agent.id}/runs"
    answer = live.post(path, message="Hi", stream=False, background=True, run_id=run_id, **fields)
    assert answer.status_code == 202
    run = live.run_of(agent, run_id)
    eventually(lambda: len(probe(run).events) > 1)
    return run_id


# -- ps ---------------------------------------------------------------------------------------------------------------


def test_runs_are_listed(andon: Andon) -> None:
    agent, brief = talker(), Agent("Brief", ScriptedModel(then="Done."))
    with serving(agent, brief) as live:
        url = ("--url", live.url)
        code, out, err = andon("ps", *url)
        assert (code, out) == (0, "")
        assert f"no runs at {live.url}" in err
        start(live, agent, session_id="s1", user_id="ada")
        start(live, brief, "r-two")
        eventually(lambda: live.run_of(brief, "r-two").status.final)
        code, out, _ = andon("ps", *url)
        assert code == 0
        assert re.fullmatch(r"RUN +AGENT +STATUS.*\nr-one  talker  running  streaming  s1 +ada   \ds\n", out)
        _, out, _ = andon("ps", "--all", "--json", *url)
        assert {line["run_id"]: line["status"] for line in json.loads(out)} == {
            "r-one": "RUNNING",
            "r-two": "COMPLETED",
        }
        _, out, err = andon("ps", "--all", "--limit", "1", *url)
        assert "r-one" not in out
        assert "more than 1" in err
        for option, value, found in (("agent", "brief", 1), ("user", "ada", 1), ("session", "s2", 0)):
            _, out, _ = andon("ps", "--all", "--json", f"--{option}", value, *url)
            assert len(json.loads(out)) == found


def test_the_server_may_be_named_by_the_environment(andon: Andon, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(talker()) as live:
        monkeypatch.setenv("ANDON_URL", f"{live.url}/")
        assert andon("ps", "--json") == (0, "[]\n", "")


# -- watch ------------------------------------------------------------------------------------------------------------


@contextmanager
def ending(live: Live, agent: Agent, run_id: str, act: Callable[[], object]) -> Iterator[None]:
    """Do something to a run as soon as someone watches it."""
    run = live.run_of(agent, run_id)

    def when_watched() -> None:
        eventually(lambda: bool(local_run(run).journal.waiters.wakes))
        act()

    worker = Worker(when_watched)
    yield
    worker.done()


def test_a_run_is_followed_to_its_end(andon: Andon) -> None:
    agent, go_on = Agent("Holder"), Flag()
    agent.model = ScriptedModel(then=["One ", Hold(go_on), "two."])
    with serving(agent) as live:
        start(live, agent)
        with ending(live, agent, "r-one", go_on.set):
            code, out, err = andon("watch", "r-one", "--url", live.url)
        assert (code, out) == (0, "One two.\n")
        assert "run r-one of holder" in err
        code, out, _ = andon("watch", "r-on", "--json", "--url", live.url)
        *events, last = [json.loads(line) for line in out.splitlines()]
        assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
        assert events[-1]["event"] == "RunCompleted"
        assert last["result"]["content"] == "One two."


def test_a_cancel_by_someone_else_is_seen(andon: Andon) -> None:
    agent = talker()
    with serving(agent) as live:
        start(live, agent)
        with ending(live, agent, "r-one", lambda: agent.cancel_run("r-one", reason="enough", by="ada")):
            code, out, err = andon("watch", "r-one", "--url", live.url)
        assert (code, out) == (3, "One \n")
        assert "· cancelling (enough)\n" in err
        assert re.search(r"by +ada\n", err)


def test_a_failed_run(andon: Andon) -> None:
    agent = Agent("Failing", ScriptedModel(["Half ", Fail(ValueError("it broke"))]))
    with serving(agent) as live:
        start(live, agent)
        code, out, err = andon("watch", "r-one", "--url", live.url)
        assert (code, out) == (1, "Half \n")
        assert err.count("it broke") == 1
        _, out, _ = andon("watch", "r-one", "--url", live.url, "--json")
        assert "it broke" in json.loads(out.splitlines()[-1])["result"]["error"]


def test_events_that_are_no_longer_kept(andon: Andon) -> None:
    agent = Agent("Brief", ScriptedModel(then="All of it."))
    with serving(agent) as live:
        agent.runtime._archive.max_bytes = 0  # type: ignore[union-attr]
        live.post("/agents/brief/runs", message="Hi", stream=False, run_id="r-one")
        assert live.client.get("/agents/brief/runs/r-one/events").status_code == 410
        assert andon("watch", "r-one", "--url", live.url, "--quiet") == (0, "All of it.\n", "")


class Cutter:
    """Stands between a client and a server, and cuts the first streams off after so many bytes.

    With `leave`, it is gone after the first one.
    """

    def __init__(self, port: int, *limits: int, leave: bool = False) -> None:
        self._leave = leave
        self._target, self._limits = ("127.0.0.1", port), list(limits)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.asked: list[bytes] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._pass_on, args=(client,), daemon=True).start()

    def _pass_on(self, client: socket.socket) -> None:
        with client, socket.create_connection(self._target) as server:
            request = client.recv(65536)
            server.sendall(request)
            limit = 1 << 30
            if b"/events " in request:
                self.asked.append(request)
                limit = self._limits.pop(0) if self._limits else limit
            while limit > 0 and (part := server.recv(min(limit, 65536))):
                client.sendall(part)
                limit -= len(part)
            if self._leave and b"/events " in request:
                self.close()

    def close(self) -> None:
        with suppress(OSError):  # it was closed before
            self._listener.shutdown(socket.SHUT_RDWR)  # a thread that is in `accept` would keep it open
        self._listener.close()


def test_a_connection_that_breaks_is_made_again(andon: Andon) -> None:
    words = [f"word{number} " for number in range(20)]
    agent = Agent("Talker", ScriptedModel(then=words))
    with serving(agent) as live, closing(Cutter(live.port, 1500, 2100)) as cutter:
        live.post("/agents/talker/runs", message="Hi", stream=False, run_id="r-one")
        code, out, _ = andon("watch", "r-one", "--json", "--url", cutter.url)
        assert code == 0
        events = [json.loads(line) for line in out.splitlines()][:-1]
        assert [event["seq"] for event in events] == list(range(1, 23))
        assert len(cutter.asked) == 3
        last = [re.search(rb"last-event-id: (\d+)", request) for request in cutter.asked]
        assert last[0] is None
        assert 0 < int(last[1][1]) < int(last[2][1]) < 22  # type: ignore[index]


def test_a_server_that_stays_away_is_given_up(andon: Andon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_client, "RETRY_SECONDS", 0.1)
    agent = talker()
    with serving(agent) as live, closing(Cutter(live.port, 700, leave=True)) as cutter:
        start(live, agent)
        code, _, err = andon("watch", "r-one", "--url", cutter.url)
        assert code == 5
        assert "run r-one of talker" in err
        assert cutter.url in err


# -- cancel -----------------------------------------------------------------------------------------------------------


def test_one_run_is_cancelled(andon: Andon) -> None:
    agent = talker()
    with serving(agent) as live:
        start(live, agent)
        code, out, _ = andon("cancel", "r-one", "--wait", "--reason", "enough", "--url", live.url)
        assert code == 0
        assert out.startswith("r-one: requested; it is cancelled\n")
        assert re.search(r"reason +enough\n", out)
        assert re.search(r"left over +nothing\n", out)
        code, out, _ = andon("cancel", "r-one", "--wait", "--json", "--url", live.url)
        (told,) = json.loads(out)
        assert (code, told["outcome"], told["status"]) == (0, "already_finished", "CANCELLED")
        run = live.run_of(agent, "r-one")
        receipt = probe(run).result.receipt
        assert receipt is not None
        assert (receipt.reason, receipt.cause.value) == ("enough", "user")


def test_force_cuts_what_a_cancel_lets_finish(andon: Andon) -> None:
    at_work = Flag()

    @tool(on_cancel="finish", finish_within=600)
    async def send() -> str:
        """Send it."""
        at_work.set()
        await forever()

    agent = Agent("Sender", ScriptedModel(then=Call("send")), tools=[send])
    with serving(agent) as live:
        live.post("/agents/sender/runs", message="Hi", stream="false", background="true", run_id="r-one")
        at_work.wait()
        andon("cancel", "r-one", "--url", live.url)
        code, out, _ = andon("cancel", "r-one", "--force", "--wait", "--url", live.url)
        assert (code, "send: cut while it ran" in out) == (0, True)
    code, _, err = andon("cancel", "r-one", "--force", "--mode", "after_tools", "--url", live.url)
    assert code != 0
    assert "leave out --mode and --grace" in err


def test_one_that_had_ended_is_told_so(andon: Andon) -> None:
    agent = Agent("Brief", ScriptedModel(then="Done."))
    with serving(agent) as live:
        live.post("/agents/brief/runs", message="Hi", stream=False, run_id="r-one")
        code, out, _ = andon("cancel", "r-one", "--wait", "--url", live.url)
        assert (code, out) == (1, "r-one: already_finished; it is completed\n")


@pytest.mark.parametrize(
    ("which", "hit"),
    [
        (["--session", "s1"], {"r-1", "r-2"}),
        (["--user", "ada"], {"r-1"}),
        (["--agent", "talker"], {"r-1", "r-2", "r-3"}),
        (["--session", "s1", "--user", "bob"], {"r-2"}),
        (["--all"], {"r-1", "r-2", "r-3", "r-4"}),
    ],
)
def test_many_are_cancelled(andon: Andon, which: list[str], hit: set[str]) -> None:
    agent, other = talker(), Agent("Other", ScriptedModel(then=["One ", Stall()]))
    with serving(agent, other) as live:
        start(live, agent, "r-1", session_id="s1", user_id="ada")
        start(live, agent, "r-2", session_id="s1", user_id="bob")
        start(live, agent, "r-3", session_id="s2", user_id="bob")
        start(live, other, "r-4", session_id="s3")
        code, out, _ = andon("cancel", *which, "--wait", "--json", "--url", live.url)
        assert code == 0
        told = {
            each["run_id"]: (each["outcome"], each["status"], each["receipt"]["leftovers"]) for each in json.loads(out)
        }
        assert told == dict.fromkeys(hit, ("requested", "CANCELLED", []))
        code, out, err = andon("cancel", *which, "--url", live.url)
        assert (code, out) == (1, "")
        assert "nothing to cancel" in err


def test_many_are_shown_as_a_table(andon: Andon) -> None:
    agent = talker()
    with serving(agent) as live:
        start(live, agent, "r-1")
        start(live, agent, "r-2")
        code, out, _ = andon("cancel", "--all", "--wait", "--url", live.url)
        assert code == 0
        assert re.search(r"RUN +OUTCOME +STATUS +LEFT OVER\n", out)
        assert re.search(r"r-1 +requested +cancelled +nothing\n", out)


def test_modes_and_waiting_in_vain(andon: Andon) -> None:
    began, go_on = Flag(), Flag()

    @tool
    async def slow() -> str:
        began.set()
        await go_on.arrived()
        return "done"

    agent = Agent("Slow", ScriptedModel(Call("slow"), then="Two."), tools=[slow])
    with serving(agent) as live:
        start(live, agent)
        began.wait()
        code, out, err = andon("cancel", "r-one", "--mode", "after_tools", "--wait", "0.05", "--url", live.url)
        assert (code, out.splitlines()[0]) == (1, "r-one: requested; it is cancelling")
        assert "not ended within 0.05 s: r-one" in err
        go_on.set()
        assert andon("watch", "r-one", "--url", live.url)[0] == 3


# -- continue ---------------------------------------------------------------------------------------------------------


def paused(till: Till, *calls: Call) -> Agent:
    return Agent("Clerk", ScriptedModel(list(calls), then="All done."), tools=[till.delete, till.pay])


def test_questions_are_answered_with_options(andon: Andon) -> None:
    till = Till()
    agent = paused(till, DELETE, PAY)
    with serving(agent) as live:
        url = ("--url", live.url)
        start(live, agent)
        eventually(lambda: probe(live.run_of(agent, "r-one")).is_paused)
        code, _, err = andon("watch", "r-one", *url)
        assert code == 4
        assert f"andon continue r-one --url {live.url} --answer d-1=true --answer p-1=VALUE" in err
        code, _, err = andon("continue", "r-one", "--answer", "d-1=true", *url)
        assert code == 4, "one question is still open, and nobody to ask"
        code, _, err = andon("continue", "r-one", "--answer", "d-1", *url)
        assert code == 2
        assert "d-1 (delete), p-1 (pay?)" in err
        code, _, err = andon("continue", "r-one", "--answer", "d-1=1", "--answer", "p-1=2", "--answer", "x=3", *url)
        assert code == 2
        assert "there is no question 'x'" in err
        code, out, err = andon(
            "continue", "r-one", "--deny", "d-1=not that one", "--answer", 'p-1={"by": "card"}', *url
        )
        assert (code, out) == (0, "All done.\n")
        assert "not that one" in err
        assert till.did == [{"by": "card"}]
        code, _, err = andon("continue", "r-one", *url)
        assert code == 1
        assert "r-one" in err


@pytest.mark.parametrize("detach", [(), ("--detach",)])
def test_the_run_that_goes_on_has_the_id_that_was_given(andon: Andon, detach: tuple[str, ...]) -> None:
    agent = Agent("Talker", ScriptedModel(["One ", Stall()], then="two."))
    with serving(agent) as live:
        start(live, agent)
        live.post(f"/agents/{agent.id}/runs/r-one/cancel?wait=30")
        how = ("continue", "r-one", "--run-id", "r-two", *detach, "--url", live.url)
        code, out, _ = andon(*how)
        assert (code, out) == (0, "r-two\n" if detach else "two.\n")
        assert probe(live.run_of(agent, "r-two")).settled_blocking(HANG)
        code, _, err = andon(*how)
        assert code == 1
        assert "it made run 'r-two': watch that one" in err
        assert {run.run_id for run in agent.runtime.ended} == {"r-one", "r-two"}


@pytest.mark.parametrize("command", ["watch", "continue"])
def test_the_reader_of_the_output_leaves_while_the_run_is_silent(tmp_path: Path, command: str) -> None:
    agent = talker()
    with serving(agent) as live:
        run = live.run_of(agent, start(live, agent))
        if command == "continue":
            live.post(f"/agents/{agent.id}/runs/{run.run_id}/cancel?wait=30")
        arguments = [sys.executable, "-m", "andon", command, run.run_id, "--url", live.url, "-q"]
        with subprocess.Popen(arguments, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            try:
                assert process.stdout.read(4) == b"One "
                (going,) = agent.runtime.runs
                process.stdout.close()
                assert process.wait(HANG) == 141
                assert process.stderr.read() == b""
            finally:
                process.kill()
        if command == "watch":
            assert going == run
            assert not probe(going).is_cancelling
        else:
            eventually(lambda: going.receipt is not None and going.receipt.cause is CancelCause.disconnect)


def test_a_run_that_was_cut_goes_on_as_another(andon: Andon) -> None:
    agent = Agent("Talker", ScriptedModel(["One ", Stall()], then="and two."))
    with serving(agent) as live:
        start(live, agent)
        assert andon("cancel", "r-one", "--wait", "--url", live.url)[0] == 0
        code, out, _ = andon("continue", "r-one", "--json", "--url", live.url)
        assert code == 0
        result = json.loads(out.splitlines()[-1])["result"]
        assert (result["content"], result["status"]) == ("and two.", "COMPLETED")
        assert result["run_id"] != "r-one"


def test_answered_and_left_alone(andon: Andon) -> None:
    till = Till()
    agent = paused(till, DELETE)
    with serving(agent) as live:
        start(live, agent)
        eventually(lambda: probe(live.run_of(agent, "r-one")).is_paused)
        code, out, _ = andon("continue", "r-one", "--answer", "d-1=true", "--detach", "--url", live.url)
        assert (code, out) == (0, "r-one\n")
        eventually(lambda: live.run_of(agent, "r-one").status.final)
        assert till.did == ["all"]


# -- what is not there, and what is not ours --------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["watch"], ["cancel"], ["continue"]])
def test_a_run_that_is_not_there(andon: Andon, command: list[str]) -> None:
    agent = talker()
    with serving(agent) as live:
        start(live, agent, "r-one-1")
        start(live, agent, "r-one-2")
        code, out, err = andon(*command, "nobody", "--url", live.url)
        assert (code, out) == (1, "")
        assert f"no run 'nobody' at {live.url}" in err
        code, _, err = andon(*command, "r-one", "--url", live.url)
        assert code == 2
        assert "the ids of 2 runs" in err
        code, _, err = andon(*command, "r-o", "--url", live.url)
        assert code == 1, "too short to stand for anything"


@pytest.mark.parametrize("command", [["ps"], ["watch", "x"], ["cancel", "--all"], ["continue", "x"]])
def test_a_server_that_is_not_there(andon: Andon, command: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        port = bound.getsockname()[1]
    code, out, err = andon(*command, "--url", f"http://127.0.0.1:{port}")
    assert (code, out) == (5, "")
    assert err.startswith(f"andon: can't reach http://127.0.0.1:{port} (Connection refused)")


@contextmanager
def stranger(status: int, body: bytes) -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join(HANG)


@pytest.mark.parametrize(
    ("status", "body", "code", "words"),
    [
        (200, b"<html>", 5, "is no Andon server"),
        (200, b'{"runs": []}', 5, "is no Andon server"),
        (404, b"{}", 5, "is no Andon server"),
        (401, b"", 2, "--token"),
        (403, b'{"detail": "not for you"}', 2, "not for you"),
        (503, b'{"detail": "going down"}', 5, "going down"),
        (418, b'{"detail": "a teapot"}', 1, "a teapot"),
    ],
)
def test_what_a_server_may_answer(andon: Andon, status: int, body: bytes, code: int, words: str) -> None:
    with stranger(status, body) as url:
        told, out, err = andon("ps", "--url", url)
    assert (told, out) == (code, "")
    assert words in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["ps", "--url", "localhost:7777"], "write it as http://"),
        (["ps", "--url", "http://"], "write it as http://"),
        (["ps", "--url", "http://here:port"], "no URL of a server"),
        (["ps", "--url", "http://h", "--db", "sqlite:///x"], "give one of them"),
        (["ps", "--token", "ä\n"], "--token"),
        (["ps", "--limit", "0"], "1 or more"),
        (["ps", "--limit", "few"], "1 or more"),
        (["ps", "--limit", "inf"], "1 or more"),
        (["ps", "--limit", "nan"], "1 or more, and not 'nan'"),
        (["ps", "--agent", ""], "it is empty"),
        (["cancel"], "say which runs"),
        (["cancel", "r", "--all"], "say which runs"),
        (["cancel", "--all", "--user", "ada"], "leave it out"),
        (["cancel", "--session", "s", "--block"], "--user or --agent"),
        (["cancel", "--user", "u", "--agent", "a", "--block"], "--user or --agent"),
        (["unblock"], "--user --agent"),
        (["cancel", "r", "--mode", "never"], "invalid choice"),
        (["cancel", "r", "--grace", "-1"], "0 or more"),
        (["cancel", "--wait", "r"], "0 or more"),
        (["watch"], "RUN"),
        (["watch", ""], "it is empty"),
        (["nothing"], "invalid choice"),
        ([], "COMMAND"),
        (["ps", "--db", "mongodb://x"], "names no store"),
        (["ps", "--db", "memory://"], "--url"),
        (["prune", "--keep-days", "-1"], "0 or more"),
    ],
)
def test_wrong_usage(andon: Andon, arguments: list[str], words: str) -> None:
    code, out, err = andon(*arguments)
    assert (code, out) == (2, "")
    assert words in err


def test_the_token_is_sent_and_not_shown(andon: Andon, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            for _ in range(2):
                client, _ = listener.accept()
                with client:
                    asked.append(client.recv(65536).decode().lower())
                    client.sendall(b"HTTP/1.1 401 No\r\ncontent-length: 0\r\n\r\n")

        worker = Worker(answer)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        _, out, err = andon("ps", "--url", url, "--token", "s3cret")
        monkeypatch.setenv("ANDON_TOKEN", "0ther")
        andon("ps", "--url", url)
        worker.done()
    assert ["authorization: bearer s3cret" in asked[0], "authorization: bearer 0ther" in asked[1]] == [True, True]
    assert "s3cret" not in out + err


def test_a_password_in_a_url_is_not_repeated() -> None:
    assert ServerSource("https://user:secret@agents.example.com/api/", None).name == "https://agents.example.com/api"


def test_new_runs_are_refused_until_someone_unblocks_them(andon: Andon) -> None:
    agent = talker()
    with serving(agent) as live:
        url = ("--url", live.url)
        start(live, agent, user_id="ada")
        code, out, err = andon("cancel", "--user", "ada", "--block", "--wait", *url)
        assert (code, out.splitlines()[0]) == (0, "r-one: requested; it is cancelled")
        assert "andon unblock --user ada" in err
        assert live.post("/agents/talker/runs", message="Hi", user_id="ada").status_code == 403
        assert andon("unblock", "--user", "ada", *url)[0] == 0
        start(live, agent, "r-two", user_id="ada")
        code, _, err = andon("unblock", "--user", "ada", *url)
        assert code == 1
        assert "not blocked" in err
        assert andon("cancel", "--agent", "talker", "--block", "--wait", *url)[0] == 0
        assert andon("unblock", "--agent", "talker", "--json", *url)[0] == 0


def test_a_user_is_known_by_the_token(andon: Andon, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = talker()
    with serving(agent, tokens=["s3cret"]) as live:
        live.client.headers["authorization"] = "Bearer s3cret"
        start(live, agent)
        code, _, err = andon("ps", "--url", live.url)
        assert code == 2
        assert "--token" in err
        monkeypatch.setenv("ANDON_TOKEN", "s3cret")
        code, out, _ = andon("cancel", "r-one", "--wait", "--json", "--url", live.url)
        assert (code, json.loads(out)[0]["receipt"]["by"]) == (0, "admin")

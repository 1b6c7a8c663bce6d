# SPDX-License-Identifier: Apache-2.0
"""The compose file and the systemd units of examples/deploy. What they run is started here, and stopped as they say:
the same command lines and environments, on addresses of this machine, and with a real Postgres. The tables of
replacements are checked: all that is replaced is in the files, and nothing of another machine is left.
"""

from __future__ import annotations

import configparser
import itertools
import re
import shlex
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
import yaml  # type: ignore[import-untyped]

from tests.operating.processes import Client, Process, Site, eventually, site
from tests.operating.test_health import hear, systemd_at
from tests.store.server import HASTY, Server
from tests.support import HANG

DEPLOY = Path(__file__).parents[2] / "examples" / "deploy"
PYTHON = sys.executable
ANDON = f"{PYTHON} -P -m andon"
TOKEN = "a-token-of-the-test"


@pytest.fixture(scope="module")
def address(server: Server) -> Iterator[str]:
    """Where a Postgres listens, as `host:port`. It has the user and the database of the examples."""
    folder = Path(tempfile.mkdtemp(prefix="andon-pg-"))
    own = Server(folder, folder, HASTY, free_port())
    with psycopg.connect(own.url("postgres"), autocommit=True) as connection:
        connection.execute("CREATE ROLE andon LOGIN")
    yield f"127.0.0.1:{own.port}"
    own.stop()
    shutil.rmtree(folder)


@pytest.fixture
def here(tmp_path: Path, address: str) -> Iterator[Site]:
    with psycopg.connect(f"postgresql://postgres@{address}/postgres", autocommit=True) as connection:
        connection.execute("CREATE DATABASE andon OWNER andon")
        shutil.copy(DEPLOY / "agents.py", tmp_path)
        with site(tmp_path, f"postgresql://andon@{address}/andon") as made:
            yield made
        connection.execute("DROP DATABASE andon WITH (FORCE)")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


class Replaced:
    """Puts this machine in place of what a file names of others. `check` says whether all of the table was needed."""

    def __init__(self, table: Mapping[str, str]) -> None:
        self._table, self._used = table, set[str]()

    def text(self, text: str) -> str:
        def put(found: re.Match[str]) -> str:
            self._used.add(found[0])
            return self._table[found[0]]

        words = "|".join(map(re.escape, sorted(self._table, key=len, reverse=True)))
        return re.sub(rf"(?<![\w.-])(?:{words})(?![\w.-])", put, text)

    def check(self) -> None:
        assert self._used == set(self._table)


def check_local(commands: Sequence[str], environment: Mapping[str, str], ports: set[str]) -> None:
    """Nothing is left of another machine: no host, no path, no port."""
    for text in (*commands, *environment.values()):
        for host, port in re.findall(r"://(?:[^@/\s']*@)?([\w.]+)(?::(\d+))?", text):
            assert (host, port in ports) == ("127.0.0.1", True), text
        assert "/srv/" not in text
        assert "/etc/" not in text
    for option, value in itertools.pairwise(commands):
        assert option != "--host" or value == "127.0.0.1"
        assert option not in ("--port", "--health") or value in ports


def run_them(first: Client, second: Client) -> None:
    """Runs of one server are read, answered and cancelled at the other one."""
    first.start("storyteller", "tale")
    assert second.follow("storyteller", "tale")[-1] == "RunCompleted"
    assert first.state("storyteller", "tale")["content"] == "Once upon a time there was a worker."
    second.start("janitor", "asks")
    assert first.follow("janitor", "asks")[-1] == "RunPaused"
    assert second.answer("janitor", "asks")["status"] == "COMPLETED"
    first.start("janitor", "stopped")
    assert first.follow("janitor", "stopped")[-1] == "RunPaused"
    assert second.cancel("janitor", "stopped")["status"] == "CANCELLED"


def is_ready(port: str) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/ready", verify=False).status_code == 200
    except httpx.ConnectError:
        return False


def names_of(client: Client) -> list[str]:
    return [each["name"] for each in client.workers()["workers"] if each["state"] == "working"]


# -- compose ----------------------------------------------------------------------------------------------------------

COMPOSED = {"server-1", "server-2", "worker-1", "worker-2"}


def seconds_of(text: str) -> float:
    found = re.fullmatch(r"(\d+)s?", str(text))
    assert found, text
    return float(found[1])


def drain_of(command: Sequence[str]) -> float:
    return float(command[command.index("--drain") + 1]) if "--drain" in command else 10.0


def test_the_compose_file(here: Site, address: str) -> None:
    services: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    database = services.pop("db")
    assert database["environment"] == {"POSTGRES_USER": "andon", "POSTGRES_PASSWORD": "andon", "POSTGRES_DB": "andon"}
    assert services.keys() == COMPOSED
    started: dict[str, tuple[Process, list[str], Mapping[str, Any], str]] = {}
    for name, service in services.items():
        assert service["restart"] == "always"
        assert service["depends_on"] == {"db": {"condition": "service_healthy"}}
        inside, port = ("7777" if name.startswith("server") else "8080"), str(free_port())
        table = {"db": address, inside: port}
        if inside == "7777":
            (published,) = service["ports"]
            assert re.fullmatch(rf"127\.0\.0\.1:77\d\d:{inside}", published)
            table |= {"0.0.0.0": "127.0.0.1", "${ANDON_TOKEN:?a token for the servers}": TOKEN}
        replaced = Replaced(table)
        command = [replaced.text(each) for each in service["command"]]
        environment = {key: replaced.text(value) for key, value in service["environment"].items()}
        kind, *probe = service["healthcheck"]["test"]
        probe = [replaced.text(each) for each in probe]
        replaced.check()
        assert (kind, probe[0], command[0]) == ("CMD", "python", "andon")
        check_local([*command, *probe], environment, {port, address.rpartition(":")[2]})
        assert drain_of(command) + 20 <= seconds_of(service["stop_grace_period"])
        process = here.start([*shlex.split(ANDON), *command[1:]], environment)
        started[name] = process, [PYTHON, *probe[1:]], service, port

    for _, probe, _, port in started.values():
        eventually(lambda port=port: is_ready(port))  # type: ignore[misc]
        assert here.start(probe).ended() == 0
    first, second = (
        here.client(f"http://127.0.0.1:{started[name][3]}", started[name][0], authorization=f"Bearer {TOKEN}")
        for name in ("server-1", "server-2")
    )
    assert httpx.get(f"{first.url}/agents").status_code == 401
    eventually(lambda: names_of(first) == ["worker-1", "worker-2"])
    run_them(first, second)
    first.start("storyteller", "last")
    first.follow("storyteller", "last", until="RunContent")
    for name in ("worker-1", "worker-2", "server-1", "server-2"):
        process, _, service, _ = started[name]
        number = signal.Signals[service["stop_signal"]]
        assert process.stop(number, within=seconds_of(service["stop_grace_period"])) == 0
        if name == "worker-1":
            assert second.state("storyteller", "last")["status"] == "COMPLETED", "it had the time of --drain"


def test_the_image_has_what_the_services_need() -> None:
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    copied = [line.split()[1:-1] for line in lines if line.startswith("COPY ")]
    assert copied == [["agents.py"]]
    assert any(re.search(r'pip install .*"andon\[server,scale\]"$', line) for line in lines)
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    assert {each["build"] for name, each in services.items() if name != "db"} == {"."}


# -- systemd ----------------------------------------------------------------------------------------------------------

KNOWN = {
    "Unit": {"Description", "Wants", "After", "StartLimitIntervalSec"},
    "Service": {
        *("Type", "WorkingDirectory", "EnvironmentFile", "ExecStart", "Restart", "RestartSec", "KillSignal"),
        *("KillMode", "TimeoutStopSec", "WatchdogSec", "DynamicUser"),
    },
    "Install": {"WantedBy"},
}
"""Directives of systemd: one that is not known there is ignored by it, but for a warning in its log."""


class Unit:
    """A unit, and its process, which is started and stopped as systemd does it."""

    def __init__(self, here: Site, name: str, address: str, port: str | None) -> None:
        text = (DEPLOY / f"{name}.service").read_text()
        parser = configparser.RawConfigParser(strict=True)
        parser.optionxform = str  # type: ignore[assignment, method-assign]
        parser.read_string(text)
        for section in parser.sections():
            assert set(parser[section]) <= KNOWN[section]
        # Else systemd gives a service up that could not start five times within ten seconds.
        assert parser["Unit"]["StartLimitIntervalSec"] == "0"
        self.service = dict(parser["Service"])
        assert (self.service["Type"], self.service["Restart"]) == ("notify", "always")
        assert (self.service["KillMode"], self.service["EnvironmentFile"]) == ("mixed", "/etc/andon/andon.env")
        table = {"/srv/andon/venv/bin/andon": ANDON, "db.internal": address, "…": "andon"}
        if port is not None:
            table |= {"7777": port, "0.0.0.0": "127.0.0.1"}
        replaced = Replaced(table)
        command = shlex.split(replaced.text(self.service["ExecStart"]))
        described = re.findall(r"^#   (ANDON_\w+)=(.*)$", text, re.MULTILINE)  # the lines of the EnvironmentFile
        environment = {key: TOKEN if key == "ANDON_TOKEN" else replaced.text(value) for key, value in described}
        replaced.check()
        ports = {address.rpartition(":")[2]} | ({port} if port is not None else set())
        check_local(command, environment, ports)
        assert drain_of(command) + 20 <= self.stop_seconds
        assert self.service["WorkingDirectory"] == "/srv/andon"
        self._heard = here.folder / name
        self._heard.mkdir()
        with systemd_at(self._heard) as heard:
            told = {"NOTIFY_SOCKET": str(self._heard / "notify")}
            if "WatchdogSec" in self.service:
                told["WATCHDOG_USEC"] = str(int(seconds_of(self.service["WatchdogSec"]) * 1e6))
            self.process = here.start(command, environment | told)
            hear(heard, "READY=1")
            if "WatchdogSec" in self.service:
                hear(heard, "WATCHDOG=1")
        (self._heard / "notify").unlink()

    @property
    def stop_seconds(self) -> float:
        return seconds_of(self.service["TimeoutStopSec"])

    def stop(self) -> int:
        """As `KillMode=mixed` says: the signal goes to the main process alone."""
        with systemd_at(self._heard) as heard:
            self.process.popen.send_signal(signal.Signals[self.service["KillSignal"]])
            hear(heard, "STOPPING=1")
            return self.process.ended(self.stop_seconds)


def test_the_units_of_systemd(here: Site, address: str) -> None:
    port = str(free_port())
    serving = Unit(here, "andon-serve", address, port)
    working = Unit(here, "andon-worker", address, None)
    client = here.client(f"http://127.0.0.1:{port}", serving.process, authorization=f"Bearer {TOKEN}")
    assert client.http.get("/ready", timeout=HANG).status_code == 200, "it was ready when it said so"
    (name,) = names_of(client)
    assert re.fullmatch(r"[\w.-]+:\d+", name)
    run_them(client, client)
    client.start("storyteller", "last")
    client.follow("storyteller", "last", until="RunContent")
    assert working.stop() == 0
    assert client.state("storyteller", "last")["status"] == "COMPLETED", "it had the time of --drain"
    assert serving.stop() == 0


def test_every_file_of_the_folder_is_tested() -> None:
    tested = {"compose.yaml", "Dockerfile", "agents.py", "andon-serve.service", "andon-worker.service"}
    assert {each.name for each in DEPLOY.iterdir() if each.name != "__pycache__"} == tested

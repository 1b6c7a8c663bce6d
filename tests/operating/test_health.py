# SPDX-License-Identifier: Apache-2.0
"""What Kubernetes and systemd ask a worker process, and what they are told."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from andon.scale import health, systemd
from tests.operating.processes import Site, eventually, site
from tests.store.server import Server
from tests.support import HANG


@contextmanager
def systemd_at(folder: Path) -> Iterator[socket.socket]:
    """The socket on which systemd hears its services."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(folder / "notify"))
        heard.settimeout(HANG)
        yield heard


def hear(heard: socket.socket, word: str) -> list[str]:
    """Wait until a service says this. Returns all that it has said until then."""
    said: list[str] = []
    while word not in said:
        said += heard.recv(4096).decode().split("\n")
    return said


@pytest.fixture
def here(tmp_path: Path, postgres_url: str) -> Iterator[Site]:
    with site(tmp_path, postgres_url) as made:
        yield made


def ready(url: str) -> tuple[int, str]:
    answer = httpx.get(f"{url}/ready", timeout=HANG, verify=False)  # to load certificates takes longer than the rest
    return answer.status_code, answer.text.strip()


def test_a_worker_is_ready_until_it_drains(here: Site) -> None:
    server = here.serve("--no-execute")
    worker = here.andon("worker", "main:agents", "--name", "alpha", "--health", "0", "--drain", "60")
    url = worker.said(r"^health: (http://127\.0\.0\.1:\d+)/ready$")[1]
    eventually(lambda: ready(url) == (200, "ready"))
    assert httpx.get(f"{url}/health").text == "ok\n"
    head = httpx.head(f"{url}/ready?from=probe")
    assert (head.status_code, head.content) == (200, b"")
    assert httpx.post(f"{url}/ready").status_code == 405
    assert httpx.get(f"{url}/").status_code == 404
    server.start("waiter", "r")
    server.follow("waiter", "r", until="ToolCallStarted")
    worker.popen.send_signal(signal.SIGTERM)
    worker.said(
        r"^worker alpha takes no more runs; 1 run has 60 s to finish\. Another SIGTERM or Ctrl-C ends it at once$"
    )
    eventually(lambda: ready(url) == (503, "draining"))
    assert httpx.get(f"{url}/health").status_code == 200
    (here.folder / "go").touch()
    assert worker.ended() == 0
    assert server.follow("waiter", "r")[-1] == "RunCompleted"


def test_a_worker_that_is_cut_off_is_not_ready_until_the_database_is_back(tmp_path: Path, own_server: Server) -> None:
    with site(tmp_path, own_server.url("postgres")) as here:
        worker = here.andon("worker", "main:agents", "--name", "alpha", "--health", "127.0.0.1:0")
        url = worker.said(r"^health: (http://\S+)/ready$")[1]
        eventually(lambda: ready(url)[0] == 200)
        own_server.kill()
        eventually(lambda: ready(url)[0] == 503)
        why = ready(url)[1]
        assert "the database has not answered for" in why or "no jobs can be taken" in why
        eventually(lambda: any("no jobs are taken: the database " in line for line in worker.printed))
        assert sum("psycopg.pool" in line for line in worker.printed) <= 1, "it tries once a second"
        assert httpx.get(f"{url}/health").status_code == 200, "a restart would not bring it back"
        own_server.start()
        eventually(lambda: ready(url) == (200, "ready"))
        server = here.serve("--no-execute")
        server.start("helper", "r")
        assert server.follow("helper", "r")[-1] == "RunCompleted"
        assert worker.stop() == 0


def test_odd_clients_of_the_probe_hold_nothing_up(here: Site) -> None:
    worker = here.andon("worker", "main:agents", "--name", "alpha", "--health", "0")
    url = httpx.URL(worker.said(r"^health: (http://\S+)/ready$")[1])
    with ExitStack() as stack:
        for sent in (b"", b"GET /ready", b"\r\n\r\n", b"\xff" * 20_000):
            odd = stack.enter_context(socket.create_connection((url.host, url.port or 0), HANG))
            odd.sendall(sent)
        eventually(lambda: ready(str(url)) == (200, "ready"))
        assert worker.stop() == 0, "while they are there"
    assert not [line for line in worker.printed if "Traceback" in line], worker.printed


def test_many_clients_of_the_probe_leave_the_worker_its_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "MOST_CLIENTS", 2)

    async def ask(at: tuple[str, int]) -> bytes:
        reader, writer = await asyncio.open_connection(*at)
        writer.write(b"GET /ready HTTP/1.1\r\n\r\n")
        try:
            return await reader.read()
        except ConnectionError:
            return b""
        finally:
            writer.close()

    async def main() -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        at = listener.getsockname()
        async with health.answering(listener, lambda: None):
            silent = [await asyncio.open_connection(*at) for _ in range(2)]
            assert await ask(at) == b""
            silent[0][1].close()
            while not (answer := await ask(at)):  # it has not noticed yet that the other one has left
                pass
            assert answer.startswith(b"HTTP/1.1 200 OK")
            silent[1][1].close()

    asyncio.run(asyncio.wait_for(main(), HANG))


def test_the_port_of_another_program(here: Site) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, printed = here.call("worker", "main:agents", "--health", str(port))
    assert code == 2
    assert f"can't listen on 127.0.0.1, port {port}" in printed
    assert "choose another port with --health" in printed
    with pytest.raises(SystemExit) as refused:
        here.ask("worker", "main:agents", "--health", "here")
    assert refused.value.code == 2


# -- systemd ----------------------------------------------------------------------------------------------------------


def test_systemd_hears_a_worker(here: Site) -> None:
    with systemd_at(here.folder) as heard:
        told = {"NOTIFY_SOCKET": str(here.folder / "notify"), "WATCHDOG_USEC": "200000"}
        worker = here.worker("alpha", **told)
        hear(heard, "READY=1")
        for _ in range(3):
            hear(heard, "WATCHDOG=1")
        worker.popen.send_signal(signal.SIGTERM)
        hear(heard, "STOPPING=1")
        assert worker.ended() == 0


@pytest.mark.parametrize("processes", ["1", "2"])
def test_systemd_hears_a_server(here: Site, processes: str) -> None:
    with systemd_at(here.folder) as heard:
        server = here.serve("--workers", processes, NOTIFY_SOCKET=str(here.folder / "notify"))
        hear(heard, "READY=1")
        assert server.http.get("/ready").status_code == 200
        server.process.popen.send_signal(signal.SIGTERM)
        assert hear(heard, "STOPPING=1").count("STOPPING=1") == 1
        assert server.process.ended() == 0


def test_systemd_is_told_at_an_abstract_address_and_its_absence_disturbs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"andon-{tmp_path}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(f"\0{name}")
        heard.settimeout(HANG)
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}")
        systemd.notify("READY=1", "STATUS=well")
        assert heard.recv(100) == b"READY=1\nSTATUS=well"
    for place in (f"@{name}", str(tmp_path / "nothing"), "nonsense", ""):
        monkeypatch.setenv("NOTIFY_SOCKET", place)
        systemd.notify("READY=1")


@pytest.mark.parametrize(
    ("given", "every"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "3000000"}, 1.5),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "often"}, None),
        ({"WATCHDOG_USEC": "3000000", "NOTIFY_SOCKET": ""}, None),
    ],
)
def test_how_often_systemd_wants_to_hear(
    given: dict[str, str], every: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"NOTIFY_SOCKET": "/run/notify", **given}.items():
        monkeypatch.setenv(name, value)
    assert systemd.watchdog_seconds() == every

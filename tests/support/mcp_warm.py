# SPDX-License-Identifier: Apache-2.0
"""Starts `mcp_server.py` in a few milliseconds: a process that has imported the SDK forks itself for each server.

    python mcp_warm.py serve NAME                       listens there, until its input is closed
    python -I -S mcp_warm.py start NAME [ARGUMENT ...]  has a server started, which has these arguments and pipes

The program that starts a server lives as long as it does: when one of the two ends, so does the other. For tests of
what is said between client and server. Those of how a server ends start it by itself.
"""

import functools
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

PROGRAM = str(Path(__file__).with_name("mcp_server.py"))


@functools.cache
def address() -> str:
    """Where the process listens. It is started at the first call, and ends with this one, which has its input."""
    name = f"andon-tests-{os.getpid()}-{os.urandom(4).hex()}"
    theirs, _ = os.pipe()
    program = [sys.executable, __file__, "serve", name]
    # It leaves a process that is no child of this one, for tests that count those.
    ran = subprocess.run(program, stdin=theirs, stdout=subprocess.PIPE, check=True, start_new_session=True)
    assert ran.stdout == b"ready\n"
    os.close(theirs)
    return name


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-I", "-S", __file__, "start", address(), *arguments]


def start(name: str, arguments: list[str]) -> None:
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(f"\0{name}")
        said = json.dumps({"arguments": arguments, "environment": dict(os.environ), "cwd": os.getcwd()})
        socket.send_fds(line, [said.encode()], [0, 1, 2])
        empty = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(empty, fd)
        line.recv(1)


def serve(name: str) -> None:
    import importlib
    import select
    import signal

    for module in ("lowlevel", "runner", "stdio", "streamable_http_manager", "subscriptions"):
        importlib.import_module(f"mcp.server.{module}")
    importlib.import_module("uvicorn")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{name}")
        listener.listen(100)
        os.write(1, b"ready\n")
        if os.fork():
            os._exit(0)
        os.dup2(2, 1)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while 0 not in select.select([listener.fileno(), 0], [], [])[0]:
            line, _ = listener.accept()
            said, fds, _, _ = socket.recv_fds(line, 2**20, 3)
            if not os.fork():
                listener.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                become_server(line, json.loads(said), fds)
            for fd in (line.detach(), *fds):
                os.close(fd)


def become_server(line: socket.socket, said: dict[str, object], fds: list[int]) -> None:
    import runpy
    import traceback
    from typing import Any, cast

    for place, fd in enumerate(fds):
        os.dup2(fd, place)
        os.close(fd)
    facts = cast("dict[str, Any]", said)
    os.environ.clear()
    os.environ.update(facts["environment"])
    os.chdir(facts["cwd"])
    sys.argv[:] = [PROGRAM, *facts["arguments"]]
    threading.Thread(target=lambda: (line.recv(1), os._exit(0)), daemon=True).start()
    try:
        runpy.run_path(PROGRAM, run_name="__main__")
    except BaseException:  # noqa: BLE001 - the end of the program
        traceback.print_exc()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        start(sys.argv[2], sys.argv[3:])

# SPDX-License-Identifier: Apache-2.0
"""Drives one system in an environment of its own: runs prompts, cancels them, and says when what happened.

    python -P bench/peers/driver.py bench/peers/systems/strands.py

It needs nothing but Python and what the system's own file imports. Each line on standard input is a command, each line
on standard output an answer or an event, both as JSON. Times are of `time.monotonic`, which all processes share.

What must stay true: a cancel is timed from the moment at which its line was read, on a thread of its own. So a system
that blocks the event loop is not faster for it.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import json
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from types import ModuleType, SimpleNamespace
from typing import Any

BEAT = 0.01
Json = dict[str, Any]


class Output:
    """Lines of JSON, from any thread. What a system prints goes to standard error instead."""

    def __init__(self) -> None:
        self._fd = os.dup(1)
        os.dup2(2, 1)
        self._lock = threading.Lock()

    def __call__(self, line: Json) -> None:
        with self._lock:
            os.write(self._fd, json.dumps(line, default=repr).encode() + b"\n")


class Tools:
    """The tools that every system is given, as plain functions, and when each call of them began and ended."""

    def __init__(self, out: Output) -> None:
        self.calls: list[Json] = []
        self._out = out

    def _begin(self, name: str) -> Json:
        call: Json = {"name": name, "began": time.monotonic(), "ended": None, "cut": False}
        self.calls.append(call)
        self._out({"event": "tool", **call})
        return call

    def functions(self, names: list[str]) -> list[Callable[..., Any]]:
        async def slow(seconds: float) -> str:
            """Wait for some seconds, as an async function does."""
            call = self._begin("slow")
            try:
                await asyncio.sleep(seconds)
            except BaseException:
                call["cut"] = True
                raise
            finally:
                call["ended"] = time.monotonic()
            return "slow is done"

        def block(seconds: float) -> str:
            """Wait for some seconds, as a blocking function does."""
            call = self._begin("block")
            try:
                time.sleep(seconds)
            finally:
                call["ended"] = time.monotonic()
            return "block is done"

        async def quick(number: int) -> str:
            """Look up a number."""
            call = self._begin("quick")
            call["ended"] = time.monotonic()
            return f"found-{number}"

        known = {"slow": slow, "block": block, "quick": quick}
        return [known[name] for name in names]


class Beat:
    """The longest time for which the event loop did nothing else."""

    def __init__(self) -> None:
        self.longest = 0.0

    async def run(self) -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(BEAT)
            self.longest = max(self.longest, time.monotonic() - before - BEAT)


class Driver:
    """One conversation at a time; `begin`, `cancel` and `report` are about its newest run."""

    def __init__(self, system: ModuleType, out: Output) -> None:
        self._system = system
        self._out = out
        self._tools = Tools(out)
        self._talk: Any = None
        self._end: asyncio.Task[None] | None = None
        self._run: Json = {}
        self._pieces = 0

    async def do_open(self, command: Json) -> Json:
        """A new conversation."""
        self._tools.calls.clear()
        at = SimpleNamespace(**command["at"])
        child = command.get("child_tools")
        offered = self._tools.functions(command["tools"])
        self._talk = self._system.Conversation(at, offered, None if child is None else self._tools.functions(child))
        return {}

    async def do_begin(self, command: Json) -> Json:
        """Begin a prompt, and with `cancel`, cancel it before its first step."""
        self._pieces = 0
        self._run = {"began": time.monotonic(), "text": ""}
        try:
            self._talk.begin(command["text"], self._heard)
        except Exception as error:  # noqa: BLE001 - it is told in the report
            self._run |= {"ended": time.monotonic(), "told": "failed", "how": f"raises {show(error)}"}
            return {"began": self._run["began"]}
        if command.get("cancel"):
            await self._cancel(time.monotonic())
        self._end = asyncio.create_task(self._until_end())
        return {"began": self._run["began"]}

    async def do_cancel(self, command: Json) -> Json:
        await self._cancel(command["read"])
        return {"asked": command["read"], "answer": self._run.get("answer")}

    async def do_unknown(self, command: Json) -> Json:
        """What the cancel of a run says that was never there."""
        unknown = getattr(self._talk, "cancel_unknown", None)
        if unknown is None:
            return {"answer": None}
        answer = unknown()
        return {"answer": repr(await answer if inspect.isawaitable(answer) else answer)}

    async def do_report(self, command: Json) -> Json:
        """How the run ended, or that it has not within the timeout."""
        if self._end is not None:
            await asyncio.wait({self._end}, timeout=command["timeout"])
        self._run["calls"] = self._tools.calls
        self._run["pieces"] = self._pieces
        return self._run

    async def do_facts(self, command: Json) -> Json:
        usage, left = getattr(self._talk, "usage", None), getattr(self._talk, "left", None)
        return {
            "usage": attempt(usage),
            "left": attempt(left),
            "calls": self._tools.calls,
            "peak_mb": peak_mb(),
            "cpu_s": time.process_time(),
        }

    async def _cancel(self, asked: float) -> None:
        self._run["asked"] = asked
        try:
            answer = self._talk.cancel()
            self._run["answer"] = repr(await answer if inspect.isawaitable(answer) else answer)
        except Exception as error:  # noqa: BLE001 - it is told in the report
            self._run["answer"] = f"raises {show(error)}"
        self._run["answered"] = time.monotonic()

    async def _until_end(self) -> None:
        beat = Beat()
        beating = asyncio.create_task(beat.run())
        run = self._run
        try:
            told, how = await self._talk.end()
        except asyncio.CancelledError:
            told, how = "cancelled", "raises CancelledError"
        except Exception as error:  # noqa: BLE001 - it is told in the report
            told, how = "failed", f"raises {show(error)}"
        run |= {"ended": time.monotonic(), "told": told, "how": how, "blocked": beat.longest}
        beating.cancel()

    def _heard(self, text: str) -> None:
        self._pieces += 1
        if len(self._run["text"]) < 10_000:
            self._run["text"] += text


def attempt(function: Callable[[], Any] | None) -> Any:
    if function is None:
        return None
    try:
        return function()
    except Exception as error:  # noqa: BLE001 - it is told in the report
        return f"raises {show(error)}"


def show(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:300]


def peak_mb() -> float:
    with open("/proc/self/status", encoding="ascii") as file:
        kilobytes = next(line.split()[1] for line in file if line.startswith("VmHWM"))
    return int(kilobytes) / 1000


def load(path: str) -> tuple[ModuleType, float]:
    """The system's own file, and how long it took to import it with all that it imports."""
    spec = importlib.util.spec_from_file_location("peer", path)
    assert spec is not None and spec.loader is not None  # noqa: PT018
    module = importlib.util.module_from_spec(spec)
    sys.modules["peer"] = module  # some look up the module of a function, for its types
    began = time.perf_counter()
    spec.loader.exec_module(module)
    return module, time.perf_counter() - began


async def serve(driver: Driver, out: Output) -> None:
    commands: asyncio.Queue[Json] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def read() -> None:
        for line in sys.stdin:
            command = {**json.loads(line), "read": time.monotonic()}
            loop.call_soon_threadsafe(commands.put_nowait, command)
        loop.call_soon_threadsafe(commands.put_nowait, {"do": "stop"})

    threading.Thread(target=read, daemon=True).start()
    while (command := await commands.get())["do"] != "stop":
        act: Callable[[Json], Awaitable[Json]] = getattr(driver, f"do_{command['do']}")
        try:
            answer = await act(command)
        except Exception as error:  # noqa: BLE001 - the other side reports it
            answer = {"error": show(error)}
        out({"answer_to": command["do"], **answer})


def main(path: str) -> None:
    out = Output()
    system, seconds = load(path)
    out(
        {
            "event": "ready",
            "import_s": seconds,
            "import_mb": peak_mb(),
            "cancel": system.CANCEL,
            "child_call": system.CHILD_CALL,
        }
    )
    asyncio.run(serve(Driver(system, out), out))


if __name__ == "__main__":
    main(sys.argv[1])
    os._exit(0)  # whatever a system has left running

# SPDX-License-Identifier: Apache-2.0
"""A person at a terminal: the command in a pseudo-terminal of its own, its keys and what its screen shows."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import HANG

Andon = Callable[..., tuple[int, str, str]]
"""The command, in this process: its exit code, and what it said on both channels."""

CTRL_C, CTRL_D = "\x03", "\x04"

interrupted = pytest.mark.no_cover
"""For tests that type Ctrl-C: one that finds coverage holding its own lock would have it wait for that for ever."""

# The terminal must be the controlling one, or Ctrl-C would reach nobody.
_LAUNCH = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"

PROGRAM = '''
import asyncio
import pathlib
import threading

from andon import Agent, Runtime, ToolContext, tool
from andon.models.scripted import Call, Fail, Item, Say, ScriptedModel, Spend, Stall, Think
from andon.errors import ModelError

class Deaf(Item):
    """A model that takes no notice of being cancelled."""
    async def play(self, sink, model):
        sink.text("Deaf. ")
        await ignore()

async def ignore():
    while True:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            pass

@tool
async def stubborn() -> str:
    print("working", flush=True)
    await ignore()

@tool
def block() -> str:
    print("working", flush=True)
    threading.Event().wait()

@tool
async def look(where: str) -> str:
    return "nothing but sand"

@tool(approval=True)
async def delete(name: str) -> str:
    return f"deleted {name}"

@tool
async def paint(ctx: ToolContext) -> str:
    return f"painted it {ctx.interrupt('colour', {'choose': ['red', 'blue']})!r}"

class Noted:
    """Notes how runs end."""
    def run_ended(self, event):
        receipt = event.result.receipt
        pathlib.Path("ended").write_text(str(receipt.cause if receipt else event.result.status.name))

def first(call):
    """This call, and then its result; by the conversation alone, because another process may go on with it."""
    return lambda request: "".join(result.content for result in request.messages[-1].tool_results) or call

patient = {"cut_seconds": 3600, "abandon_seconds": 3600}
hello = Agent("Hello", ScriptedModel(then=[Think("Hm."), Say("Hello there."), Spend(input_tokens=3, output_tokens=2)]))
echo = Agent("Echo", ScriptedModel(then=lambda request: f"<{request.messages[-1].text}>"))
counting = Agent("Counting", ScriptedModel(then=lambda r: f"{sum(m.role == 'user' for m in r.messages)} prompts"))
stall = Agent("Stall", ScriptedModel(["One ", Stall()], then=["Two ", Stall()]), hooks=[Noted()])
liner = Agent("Liner", ScriptedModel(then=["One\\n", Stall()]), hooks=[Noted()])
deaf = Agent("Deaf", ScriptedModel(Deaf()), runtime=Runtime(**patient))
held = Agent("Held", ScriptedModel(Call("stubborn")), tools=[stubborn], runtime=Runtime(**patient))
blocked = Agent("Blocked", ScriptedModel(Call("block")), tools=[block])
tooled = Agent("Tooled", ScriptedModel(["Let me look. ", Call("look", {"where": "here"})], then="Sand."), tools=[look])
asker = Agent("Asker", ScriptedModel(then=first(Call("delete", {"name": "a.txt"}, id="d"))), tools=[delete])
painter = Agent("Painter", ScriptedModel(then=first(Call("paint", id="p"))), tools=[paint])
failing = Agent("Failing", ScriptedModel(["Half a ", Fail(ModelError("the model is on fire"))]))
colourful = Agent("Colourful", ScriptedModel(then="\\x1b[31mred\\x07 \\x9b31m\\tfine\\n"))
both = [hello, echo]
'''


class Terminal:
    """A command that runs at a terminal."""

    def __init__(self, here: Path, *arguments: str, columns: int = 100, env: dict[str, str] | None = None) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        command = [sys.executable, "-I", "-S", "-c", _LAUNCH, sys.executable, "-m", "andon", *arguments]
        self.process = subprocess.Popen(
            command,
            cwd=here,
            env=environment(**{"TERM": "xterm", **(env or {})}),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        self.screen = ""

    def until(self, words: str) -> str:
        """Wait until the screen shows this."""
        while words not in self.screen:
            assert self._more(), f"the screen never showed {words!r}, but:\n{self.screen}"
        return self.screen

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def end(self) -> int:
        """Wait for the end; the screen has all of it then."""
        while self._more():
            pass
        return self.process.wait(HANG)

    def _more(self) -> bool:
        if not select.select([self._master], [], [], HANG)[0]:
            raise AssertionError(f"nothing comes after:\n{self.screen}")
        try:
            part = os.read(self._master, 65536)
        except OSError:  # the other side is closed
            return False
        self.screen += part.decode("utf-8", "replace")
        return bool(part)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(HANG)
        self.hang_up()

    def hang_up(self) -> None:
        """The terminal goes away, as when its window is closed."""
        master, self._master = self._master, -1
        if master >= 0:
            os.close(master)


@contextlib.contextmanager
def at_terminal(
    here: Path, *arguments: str, columns: int = 100, env: dict[str, str] | None = None
) -> Iterator[Terminal]:
    terminal = Terminal(here, *arguments, columns=columns, env=env)
    try:
        yield terminal
        assert "Traceback" not in terminal.screen, terminal.screen
    finally:
        terminal.close()


def environment(**more: str) -> dict[str, str]:
    """Without what may be set where the tests are run."""
    strange = {"NO_COLOR", "COLUMNS", "ANDON_URL", "ANDON_DB", "ANDON_TOKEN"}
    return {**{k: v for k, v in os.environ.items() if k not in strange}, "PYTHONWARNINGS": "error", **more}


def alone(
    here: Path, *arguments: str, stdin: str = "", env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, where there is no terminal."""
    ended = subprocess.run(
        [sys.executable, "-m", "andon", *arguments],
        cwd=here,
        env=environment(**(env or {})),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
    )
    assert "Traceback" not in ended.stderr, ended.stderr
    return ended

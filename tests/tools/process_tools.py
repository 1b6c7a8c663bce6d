# SPDX-License-Identifier: Apache-2.0
"""Tools that run in processes. They print what they are, and are hard to end in every way that there is."""

from __future__ import annotations

import asyncio
import ctypes
import enum
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from pydantic import BaseModel

from andon import Image, Limits, ToolContext, tool

FOREVER = 10_000
PNG = b"\x89PNG\r\n\x1a\n" + bytes(8)


class Colour(enum.Enum):
    red = "red"
    blue = "blue"


class Point(BaseModel):
    x: int
    y: int = 7


class OddError(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def tell(*words: object) -> None:
    print(*words, flush=True)


def up(*pids: int) -> None:
    """Say who is at work."""
    tell("up", *(pids or (os.getpid(),)), ".")


# -- results ----------------------------------------------------------------------------------------------------------


@tool(isolation="process")
def kinds(point: Point, colour: Colour, times: int = 2) -> dict[str, object]:
    """Say what arrives."""
    return {"point": type(point).__name__, "y": point.y, "colour": type(colour).__name__, "times": times}


@tool(isolation="process")
async def facts(ctx: ToolContext, word: str) -> dict[str, object]:
    """Say what the context says."""
    await asyncio.sleep(0)
    return {
        "word": word,
        "call_id": ctx.call_id,
        "session_id": ctx.session_id,
        "user_id": ctx.user_id,
        "deadline": ctx.deadline is not None,
        "metadata": ctx.metadata,
        "cancelled": ctx.cancelled,
    }


@tool(isolation="process")
def picture() -> list[object]:
    """Return an image."""
    return ["Look:", Image(PNG)]


@tool(isolation="process")
def nothing() -> None:
    """Return nothing."""


@tool(isolation="process")
def whoami() -> int:
    """Return the process id."""
    return os.getpid()


@tool(isolation="process")
def variable(name: str) -> str:
    """Return a variable of the environment."""
    return str(os.environ.get(name))


@tool(isolation="process")
def change_all(folder: str) -> str:
    """Say what is found, and change it."""
    word, timer = os.environ.get("ANDON_TEST_WORD"), signal.getitimer(signal.ITIMER_REAL)[0]
    found = f"{os.getcwd()} {word} {timer:.0f} {os.umask(0o777):o} {os.getpid()}"
    os.chdir(folder)
    os.environ["ANDON_TEST_WORD"] = "changed"
    signal.alarm(FOREVER)
    return found


@tool(isolation="process")
def system() -> str:
    """Return what the system gave, as bytes."""
    return repr((os.environb[b"ANDON_TEST_WORD"], os.getcwdb(), os.fsencode(sys.argv[0])))


@tool(isolation="process")
def ask(ctx: ToolContext) -> str:
    """Ask a person."""
    return f"the answer is {ctx.interrupt('colour', {'choices': ['red', 'blue']})}"


@tool(isolation="process")
def use_deps(ctx: ToolContext) -> str:
    """Use what can't be sent."""
    return str(ctx.deps.shop)


@tool(isolation="process")
def use_steps(ctx: ToolContext) -> None:
    """Register a step."""
    ctx.on_undo(lambda: None)


@tool(isolation="process")
def odd() -> str:
    """Raise what only this module knows."""
    raise OddError(1, 2)


@tool(isolation="process")
def missing() -> str:
    """Raise a built-in error."""
    raise FileNotFoundError("no such thing")


@tool(isolation="process")
def leave() -> str:
    """Call sys.exit."""
    sys.exit(3)


@tool(isolation="process")
def unwritable() -> object:
    """Return what is no JSON."""
    return object()


@tool(isolation="process")
def crash() -> str:
    """End this process."""
    tell("last words")
    os.kill(os.getpid(), signal.SIGSEGV)
    return "not reached"


@tool(isolation="process")
def end_early() -> str:
    """Exit without an answer."""
    os._exit(4)


@tool(isolation="process")
def fork_and_return() -> int:
    """Return in two processes."""
    parent = os.getpid()
    os.fork()
    return parent


@tool(isolation="process")
def keep_thread() -> int:
    """Leave a thread behind."""
    threading.Thread(target=time.sleep, args=(FOREVER,), daemon=True).start()
    return os.getpid()


@tool(isolation="process")
def keep_child(apart: bool) -> str:
    """Leave a process behind."""
    return f"{os.getpid()} {subprocess.Popen(['sleep', str(FOREVER)], start_new_session=apart).pid}"


@tool(isolation="process")
def note_call(path: str, leaves: str) -> str:
    """Note this call in a file, and leave something behind."""
    with open(path, "a") as file:
        file.write("called\n")
    if leaves == "a thread":
        keep_thread()
    if leaves == "a process":
        keep_child(apart=False)
    return "noted"


@tool(isolation="process", limits=Limits(cpu=60))
def note_limited_call(path: str, leaves: str) -> str:
    """Note this call in a file."""
    return note_call(path, leaves)


@tool(isolation="process")
def flood(count: int) -> int:
    """Print a lot."""
    for number in range(count):
        print(f"line {number:09}")
    return count


@tool(isolation="process")
def large(size: int, kind: str, ctx: ToolContext) -> object:
    """Return, raise or ask something of this size."""
    if kind == "error":
        raise ValueError("x" * size)
    if kind == "question":
        return ctx.interrupt("Which?", "x" * size)
    return Image(PNG + bytes(size)) if kind == "image" else "x" * size


HELPER = subprocess.Popen(["sleep", str(FOREVER)]) if os.environ.get("ANDON_TEST_HELPER") else None
"""A process that the module itself starts. No call has left it behind."""


@tool(isolation="process")
def use_helper() -> str:
    """Start a process and bury it, and return this one and the helper."""
    subprocess.run(["true"], check=True)
    assert HELPER is not None
    return f"{os.getpid()} {HELPER.pid}"


# -- limits -----------------------------------------------------------------------------------------------------------


@tool(isolation="process", limits=Limits(memory=256 * 2**20))
def eat() -> int:
    """Use too much memory."""
    return len(bytearray(512 * 2**20))


@tool(isolation="process", limits=Limits(cpu=0.5))
def burn() -> None:
    """Use too much of the processor."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        pass


@tool(isolation="process", limits=Limits(files=32))
def open_many() -> int:
    """Open too many files."""
    return len([open(os.devnull) for _ in range(100)])


# -- hard to end ------------------------------------------------------------------------------------------------------


@tool(isolation="process")
def sleep() -> None:
    """Do nothing for long."""
    up()
    time.sleep(FOREVER)


@tool(isolation="process")
async def sleep_async(path: str) -> None:
    """Do nothing for long, and clean up."""
    try:
        up()
        await asyncio.sleep(FOREVER)
    finally:
        await asyncio.sleep(0)
        Path(path).write_text("cleaned up")  # noqa: ASYNC240 - nothing else runs on this loop


@tool(isolation="process")
def ignore() -> None:
    """Ignore SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    up()
    while True:
        time.sleep(FOREVER)


@tool(isolation="process")
def swallow() -> None:
    """Catch everything, and go on."""
    is_up = False
    while True:
        try:
            if not is_up:  # in here: the signal may come as soon as the test knows that this is up
                is_up = True
                up()
            time.sleep(FOREVER)
        except BaseException:  # noqa: BLE001 - that is the point
            pass


@tool(isolation="process")
def hang_in_c() -> None:
    """Hang in C, where no Python runs."""
    lock = ctypes.PyDLL(None).pthread_mutex_lock
    mutex = ctypes.create_string_buffer(256)
    lock(mutex)
    pid = os.getpid()
    if not os.fork():  # another process sees when it hangs
        while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "S":
            pass
        up(pid)
        os._exit(0)
    lock(mutex)


@tool(isolation="process")
def write_half(path: str, cleans: bool) -> None:
    """Be in the middle of a file."""
    try:
        with open(path, "w") as file:
            file.write("half of ")
            file.flush()
            up()
            time.sleep(FOREVER)
    finally:
        if cleans:
            os.unlink(path)


@tool(isolation="process")
def family(ignores: bool) -> None:
    """Fork children and grandchildren in the same group."""
    if ignores:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    read, write = os.pipe()
    if not os.fork():
        os.fork()
        os.write(write, b"%d " % os.getpid())
        while True:
            time.sleep(FOREVER)
    pids = b""
    while pids.count(b" ") < 2:
        pids += os.read(read, 100)
    up(os.getpid(), *map(int, pids.split()))
    while True:
        time.sleep(FOREVER)


@tool(isolation="process")
def other_session(ignores: bool) -> None:
    """Have a child in a session of its own."""
    trap = "trap '' TERM; " if ignores else ""
    child = subprocess.Popen(
        ["sh", "-c", f"{trap}echo; while true; do sleep {FOREVER}; done"],
        start_new_session=True,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    child.stdout.readline()
    up(os.getpid(), child.pid)
    time.sleep(FOREVER)


@tool(isolation="process")
def daemon(ignores: bool) -> None:
    """Fork twice, so that the grandchild has another parent, session and group."""
    read, write = os.pipe()
    if not os.fork():
        os.setsid()
        if not os.fork():
            if ignores:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            else:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.write(write, b"%d" % os.getpid())
            while True:
                time.sleep(FOREVER)
        os._exit(0)
    os.wait()
    up(os.getpid(), int(os.read(read, 100)))
    time.sleep(FOREVER)


@tool(isolation="process")
def threads(ignores: bool) -> None:
    """Have children in sessions of their own that were started by threads, one of which has ended."""
    trap = "trap '' TERM; " if ignores else ""
    pids = list[int]()
    ended, goes_on = threading.Event(), threading.Event()

    def start(done: threading.Event, stay: bool) -> None:
        words = ["sh", "-c", f"{trap}echo; while true; do sleep {FOREVER}; done"]
        child = subprocess.Popen(words, start_new_session=True, stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        pids.append(child.pid)
        done.set()
        if stay:
            time.sleep(FOREVER)

    first = threading.Thread(target=start, args=(ended, False))
    first.start()
    first.join()
    threading.Thread(target=start, args=(goes_on, True), daemon=True).start()
    goes_on.wait()
    up(os.getpid(), *pids)
    time.sleep(FOREVER)


@tool(isolation="process")
def spawner(mark: str) -> None:
    """Go on starting processes, each in a session of its own. `mark` is a number of seconds that only they sleep."""
    up()
    while True:
        subprocess.Popen(["sleep", mark], start_new_session=True)
        time.sleep(0.002)


@tool(isolation="process")
def spawn_when_asked(mark: str) -> None:
    """Start a daemon when it is told to end, and go on."""

    def start(*_: object) -> None:
        subprocess.Popen(["sh", "-c", f"trap '' TERM; sleep {mark} & sleep {mark}"], start_new_session=True)

    signal.signal(signal.SIGTERM, start)
    up()
    while True:
        time.sleep(FOREVER)


@tool(isolation="process")
def pooled() -> None:
    """Have a pool of multiprocessing's."""
    import multiprocessing  # here: only this tool needs it, and it is slow to import

    with multiprocessing.get_context("fork").Pool(2) as workers:
        up(os.getpid(), *workers.map(_pid, range(8)))
        time.sleep(FOREVER)


def _pid(_: int) -> int:
    time.sleep(0.01)
    return os.getpid()


@tool(isolation="process", timeout=2)
def too_slow() -> None:
    """Be out of time."""
    up()
    time.sleep(FOREVER)


# -- undoing ----------------------------------------------------------------------------------------------------------

UNDONE: list[tuple[int, Point, Colour, str]] = []
"""What was undone: the process in which, and the arguments."""


def note_undone(point: Point, colour: Colour, call_id: str) -> None:
    UNDONE.append((os.getpid(), point, colour, call_id))


BOOKED_BACK: set[str] = set()


def book_back(call_id: str) -> None:
    BOOKED_BACK.add(call_id)


@tool(isolation="process", on_cancel=book_back)
def book() -> str:
    """Book something, at once."""
    return "booked"


@tool(isolation="process", on_cancel=book_back)
def book_at_the_cancel() -> str:
    """Book something when the cancel comes, and answer then."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    up()
    signal.sigwait([signal.SIGTERM])
    return "booked"


@tool(isolation="process", on_cancel=note_undone)
def draw(point: Point, colour: Colour = Colour.blue) -> str:
    """Draw a point, slowly."""
    up()
    time.sleep(FOREVER)
    return "drawn"

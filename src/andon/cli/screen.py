# SPDX-License-Identifier: Apache-2.0
"""A terminal as a screen: it is drawn line by line, and keys are read one by one.

The terminal is always restored: after an exception, after a signal that ends the program, and while Ctrl-Z suspends the
program. Every wait ends with a key, a signal, or a call of `wake` by any thread. Signals also end the program while the
terminal does not read, for example because its window hangs or its output was stopped.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import sys
import termios
import time
from collections.abc import Sequence
from types import FrameType
from typing import Any

ESCAPE_SECONDS = 0.05
"""How long the rest of a key may take after its first byte. After that, the byte was the Esc key."""

LOOK_SECONDS = 1.0
"""The longest wait for the terminal to read. A signal that comes just before such a wait is handled after it."""

LEAVE_SECONDS = 0.5
"""How long the end waits for a terminal that does not read."""

UP, DOWN, PAGE_UP, PAGE_DOWN, HOME, END = "up", "down", "page up", "page down", "home", "end"
DELETE, BACKSPACE, ENTER, ESCAPE = "delete", "backspace", "enter", "escape"

_ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J"
"""The alternate screen, without a cursor. A line that is too long is cut, not wrapped."""
_BEGIN_FRAME, _END_FRAME = "\x1b[?2026h", "\x1b[?2026l"
"""A terminal that knows these shows a frame only when it is complete."""
_LEAVE = f"{_END_FRAME}\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SIGNALS = (*_ENDING, signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT)

_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O.|[^\x1b\[O])", re.DOTALL)
_BEGUN = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|O)?\Z")
_KEYS = {
    **dict.fromkeys(("\x1b[A", "\x1bOA"), UP),
    **dict.fromkeys(("\x1b[B", "\x1bOB"), DOWN),
    **dict.fromkeys(("\x1b[H", "\x1bOH", "\x1b[1~", "\x1b[7~"), HOME),
    **dict.fromkeys(("\x1b[F", "\x1bOF", "\x1b[4~", "\x1b[8~"), END),
    **dict.fromkeys(("\r", "\n"), ENTER),
    **dict.fromkeys(("\x7f", "\x08"), BACKSPACE),
    "\x1b[5~": PAGE_UP,
    "\x1b[6~": PAGE_DOWN,
    "\x1b[3~": DELETE,
}


def keys_in(text: str) -> tuple[list[str], str]:
    """The keys in what a terminal has sent, and the beginning of a key at its end. Unknown keys are left out."""
    keys: list[str] = []
    while text and not _BEGUN.match(text):
        found = _SEQUENCE.match(text)
        if found is None:
            key, text = _KEYS.get(text[0], text[0]), text[1:]
            keys += [key] if key.isprintable() else []
        else:
            keys += [_KEYS[found[0]]] if found[0] in _KEYS else []
            text = text[found.end() :]
    return keys, text


class Ended(Exception):  # noqa: N818 - it is no error
    """A signal ends the program."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    def repeat(self) -> None:
        """Let the signal do what it does by default, so that the parent process sees it."""
        signal.signal(self.number, signal.SIG_DFL)
        os.kill(os.getpid(), self.number)


class Screen:
    """The terminal, while its `with` block is open. Only the main thread may open it."""

    def __init__(self) -> None:
        self._input, self._output = sys.stdin.fileno(), sys.stdout.fileno()
        self._before = termios.tcgetattr(self._input)
        self._handlers: dict[int, Any] = {}
        self._signals: list[int] = []
        self._woken, self._wake = os.pipe()
        self._terminal = self._output
        self._begun = b""  # the beginning of a key or of a character
        self._drawn: list[str] = []
        self._active = False

    def __enter__(self) -> Screen:
        os.set_blocking(self._wake, False)
        os.set_blocking(self._woken, False)
        self._terminal = self._open()
        try:
            for number in _SIGNALS:
                self._handlers[number] = signal.signal(number, self._note)
            self._enter()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._leave()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        if self._terminal != self._output:
            os.close(self._terminal)
            self._terminal = self._output

    def _open(self) -> int:
        """Open the terminal once more, so as not to block. Our stdout is shared with the shell, and has to block.

        If the user may not open it, as after `su`, stdout is used. Then a terminal that does not read blocks us.
        """
        sys.stdout.flush()
        try:
            return os.open(os.ttyname(self._output), os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)
        except OSError:
            return self._output

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._signals.append(number)
        self.wake()

    def wake(self) -> None:
        """End the wait. Any thread may call this."""
        with contextlib.suppress(BlockingIOError):  # it is full: the wait ends anyway
            os.write(self._wake, b".")

    def _enter(self) -> None:
        attributes = termios.tcgetattr(self._input)
        attributes[0] &= ~(termios.ICRNL | termios.IXON)
        attributes[3] &= ~(termios.ICANON | termios.ECHO | termios.IEXTEN)
        attributes[6][termios.VMIN], attributes[6][termios.VTIME] = 1, 0
        self._active = True
        termios.tcsetattr(self._input, termios.TCSANOW, attributes)
        self._write(_ENTER)
        self._drawn = []

    def _leave(self) -> None:
        if self._active:
            self._active = False
            with contextlib.suppress(OSError, termios.error):  # the terminal has gone
                self._write(_LEAVE, LEAVE_SECONDS)
            with contextlib.suppress(OSError, termios.error):
                termios.tcsetattr(self._input, termios.TCSANOW, self._before)

    def _suspend(self) -> None:
        self._leave()
        ours = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        try:
            os.kill(os.getpid(), signal.SIGTSTP)  # returns when the shell continues this process
        finally:
            signal.signal(signal.SIGTSTP, ours)
        self._enter()

    # -- drawing ------------------------------------------------------------------------------------------------------

    def size(self) -> tuple[int, int]:
        """Its columns and lines."""
        try:
            columns, lines = os.get_terminal_size(self._output)
        except OSError:
            columns = lines = 0
        return columns or 80, lines or 24

    def draw(self, lines: Sequence[str]) -> None:
        """Show these lines, from the top. Only those that have changed are written."""
        old = self._drawn + [""] * (len(lines) - len(self._drawn))
        new = [*lines, *[""] * (len(old) - len(lines))]
        changed = [(number, line) for number, line in enumerate(new, 1) if line != old[number - 1]]
        if changed:
            written = "".join(f"\x1b[{number};1H\x1b[0m\x1b[2K{line}\x1b[0m" for number, line in changed)
            self._write(f"{_BEGIN_FRAME}{written}{_END_FRAME}")
        self._drawn = list(lines)

    def _write(self, text: str, seconds: float | None = None) -> None:
        """Write all of it, or raise `Ended`. With `seconds`, it ignores signals, and gives up after that time."""
        rest, woken = text.encode(sys.stdout.encoding, sys.stdout.errors or "strict"), False
        until = None if seconds is None else time.monotonic() + seconds
        while rest := self._offer(rest):
            if until is None:
                woken |= self._wait_for_room()
            elif not select.select([], [self._terminal], [], max(until - time.monotonic(), 0))[1]:
                break
        if woken:
            self.wake()  # `wait` has to hear of it too

    def _offer(self, part: bytes) -> bytes:
        """Write what the terminal takes now. Returns the rest."""
        try:
            return part[os.write(self._terminal, part) :]
        except BlockingIOError:
            return part

    def _wait_for_room(self) -> bool:
        """Wait until the terminal reads, or raise `Ended`. True if `wake` was called."""
        for number in self._signals:
            if number in _ENDING:
                raise Ended(number)
        woken = bool(select.select([self._woken], [self._terminal], [], LOOK_SECONDS)[0])
        if woken:
            self._take_wakes()
        return woken

    def _take_wakes(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._woken, 4096)

    # -- waiting ------------------------------------------------------------------------------------------------------

    def wait(self, seconds: float) -> list[str]:
        """The keys that were pressed, after at most this time. Raises `Ended` for a signal that ends the program."""
        sources = [self._input, self._woken]
        seconds = min(seconds, ESCAPE_SECONDS) if self._begun else seconds
        ready = [] if self._signals else select.select(sources, [], [], max(seconds, 0))[0]
        if self._woken in ready:
            self._take_wakes()
        while self._signals:
            self._obey(self._signals.pop(0))
        if self._input in ready:
            return self._read()
        if not ready and self._begun:
            begun, self._begun = self._begun, b""
            return [ESCAPE] if begun == b"\x1b" else []
        return []

    def _read(self) -> list[str]:
        part = os.read(self._input, 4096)
        if not part:
            raise Ended(signal.SIGHUP)
        whole, cut = _decode(self._begun + part)
        keys, begun = keys_in(whole)
        self._begun = begun.encode() + cut
        return keys

    def _obey(self, number: int) -> None:
        if number in _ENDING:
            raise Ended(number)
        if number == signal.SIGTSTP:
            self._suspend()
        elif number == signal.SIGCONT and self._active:  # after a SIGSTOP, which restores no terminal
            self._enter()
        elif number == signal.SIGWINCH:
            self._write("\x1b[2J")
            self._drawn = []


def _decode(part: bytes) -> tuple[str, bytes]:
    """UTF-8, and the bytes of a character at the end that is not complete yet."""
    for length in range(min(3, len(part)) + 1):
        end = len(part) - length
        try:
            return part[:end].decode(), part[end:]
        except UnicodeDecodeError:
            continue
    return part.decode("utf-8", "ignore"), b""

# SPDX-License-Identifier: Apache-2.0
"""Finds the line of the user's own program in a stack.

A stack has frames of Andon, of Python's library and of installed packages. Among them is the line that a user wrote and
can change. A report that names only the innermost frame would often name a line of Andon.
"""

from __future__ import annotations

import functools
import linecache
import os
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any, NamedTuple

_OURS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
_ASYNCIO = os.path.join(os.path.dirname(os.path.abspath(functools.__file__)), "asyncio", "")
_PACKAGES = {"site-packages", "dist-packages"}
"""The names of folders for installed packages."""


class Line(NamedTuple):
    """One line of a program."""

    file: str
    number: int
    function: str

    @property
    def text(self) -> str:
        """The source text of the line. Empty if its file can't be read."""
        return linecache.getline(self.file, self.number).strip()

    def __str__(self) -> str:
        text = self.text
        return f"{self.file}:{self.number}, in {self.function}" + (f": {text}" if text else "")


def is_ours(file: str) -> bool:
    """True for a file of Andon."""
    return file.startswith(_OURS)


def is_loader(file: str) -> bool:
    """True for a part of the interpreter that has no file, such as the module loader."""
    return file.startswith("<frozen ")


def users_line(frames: Iterable[FrameType]) -> Line | None:
    """The first of these frames (innermost first) that is in the user's own files.

    If there is none, the first one that is neither of Andon nor of asyncio.
    """
    return _first_own(Line(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name) for frame in frames)


def users_line_of(error: BaseException) -> Line | None:
    """The innermost line of the user's own program that led to an error. None for an error without a traceback.

    If no line is the user's own, the line that raised the error.
    """
    frames = traceback.walk_tb(error.__traceback__)
    lines = [Line(frame.f_code.co_filename, number, frame.f_code.co_name) for frame, number in frames]
    return _first_own(reversed(lines)) or (lines[-1] if lines else None)


def _first_own(lines: Iterable[Line]) -> Line | None:
    second: Line | None = None
    for line in lines:
        if is_ours(line.file) or line.file.startswith(_ASYNCIO) or is_loader(line.file):
            continue
        if not _is_of_a_library(line.file):
            return line
        second = second or line
    return second


def outwards(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame and its callers, innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def inwards(awaitable: Any) -> Iterator[FrameType]:
    """The frames of a suspended coroutine, from the outermost one to the one that waits."""
    while awaitable is not None:
        frame = getattr(awaitable, "cr_frame", None) or getattr(awaitable, "ag_frame", None)
        frame = frame or getattr(awaitable, "gi_frame", None)
        if frame is not None:
            yield frame
        awaitable = (
            getattr(awaitable, "cr_await", None)
            or getattr(awaitable, "ag_await", None)
            or getattr(awaitable, "gi_yieldfrom", None)
        )


def _is_of_a_library(file: str) -> bool:
    # Packages may also be outside this interpreter's own folders: in the user's site, in the system's packages below a
    # virtual environment, or in a folder of `PYTHONPATH`.
    return file.startswith(_libraries()) or not _PACKAGES.isdisjoint(file.split(os.sep))


@functools.cache
def _libraries() -> tuple[str, ...]:
    """The folders of Python's own library and of installed packages."""
    paths = sysconfig.get_paths()
    return tuple({os.path.join(paths[name], "") for name in ("stdlib", "platstdlib", "purelib", "platlib")})

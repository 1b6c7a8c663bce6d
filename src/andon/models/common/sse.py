# SPDX-License-Identifier: Apache-2.0
"""Server-sent events, from bytes to the `data` of each event, and nothing more.

This is the hot path of most models: it runs once per token. It works on bytes, so a read may end anywhere: in a line,
between CR and LF, inside a character. Names, ids and comments are skipped.
"""

from __future__ import annotations

from andon.errors import ModelStreamError

BOM = b"\xef\xbb\xbf"
MAX_LINE_BYTES = 64 * 1024 * 1024


class SseSplitter:
    """Takes the bytes of each read, and returns the payloads that are complete by then."""

    __slots__ = ("_after_cr", "_begun", "_data", "_held", "_size")

    def __init__(self) -> None:
        self._held: list[bytes] = []  # the pieces of a line that has not ended yet
        self._size = 0
        self._data: bytes | None = None  # of an event that has not ended yet
        self._after_cr = self._begun = False

    def feed(self, read: bytes) -> list[bytes]:
        """The payloads that this read completes."""
        if self._after_cr and read:
            self._after_cr = False
            if read.startswith(b"\n"):  # the other half of a line's end
                read = read[1:]
        if b"\r" in read:
            self._after_cr = read.endswith(b"\r")
            read = read.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = read.split(b"\n")
        rest = lines.pop()
        if not lines:
            self._hold(rest)
            return []
        if self._held:
            lines[0] = b"".join([*self._held, lines[0]])
            self._held.clear()
            self._size = 0
        if rest:
            self._hold(rest)
        if not self._begun:
            self._begun = True
            lines[0] = lines[0].removeprefix(BOM)
        return self._payloads(lines)

    def finish(self) -> list[bytes]:
        """The payloads that the end of the stream completes: some servers leave out the last blank line."""
        return self.feed(b"\n\n")

    def _hold(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size > MAX_LINE_BYTES:
            raise ModelStreamError(f"the provider sent a line of more than {MAX_LINE_BYTES >> 20} MB; it was not read")
        self._held.append(piece)

    def _payloads(self, lines: list[bytes]) -> list[bytes]:
        found: list[bytes] = []
        data = self._data
        for line in lines:
            if not line:
                if data is not None:
                    found.append(data)
                    data = None
            elif line.startswith(b"data:"):
                value = line[6:] if line.startswith(b" ", 5) else line[5:]
                data = value if data is None else b"%b\n%b" % (data, value)
        self._data = data
        return found

# SPDX-License-Identifier: Apache-2.0
"""A file of tokens, read again when it changes: tokens can be added and removed while the server runs.

If the file can't be used, because a line is wrong or it is missing, the old tokens stay in use and the log says why. No
message quotes a token.
"""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path

from andon.errors import ConfigurationError
from andon.server.access import Token

LOOK_SECONDS = 1.0
"""How often a request checks the file at most. Without requests it is not checked."""


class TokenFile:
    """One token per line: `TOKEN user=NAME`, `TOKEN admin`, or both. A word that begins with # begins a comment.

    >>> app = create_app(agents, tokens=TokenFile("tokens.txt"))
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._seen: tuple[int, ...] | None = None
        self._looked = 0.0

    def __repr__(self) -> str:
        return f"TokenFile({str(self.path)!r})"

    def read(self) -> list[Token]:
        """The current tokens of the file. Raises `ConfigurationError`."""
        self._looked, self._seen = time.monotonic(), self._look()  # before the read: a change during it must be noticed
        try:
            lines = self.path.read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no text"
            raise ConfigurationError(f"{self.path} can't be read: {why}") from None
        tokens = []
        for number, line in enumerate(lines, 1):
            # A # inside a word is part of a token or a name.
            if not (written := list(itertools.takewhile(lambda word: not word.startswith("#"), line.split()))):
                continue
            secret, *words = written
            users = [word.removeprefix("user=") for word in words if word.startswith("user=")]
            # A line without `user=` must not make an admin by accident.
            if (
                not words
                or len(users) > 1
                or "" in users
                or set(words) - {"admin"} - {f"user={user}" for user in users}
            ):
                raise ConfigurationError(f"{self.path}, line {number}: write `TOKEN user=NAME`, `TOKEN admin`, or both")
            tokens.append(Token(secret, users[0] if users else None, "admin" in words))
        if not tokens:
            raise ConfigurationError(f"{self.path} has no token")
        return tokens

    def has_changed(self) -> bool:
        """Whether the file was replaced or written since `read`."""
        if time.monotonic() - self._looked < LOOK_SECONDS:
            return False
        self._looked = time.monotonic()
        return self._look() != self._seen

    def _look(self) -> tuple[int, ...] | None:
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size

# SPDX-License-Identifier: Apache-2.0
"""The log of a server: a line per request, and with every line the run that it is about.

A path is logged without its query, and headers are not logged: both may contain secrets. Very long lines are cut.
"""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime
from typing import Any, Literal
from urllib.parse import quote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from andon.core.log_text import cut_line, cut_traceback, escaped, escaped_json
from andon.core.run.tool_call import current
from andon.server.authorized_host import RUN_STATE_KEY
from andon.server.responses import to_json

log = logging.getLogger("andon.access")

LogFormat = Literal["json", "text"]

_NAMES = ("run_id", "session_id", "agent_id", "user_id")


class AccessLog:
    """An ASGI middleware that logs every request when it is over."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket") or not log.isEnabledFor(logging.INFO):
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), 0
        method = scope.get("method", "WS")

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                status = message["status"]
            elif message["type"] == "websocket.close":
                status = message.get("code", 1000)
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            took = round((time.perf_counter() - began) * 1000, 1)
            path = quote(scope["path"], errors="replace")
            facts = {"method": method, "path": path, "status": status, "ms": took}
            about = scope.get("state", {}).get(RUN_STATE_KEY, {})
            log.info("%s %s %s %s ms", method, path, status, took, extra={"facts": {**facts, **about}})


def facts_of(record: logging.LogRecord) -> dict[str, Any]:
    """The facts of a log record: those in the record, and the run whose tool wrote it."""
    call = current.get()
    return {**({} if call is None else call.run.steps.facts), **getattr(record, "facts", {})}


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        told = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": cut_line(record.getMessage()),
        }
        told |= {name: value for name, value in facts_of(record).items() if value is not None}
        if record.exc_info:
            told["exception"] = cut_traceback(self.formatException(record.exc_info))
        return escaped_json(to_json(told).decode())


class TextFormatter(logging.Formatter):
    """Text lines, with the ids of the run at the end. Line breaks in logged text are escaped: it can't fake a line."""

    def __init__(self, form: str = "%(asctime)s %(levelname)s %(name)s %(message)s") -> None:
        super().__init__(form)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the library's name
        facts = facts_of(record)
        about = " ".join(f"{name}={facts[name]}" for name in _NAMES if facts.get(name) is not None)
        line = cut_line(super().formatMessage(record))
        return escaped(f"{line} [{about}]" if about else line)

    def formatException(self, ei: Any) -> str:  # noqa: N802 - the library's name
        # Indented, so that no text in a traceback looks like a log line.
        lines = cut_traceback(super().formatException(ei)).splitlines()
        return "\n".join(f"    {escaped(line)}" for line in lines)


def configure(style: LogFormat | None) -> None:
    """Log to stderr in this format: Andon's loggers from INFO on, others from WARNING on, because some log secrets.

    Without a format, only warnings are logged, and only if the program has not configured logging itself. Handlers that
    write nothing (`NullHandler`) don't count as configured.
    """
    handler, root = logging.StreamHandler(), logging.getLogger()
    if style is None:
        ours = logging.getLogger("andon")
        if all(isinstance(each, logging.NullHandler) for each in [*root.handlers, *ours.handlers]):
            handler.setFormatter(TextFormatter("%(levelname)s %(name)s: %(message)s"))
            handler.setLevel(logging.WARNING)
            root.addHandler(handler)
        return
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("andon").setLevel(logging.INFO)
    logging.captureWarnings(True)

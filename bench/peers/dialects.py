# SPDX-License-Identifier: Apache-2.0
"""How each server is started, and what its clients send: as bytes, so that the client is not the slow part."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.peers.environments import HERE, ROOT, SYSTEMS, System

SERVERS = ROOT / HERE / "servers"
Fields = Mapping[str, object]


@dataclass(frozen=True)
class Dialect:
    """One server. A run is named by the client where that is possible, else by its session."""

    system: System
    command: Callable[[int, str | None], list[str]]
    """For a port, and for the file of a SQLite database or None."""
    begin: Callable[[str, str, bool], bytes]
    """The request for a run: its session, its prompt, and whether it streams."""
    prepare: Callable[[str], bytes | None]
    """What must be requested before the first prompt of a session."""
    cancel: Callable[[str, str], bytes] | None
    """The request that cancels the run of an id in a session; None where there is no such route."""
    state: Callable[[str, str], bytes] | None
    """The request for a run's state."""
    piece: bytes
    """What each token's event has once."""
    last: tuple[bytes, ...]
    """What the last event of a run has; without one, the stream's end tells it."""


def form(path: str, fields: Fields) -> bytes:
    body = "&".join(f"{name}={str(value).replace(' ', '+')}" for name, value in fields.items())
    return request("POST", path, "application/x-www-form-urlencoded", body)


def as_json(path: str, fields: Fields) -> bytes:
    return request("POST", path, "application/json", json.dumps(fields))


def request(method: str, path: str, kind: str = "application/json", body: str = "") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    return (head + body).encode()


def _agent_os_run(session: str, prompt: str, streams: bool) -> bytes:
    fields = {"message": prompt, "session_id": session, "stream": str(streams).lower()}
    return form("/agents/peer/runs", fields)


def _adk_run(session: str, prompt: str, streams: bool) -> bytes:
    message = {"role": "user", "parts": [{"text": prompt}]}
    fields = {"appName": "peer", "userId": "u", "sessionId": session, "newMessage": message}
    return as_json("/run_sse", {**fields, "streaming": True}) if streams else as_json("/run", fields)


def _andon(port: int, file: str | None) -> list[str]:
    where = "memory://" if file is None else f"sqlite:///{file}"
    return [str(SYSTEMS[0].python), "-m", "andon", "serve", "serve_andon:agent", "--port", str(port), "--db", where]


def _agno(port: int, file: str | None) -> list[str]:
    return [str(by_name("agno").python), "serve_agno.py", str(port), file or "memory"]


def _adk(port: int, file: str | None) -> list[str]:
    where = "memory://" if file is None else f"sqlite:///{file}"
    python, options = str(by_name("google-adk").python), ["--port", str(port), "--session_service_uri", where]
    return [python, "-m", "google.adk.cli", "api_server", *options, "adk"]


def by_name(name: str) -> System:
    return next(system for system in SYSTEMS if system.name == name)


def _cancel(run_id: str, session: str) -> bytes:
    return request("POST", f"/agents/peer/runs/{run_id}/cancel?session_id={session}")


def _state(run_id: str, session: str) -> bytes:
    return request("GET", f"/agents/peer/runs/{run_id}?session_id={session}")


def _adk_session(session: str) -> bytes:
    return as_json("/apps/peer/users/u/sessions", {"sessionId": session})


DIALECTS = [
    Dialect(
        SYSTEMS[0],
        _andon,
        _agent_os_run,
        lambda session: None,
        _cancel,
        _state,
        b"event: RunContent\n",
        (b"event: RunCompleted", b"event: RunCancelled", b"event: RunError"),
    ),
    Dialect(
        by_name("agno"),
        _agno,
        _agent_os_run,
        lambda session: None,
        _cancel,
        _state,
        b"event: RunContent\n",
        (b"event: RunCompleted", b"event: RunCancelled", b"event: RunError"),
    ),
    Dialect(by_name("google-adk"), _adk, _adk_run, _adk_session, None, None, b'"partial":true', ()),
]
assert Path(SERVERS).is_dir()

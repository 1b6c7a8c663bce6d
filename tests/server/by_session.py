# SPDX-License-Identifier: Apache-2.0
"""A client that addresses agents by session, and does no more than ADK's would."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import httpx

from andon import Agent
from tests.server.live import Live, serving
from tests.support import eventually

Shape = dict[str, Any]

ABORTED = "INVOCATION_ABORTED"


class Client:
    """One user's client to one agent."""

    def __init__(self, live: Live, agent: Agent, user: str = "ada") -> None:
        self.live, self.agent, self.user = live, agent, user
        self.url, self.http = live.url, live.client

    def path(self, session: str = "s1") -> str:
        return f"/apps/{self.agent.id}/users/{self.user}/sessions/{session}"

    def create(self, session: str = "s1", **state: Any) -> Any:
        return _good(self.http.post(self.path(session), json=state))

    def get(self, session: str = "s1") -> Any:
        return _good(self.http.get(self.path(session)))

    def cancel(self, session: str = "s1") -> list[str]:
        answer = _good(self.http.post(f"{self.path(session)}:cancel"))
        assert answer.keys() == {"session_id", "cancelled"}
        assert answer["session_id"] == session
        cancelled: list[str] = answer["cancelled"]
        return cancelled

    def body(self, text: str, session: str = "s1", **more: Any) -> Shape:
        message = {"role": "user", "parts": [{"text": text}]}
        return {"appName": self.agent.id, "userId": self.user, "sessionId": session, "newMessage": message, **more}

    def run(self, text: str = "Hello", session: str = "s1", **more: Any) -> list[Shape]:
        events: list[Shape] = _good(self.http.post("/run", json=self.body(text, session, **more)))
        return events

    @contextlib.contextmanager
    def stream(self, text: str = "Hello", session: str = "s1", **more: Any) -> Iterator[Iterator[Shape]]:
        """Start a run and read it; leaving the block leaves the connection."""
        body = self.body(text, session, **{"streaming": True} | more)
        with self.http.stream("POST", "/run_sse", json=body) as response:
            assert response.status_code == 200, response.read()
            assert response.headers["content-type"].startswith("text/event-stream")
            yield _events(response.iter_lines())

    @contextlib.contextmanager
    def connect(self, route: str) -> Iterator[None]:
        """Ask for a run on a bare connection, and leave that at the end of the block without having read anything."""
        body = json.dumps(self.body("Hello")).encode()
        head = (
            f"POST {route} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
        )
        with self.live.connect() as bare:
            bare.sendall(head.encode() + b"\r\n\r\n" + body)
            yield

    def settled(self) -> None:
        """Wait until no run of the agent is left."""
        eventually(lambda: not self.agent.runtime.runs)


@contextlib.contextmanager
def served(agent: Agent, *others: Agent, **settings: Any) -> Iterator[Client]:
    with serving(agent, *others, **settings) as live:
        yield Client(live, agent)


def texts(events: list[Shape]) -> list[str]:
    """The text of each event; of those without, the code of their error or the names of their parts."""
    return [event.get("errorCode") or "".join(map(_text, event["content"]["parts"])) for event in events]


def _text(part: Shape) -> str:
    return part.get("text") or f"<{next(iter(part))}>"


def _events(lines: Iterator[str]) -> Iterator[Shape]:
    """The events of a stream, each one line of data and a blank one; `error` at the top makes ADK's client raise."""
    for line in lines:
        if line and not line.startswith(":"):
            assert line.startswith("data: ")
            event: Shape = json.loads(line[6:])
            assert "error" not in event
            assert None not in event.values()
            assert next(lines) == ""
            yield event


def _good(response: httpx.Response) -> Any:
    assert response.status_code == 200, response.text
    return response.json()

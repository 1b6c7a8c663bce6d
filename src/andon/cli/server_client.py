# SPDX-License-Identifier: Apache-2.0
"""A server, called over HTTP with the standard library only: quick to import, and Ctrl-C works everywhere.

If a stream of events breaks off, it is opened again after the last event that was read, so no event is lost or comes
twice. After `RETRY_SECONDS` without the server it fails.
"""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterator
from typing import Any, Literal, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from andon import __version__
from andon.cli.command_error import CommandError, Exit
from andon.cli.report import Cancelled, Report, RunLine, event_of
from andon.cli.terminal import one_line
from andon.core.events import Event, RunEvent
from andon.core.receipt import CancelRequest
from andon.core.selection import Selection
from andon.scale.overview import Overview

T = TypeVar("T")

ANSWER_SECONDS = 15.0
"""How long a server has to respond, in addition to `wait`."""

SILENCE_SECONDS = 60.0
"""After this time without data or a heartbeat, a stream is opened again."""

RETRY_SECONDS = 30.0
"""How long a server may be unreachable while its run is followed."""

FIRST_DELAY, LONGEST_DELAY = 0.1, 2.0


class RefusedError(CommandError):
    """The server refused the request."""

    def __init__(self, status: int, text: str, body: dict[str, Any], code: Exit) -> None:
        super().__init__(text, code)
        self.status, self.body = status, body


class UnreachableError(CommandError):
    """The server can't be reached, or closed the connection."""

    def __init__(self, text: str) -> None:
        super().__init__(text, Exit.unreachable)


class NotAndonError(UnreachableError):
    """What responds at this URL is not an Andon server."""


class Answer:
    """A response and its connection: both are open while it is read."""

    def __init__(self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse) -> None:
        self._connection, self._response = connection, response
        self.status, self.read, self.read1 = response.status, response.read, response.read1

    def close(self) -> None:
        self._response.close()
        self._connection.close()

    def __enter__(self) -> Answer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ServerSource:
    """A server, as a `RunSource`."""

    local = False

    def __init__(self, url: str, token: str | None) -> None:
        try:
            parts = urlsplit(url)
            self._host, self._port = parts.hostname, parts.port
        except ValueError as error:
            raise CommandError(f"{url!r} is no URL of a server: {error}") from None
        if parts.scheme not in ("http", "https") or not self._host:
            raise CommandError(f"{url!r} is no URL of a server: write it as http://127.0.0.1:7777")
        self.name = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"
        self._tls, self._prefix = parts.scheme == "https", parts.path.rstrip("/")
        self._headers = {"user-agent": f"andon/{__version__}", "accept": "application/json, text/event-stream"}
        if token:
            if not token.isascii() or not token.isprintable():
                raise CommandError("the token has characters that no token has: look at --token and ANDON_TOKEN")
            self._headers["authorization"] = f"Bearer {token}"

    def without_token(self) -> ServerSource:
        """The same address without the token, until it is known that an Andon server answers there."""
        return ServerSource(self.name, None)

    def is_there(self) -> bool:
        """Whether an Andon server answers. One that accepts connections and does not respond is an error."""
        assert self._host is not None
        try:
            socket.create_connection((self._host, self._port or (443 if self._tls else 80)), ANSWER_SECONDS).close()
        except OSError:
            return False
        try:
            answer = self.without_token()._ask("GET", "/health")  # /health needs no token
        except (NotAndonError, RefusedError):
            return False
        return isinstance(answer, dict) and "status" in answer

    # -- the verbs ----------------------------------------------------------------------------------------------------

    def runs(self, which: Selection, limit: int) -> list[RunLine]:
        asked = {"session_id": which.session_id, "user_id": which.user_id, "agent_id": which.agent_id}
        asked["status"] = ",".join(which.statuses) or None  # the list of ended runs is limited
        query = urlencode({name: value for name, value in asked.items() if value is not None})
        lines = self._convert(self._ask("GET", f"/runs?{query}"), list[RunLine])
        return [line for line in lines if not which.statuses or line.status in which.statuses][:limit]

    def look(self, run_id: str) -> Report | None:
        agents = [line.agent_id for line in self.runs(Selection(), 10_000) if line.run_id == run_id]
        # An ended run is not listed for long, but its record is kept: try each agent.
        agents = agents or [each["id"] for each in self._convert(self._ask("GET", "/agents"), list[dict[str, Any]])]
        for agent_id in agents:
            try:
                return self._convert(self._ask("GET", _path(agent_id, run_id)), Report)
            except RefusedError as refused:
                if refused.status != 404:
                    raise
        return None

    def events(self, run: Report) -> Iterator[Event]:
        return self._follow(run, 0, None)

    def cancel(
        self, which: Selection, request: CancelRequest, *, wait: float | None = None, block: bool = False
    ) -> list[Cancelled]:
        fields = self._fields(request, wait)
        if which.run_id is not None:
            assert which.agent_id is not None
            return [self._cancel_one(which.agent_id, which.run_id, fields, wait or 0)]
        asked = {"session_id": which.session_id, "user_id": which.user_id, "agent_id": which.agent_id}
        given: dict[str, Any] = {name: value for name, value in asked.items() if value is not None} or {"all": True}
        asked_for = {**fields, **given, **({"block": True} if block else {})}
        answer = self._ask("POST", "/runs/cancel", asked_for, wait or 0)
        if block and not answer.get("blocked"):
            raise CommandError(
                f"{self.name} has cancelled them, but it can't refuse new ones: it is too old", Exit.failed
            )
        return self._convert(answer.get("cancelled"), list[Cancelled])

    def _fields(self, request: CancelRequest, wait: float | None) -> dict[str, Any]:
        # The server knows the user of a token.
        by = None if "authorization" in self._headers else request.by
        fields = {"reason": request.reason, "by": by, "mode": request.mode.value, "grace": request.grace, "wait": wait}
        fields["force"] = request.force or None
        return {name: value for name, value in fields.items() if value is not None}

    def _cancel_one(self, agent_id: str, run_id: str, fields: dict[str, Any], wait: float) -> Cancelled:
        try:
            answer = self._ask("POST", f"{_path(agent_id, run_id)}/cancel", fields, wait)
        except RefusedError as refused:
            if refused.status != 409:
                raise
            answer = refused.body  # the run had completed or failed, and the body says which
        return self._convert(answer, Cancelled)

    def unblock(self, kind: Literal["user", "agent"], id: str) -> bool:
        return bool(self._ask("POST", "/unblock", {f"{kind}_id": id}).get("unblocked"))

    def workers(self) -> Overview:
        try:
            return self._convert(self._ask("GET", "/workers"), Overview)
        except RefusedError as refused:
            if refused.status == 404:
                raise CommandError(f"{self.name} is too old: it knows nothing of workers", Exit.failed) from None
            raise

    def drain(self, worker: str) -> bool:
        try:
            return bool(self._ask("POST", f"/workers/{quote(worker, safe='')}/drain", {}).get("draining"))
        except RefusedError as refused:
            if refused.status == 404:
                return False
            raise

    def continue_run(self, run: Report, answers: dict[str, Any], run_id: str | None) -> Iterator[Event]:
        """Continue a run, and follow it. Closing this stream cancels the run."""
        body = {"stream": True, "events": "all", "run_id": run_id, **({"answers": answers} if answers else {})}
        # Sent now, and not at the first `next`: a refusal must be raised before the run is followed.
        response = self.open_response("POST", f"{_path(run.agent_id, run.run_id)}/continue", body)
        return self._follow(run, 0, response)

    def continue_in_background(self, run: Report, answers: dict[str, Any], run_id: str | None) -> Report:
        """Continue a run, and don't follow it."""
        body = {"stream": False, "background": True, "run_id": run_id, **({"answers": answers} if answers else {})}
        answer = self._ask("POST", f"{_path(run.agent_id, run.run_id)}/continue", body)
        return self._convert({**answer, "agent_id": run.agent_id}, Report)

    def close(self) -> None:
        pass

    # -- following ----------------------------------------------------------------------------------------------------

    def _follow(self, run: Report, after: int, response: Answer | None) -> Iterator[Event]:
        run_id, resting, given_up, delay = run.run_id, False, 0.0, FIRST_DELAY
        while True:
            try:
                if response is None:
                    headers = {"last-event-id": str(after)} if after else {}
                    response = self.open_response("GET", f"{_path(run.agent_id, run_id)}/events", None, headers)
                    if response.status == 204:  # no more events
                        return
                for event in self._read(response):
                    if not after:
                        run_id = event.run_id  # a run that is continued after its end is a new run
                    after, given_up, delay = event.seq, 0.0, FIRST_DELAY
                    yield event
                    if event.run_id == run_id:
                        if event.event.terminal:
                            return
                        resting = event.event is RunEvent.run_paused
                if resting:
                    return
                raise UnreachableError(f"{self.name} ended the stream before the run had ended")
            except RefusedError as refused:
                if refused.status == 410:  # the events are no longer kept
                    return
                raise
            except UnreachableError:
                now = time.monotonic()
                given_up = given_up or now + RETRY_SECONDS
                if not after or now >= given_up:
                    raise
                time.sleep(delay)
                delay = min(2 * delay, LONGEST_DELAY)
            finally:
                if response is not None:
                    response.close()
            response = None

    def _read(self, response: Answer) -> Iterator[Event]:
        rest = b""
        while True:
            try:
                part = response.read1(65536)
            except (OSError, http.client.HTTPException) as error:
                raise UnreachableError(f"{self.name} broke off ({_why(error)})") from None
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                if line.startswith(b"data:"):
                    event = event_of(json.loads(line[5:]))
                    if event is not None:
                        yield event
            if not part:
                return

    # -- asking -------------------------------------------------------------------------------------------------------

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None, wait: float = 0) -> Any:
        """The JSON of the response."""
        response = self.open_response(method, path, body, seconds=ANSWER_SECONDS + wait)
        with response:
            return self._json(response)

    def open_response(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
        seconds: float = SILENCE_SECONDS,
    ) -> Answer:
        """The response, if its status is 2xx. Raises otherwise."""
        kind = http.client.HTTPSConnection if self._tls else http.client.HTTPConnection
        assert self._host is not None
        connection = kind(self._host, self._port, timeout=seconds)
        sent = None if body is None else json.dumps(body)
        given = {**self._headers, **(headers or {}), **({"content-type": "application/json"} if sent else {})}
        try:
            connection.request(method, self._prefix + path, sent, {**given, "connection": "close"})
            response = Answer(connection, connection.getresponse())
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise UnreachableError(
                f"can't reach {self.name} ({_why(error)}): is `andon serve` running there? "
                "Name another server with --url or ANDON_URL, or a database with --db"
            ) from None
        if response.status >= 300:
            with response:
                raise self._refusal(response)
        return response

    def _refusal(self, response: Answer) -> CommandError:
        status = response.status
        if status == 401:
            what = "does not know this token" if "authorization" in self._headers else "wants a token"
            return RefusedError(status, f"{self.name} {what}: give it with --token or ANDON_TOKEN", {}, Exit.usage)
        body = self._json(response)
        if not isinstance(body, dict) or not isinstance(detail := body.get("detail"), str):
            return self._not_andon(f"status {status}")
        if status >= 500:
            return UnreachableError(f"{self.name} can't answer now ({status}): {one_line(detail)}")
        code = Exit.usage if status in (400, 403, 413, 422) else Exit.failed
        return RefusedError(status, f"{self.name} says: {one_line(detail)}", body, code)

    def _json(self, response: Answer) -> Any:
        try:
            return json.loads(response.read() or b"null")
        except (OSError, http.client.HTTPException) as error:
            raise UnreachableError(f"{self.name} broke off ({_why(error)})") from None
        except ValueError:
            raise self._not_andon("no JSON") from None

    def _convert(self, answer: Any, kind: type[T]) -> T:
        try:
            return msgspec.convert(answer, kind)
        except msgspec.ValidationError as error:
            raise self._not_andon(str(error)) from None

    def _not_andon(self, why: str) -> NotAndonError:
        return NotAndonError(f"what answers at {self.name} is no Andon server ({why}): look at --url")


def _path(agent_id: str, run_id: str) -> str:
    return f"/agents/{quote(agent_id, safe='')}/runs/{quote(run_id, safe='')}"


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__

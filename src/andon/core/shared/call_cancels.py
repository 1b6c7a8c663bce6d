# SPDX-License-Identifier: Apache-2.0
"""Cancels of single tool calls, in any process.

Only the process that holds a run knows its calls. Another process commits its request as a row. The holder is notified,
cancels the call, and answers in the row; a lost notification is caught at the next renewal. A request is acknowledged
with that answer, and never before it. Before the holder stores the run's end, or its pause, it stores its answers. So a
request without an answer, of a run that has ended, has done nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Sequence
from typing import Protocol

from andon.core.shared.link import StoreLink
from andon.core.shared.store import CallAnswer, CallRequest
from andon.core.states import CancelOutcome
from andon.errors import StoreError

ANSWER_SECONDS = 5.0
"""How long a caller waits for the answer of the run's holder."""


class CallingRun(Protocol):
    """A run whose calls are cancelled."""

    @property
    def run_id(self) -> str: ...

    def cancel_tool(self, call_id: str, reason: str | None = None, force: bool = False) -> CancelOutcome: ...


class CallAnswers:
    """What one run that is held here has answered to such requests, until that is stored."""

    def __init__(self, link: StoreLink, run: CallingRun) -> None:
        self._link, self._run = link, run
        self._outcomes: dict[str, CancelOutcome] = {}

    def take(self, requests: Sequence[CallRequest]) -> None:
        """Cancel these calls, each request once. Called on the run's loop, so that no pause comes in between."""
        for name, call_id, reason, force in requests:
            if name not in self._outcomes:
                self._outcomes[name] = self._run.cancel_tool(call_id, reason, force)
        with contextlib.suppress(StoreError):  # the runtime is closed
            self._link.submit(lambda: self._link.retry(self.store))

    async def store(self) -> None:
        """Store all answers that are not known to be stored."""
        if outcomes := self._outcomes.copy():
            await self._link.store.answer_call_requests(self._run.run_id, outcomes)
            for name in outcomes:
                self._outcomes.pop(name, None)


async def cancel_call_there(
    link: StoreLink, run_id: str, call_id: str, reason: str | None, force: bool
) -> CallAnswer | None:
    """Ask the holder of a run to cancel one call, and wait for its answer, for a bounded time. None if the run is not
    known.
    """
    link.start()
    name = ""
    with link.news.watch(run_id) as topic, contextlib.suppress(TimeoutError):
        async with asyncio.timeout(ANSWER_SECONDS):
            while True:
                name = uuid.uuid4().hex
                request, seen = CallRequest(name, call_id, reason, force), topic.count
                answer = await link.store.request_call_cancel(run_id, request)
                if answer is None or not answer.waits:
                    return answer
                while answer is not None and answer.waits:
                    await topic.changed(seen)
                    link.check_open()
                    seen = topic.count
                    answer = await link.retry(lambda name=name: link.store.find_call_answer(run_id, name))  # type: ignore[misc]
                if answer is None or answer.outcome is not None:
                    return answer
                # It has ended, has paused, or is held by another process now: ask again.
    return await link.store.find_call_answer(run_id, name)  # the news of an answer may have been lost

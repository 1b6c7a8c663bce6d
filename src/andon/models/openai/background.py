# SPDX-License-Identifier: Apache-2.0
"""A response that OpenAI makes in the background. It goes on when its connection is lost, until it is cancelled by id.

So two things are needed that other responses do without. A lost connection is replaced: the answer goes on after the
last event that was received. And when the model call ends before the response does, the response is cancelled at the
provider. What must stay true: a response whose id is known is never left running silently. It has ended, or its cancel
was acknowledged, or a warning says that it was not.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Mapping
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import Struct

from andon.errors import ModelError, ModelStreamError, describe
from andon.models.base import Sink
from andon.models.common.errors import UNREADABLE
from andon.models.openai.answer import ResponsesAnswer
from andon.models.openai.endpoint import Endpoint

log = logging.getLogger(__name__)

RESUME_DELAYS = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)
"""The waits before the attempts to resume. After the last one fails, the call fails; an event starts them over."""
LONGEST_DELAY = 30.0
"""A provider that asks for a longer wait than this does not get it."""

CANCEL_SECONDS = 4.0
"""How long the cancel of a response may take, the wait for its id included. The run waits for it as it waits for any
cut task, and then names it and goes on."""
CANCEL_DELAYS = (0.1, 0.3, 1.0)
"""The waits between the attempts to cancel a response."""
CLOSING_SECONDS = 1.0
"""The same when the event loop is being closed."""

NO_RESPONSE = frozenset({404, 409})
"""The statuses that answer the cancel of a response that is gone, or that has ended."""


class _Number(Struct, gc=False):
    sequence_number: int = -1


class _Id(Struct, gc=False):
    id: str | None = None


class _Begun(Struct, gc=False):
    response: _Id | None = None


_decode_number = msgspec.json.Decoder(_Number).decode
_decode_begun = msgspec.json.Decoder(_Begun).decode


class NumberedAnswer:
    """Decodes one answer that may come over several connections, and remembers how far it has come."""

    def __init__(self, sink: Sink) -> None:
        self._answer = ResponsesAnswer(sink)
        self._is_resumed = False
        self.finished = False
        self.id: str | None = None
        self.number = -1
        """Of the last event that was handed on."""
        self.identified = asyncio.Event()
        self.is_refused = False
        """The provider has sent an error instead of the rest of the answer."""

    @property
    def is_over(self) -> bool:
        """Whether the response has ended at the provider, so far as the provider has said."""
        return self._answer.is_over

    def resume(self) -> None:
        """The next events come from a new connection. Those that were handed on already are skipped."""
        self._is_resumed = True

    def take(self, events: list[bytes]) -> None:
        if self.id is None:
            self._identify(events)
        if self._is_resumed:
            events = self._new_ones(events)
        try:
            self._answer.take(events)
        except ModelStreamError:
            raise
        except ModelError:
            self.is_refused = True
            raise
        for event in reversed(events):  # they come in order, and only gateways add one without a number
            if (number := _number(event)) >= 0:
                self.number = max(self.number, number)
                break
        self.finished = self._answer.finished

    def end(self) -> None:
        self._answer.end()

    def _identify(self, events: list[bytes]) -> None:
        for event in events:
            try:
                begun = _decode_begun(event).response
            except UNREADABLE:
                continue
            if begun is not None and begun.id:
                self.id = begun.id
                self.identified.set()
                return

    def _new_ones(self, events: list[bytes]) -> list[bytes]:
        for place, event in enumerate(events):
            if _number(event) > self.number:
                self._is_resumed = False
                return events[place:]
        return []


def _number(event: bytes) -> int:
    try:
        return _decode_number(event).sequence_number
    except UNREADABLE:
        return -1


class BackgroundCall:
    """One model call whose response is made in the background."""

    def __init__(self, endpoint: Endpoint, body: Mapping[str, Any], sink: Sink) -> None:
        self._endpoint, self._body, self._sink = endpoint, body, sink
        self._answer = NumberedAnswer(sink)

    async def play(self) -> None:
        """Receive the whole answer. On any other end, the response is cancelled at the provider before this returns."""
        await self._endpoint.open()  # nothing was sent yet, so a cancel ends this at once
        # A task of its own: a cancel that comes before the response's id leaves it reading until it has the id.
        reading = asyncio.create_task(self._read(), name="the model's answer")
        try:
            await asyncio.wait([reading])
            if reading.cancelled():  # the host cancels every task of its loop, and came to this one first
                raise asyncio.CancelledError
            if (failure := reading.exception()) is None:
                return
        except asyncio.CancelledError:
            with contextlib.suppress(asyncio.CancelledError):
                await self._uninterrupted(self._cancel(reading))
            raise
        try:
            if not self._answer.is_over and self._answer.id is not None:
                await self._uninterrupted(self._cancel(reading))
            raise failure
        finally:
            del failure  # its traceback refers to this frame

    # -- reading ------------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        answer = self._answer
        failures, last = 0, -1
        while True:
            try:
                if answer.id is None:
                    await self._endpoint.ask(self._body, answer)
                else:
                    answer.resume()
                    await self._endpoint.follow(self._path, {"stream": "true", "starting_after": last}, answer)
                return
            except ModelError as error:
                failures = failures + 1 if answer.number == last else 1
                if not self._can_resume(error) or failures > len(RESUME_DELAYS):
                    raise
                last = answer.number
                why, asked = describe(error), error.retry_after or 0.0
            delay = max(RESUME_DELAYS[failures - 1], min(asked, LONGEST_DELAY))
            text = "%s: the connection was lost after event %d (%s); the answer is resumed in %.2g s"
            log.warning(text, answer.id, last, why, delay)
            await asyncio.sleep(delay)

    @property
    def _path(self) -> str:
        return f"/{quote(self._answer.id or '', safe='')}"

    def _can_resume(self, error: ModelError) -> bool:
        answer = self._answer
        is_known = answer.id is not None and answer.number >= 0
        return is_known and error.retryable and not (answer.is_refused or answer.is_over)

    # -- cancelling ---------------------------------------------------------------------------------------------------

    async def _uninterrupted(self, work: Coroutine[Any, Any, None]) -> None:
        """Await it to its end, which is bounded. A cancel meanwhile is raised only after that."""
        task = asyncio.create_task(work, name="the cancel of a background response")
        was_cancelled = False
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError:
                if not was_cancelled and not task.done():
                    was_cancelled = True
                    self._warn("the provider has not confirmed its cancel yet", logging.INFO)
        if was_cancelled or task.cancelled():
            raise asyncio.CancelledError
        task.result()

    async def _cancel(self, reading: asyncio.Task[None]) -> None:
        try:
            if await self._end(reading, CANCEL_SECONDS):
                return
            why = f"no answer within {CANCEL_SECONDS:g} s"
        except asyncio.CancelledError:
            # The loop is being closed, and cancels all of its tasks. The request may not have been sent; asking twice
            # does no harm.
            if not await self._end(reading, CLOSING_SECONDS):
                self._warn("its cancel was not confirmed: the event loop was closed")
            raise
        self._warn(f"its cancel was not confirmed: {why}")

    async def _end(self, reading: asyncio.Task[None], seconds: float) -> bool:
        """Close the connection and cancel the response. False if the time was not enough."""
        answer = self._answer
        try:
            async with asyncio.timeout(seconds):
                await self._wait_for_id(reading)
                await _stop(reading)
                if answer.id is not None and not answer.is_over:
                    await self._ask_to_cancel()
        except TimeoutError:
            await _stop(reading)
            return False
        return True

    async def _wait_for_id(self, reading: asyncio.Task[None]) -> None:
        """The request was sent, so the response may exist. Its first event says which one it is."""
        if self._answer.id is None and not reading.done():
            identified = asyncio.create_task(self._answer.identified.wait())
            try:
                await asyncio.wait([reading, identified], return_when=asyncio.FIRST_COMPLETED)
            finally:
                identified.cancel()

    async def _ask_to_cancel(self) -> None:
        for delay in (*CANCEL_DELAYS, None):
            try:
                await self._endpoint.order(f"{self._path}/cancel")
                return
            except ModelError as error:
                if error.status in NO_RESPONSE:
                    return
                if not error.retryable or delay is None:
                    self._warn(f"its cancel failed: {describe(error)}")
                    return
            except Exception as error:  # noqa: BLE001 - reported: the call has ended for another reason
                self._warn(f"its cancel failed: {describe(error)}")
                return
            await asyncio.sleep(delay)

    def _warn(self, why: str, level: int = logging.WARNING) -> None:
        what = "the response in the background" if self._answer.id is None else f"the response {self._answer.id}"
        text = f"{what} may still be running at the provider, and be billed: {why}"
        log.log(level, text)
        self._sink.warn(text)


async def _stop(reading: asyncio.Task[None]) -> None:
    """Close the connection."""
    if not reading.done():
        reading.cancel()
        await asyncio.wait([reading])
    if not reading.cancelled():
        reading.exception()  # mark it as retrieved: the call has ended for another reason

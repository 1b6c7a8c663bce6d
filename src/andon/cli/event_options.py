# SPDX-License-Identifier: Apache-2.0
"""The options of `andon serve` and `andon worker` for events: how they go to other processes, how long they stay."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
from typing import Any

from andon.cli.command_error import CommandError
from andon.cli.options import duration
from andon.core.shared.event_channel import ChannelError, EventChannel
from andon.errors import ConfigurationError
from andon.store import open_events

log = logging.getLogger(__name__)

VARIABLE = "ANDON_EVENTS"
CHECK_SECONDS = 3.0


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--events",
        metavar="URL",
        help=f"carry the text of runs to the other processes by Redis too: redis://HOST:PORT/DB (${VARIABLE})",
    )
    parser.add_argument(
        "--keep-events",
        type=duration,
        metavar="MINUTES",
        help="delete the events of a run so long after its end, and keep the run (without it: with the run)",
    )


def settings(options: argparse.Namespace, *, shared: bool) -> dict[str, Any]:
    """The arguments for `Runtime`. `shared`: its database is one that processes share."""
    url, minutes = options.events or os.environ.get(VARIABLE) or None, options.keep_events
    if not shared and (minutes is not None or options.events):
        raise CommandError("--events and --keep-events are for a database: give --db postgresql://… or sqlite:///…")
    channel = None if url is None or not shared else _open(url)
    return {"keep_event_minutes": minutes, "events": channel}


def _open(url: str) -> EventChannel:
    """Raises if the channel can't work. One that can't be reached now is used as soon as it can."""
    try:
        channel = open_events(url)
        try:
            asyncio.run(_check(channel))
        except ChannelError as error:
            log.warning("events go through the database alone until %s answers: %s", channel.shown, error)
    except ConfigurationError as error:
        raise CommandError(f"{error} (--events, or ${VARIABLE})") from None
    return channel


async def _check(channel: EventChannel) -> None:
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            await channel.check()
    except TimeoutError:
        raise ChannelError(f"no answer within {CHECK_SECONDS:g} s") from None

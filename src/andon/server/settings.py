# SPDX-License-Identifier: Apache-2.0
"""What a server takes at the most, of all and of one user, and the defaults of that. docs/access.md has the table."""

from __future__ import annotations

from typing import TypedDict

from msgspec import Struct


class Limits(TypedDict, total=False):
    """What `create_app` takes as limits."""

    max_body: int
    """How many bytes a request may have."""
    max_message: int
    """How many characters a prompt may have."""
    max_runs: int
    """How many runs may go on at once, of all agents."""
    max_user_runs: int
    """The same of one user."""
    max_paused_runs: int
    """With so many runs that wait for a person, no other is started."""
    max_user_paused_runs: int
    """The same of one user."""
    max_events: int
    """A run that has written so many is cancelled, unless its runtime has a limit of its own; 0 for none."""
    max_event_bytes: int
    """The same with so many bytes of them, roughly."""
    max_user_sessions: int
    """How many sessions a user may have with an agent."""
    max_state: int
    """How many bytes the state of a session may take, as JSON; 0 for what its store takes, 256 KiB."""


class Settings(Struct, frozen=True, kw_only=True):
    """The bounds of a server. See `Limits` and `create_app` for what each means."""

    max_body: int = 4 * 2**20
    max_message: int = 1_000_000
    max_runs: int = 1000
    max_user_runs: int = 100
    max_paused_runs: int = 10_000
    max_user_paused_runs: int = 1000
    max_events: int = 100_000
    max_event_bytes: int = 256 * 2**20
    max_user_sessions: int = 10_000
    max_state: int = 0
    heartbeat: float
    drain: float
    guarded: bool = False
    """There are tokens."""

# SPDX-License-Identifier: Apache-2.0
"""The limits of a server and of one user, and their defaults. docs/access.md has the table."""

from __future__ import annotations

from typing import TypedDict

from msgspec import Struct


class Limits(TypedDict, total=False):
    """The limits that `create_app` takes."""

    max_body: int
    """How many bytes a request may have."""
    max_message: int
    """How many characters a prompt may have."""
    max_runs: int
    """How many runs of all agents may work at once."""
    max_user_runs: int
    """The same for one user."""
    max_agent_runs: int
    """The same for one agent; only with worker processes."""
    max_waiting_runs: int
    """How many runs may wait for room; only with worker processes."""
    max_paused_runs: int
    """With this number of paused runs, no new run is started."""
    max_user_paused_runs: int
    """The same for one user."""
    max_events: int
    """A run with more events is cancelled, unless its runtime has its own limit; 0 for no limit."""
    max_event_bytes: int
    """The same for the size of the events, roughly."""
    max_user_sessions: int
    """How many sessions a user may have with an agent."""
    max_state: int
    """How many bytes the state of a session may have, as JSON; 0 for the limit of its store, 256 KiB."""


class Settings(Struct, frozen=True, kw_only=True):
    """The settings of a server. `Limits` and `create_app` explain them."""

    max_body: int = 4 * 2**20
    max_message: int = 1_000_000
    max_runs: int = 1000
    max_user_runs: int = 100
    max_agent_runs: int = 1000
    max_waiting_runs: int = 10_000
    max_paused_runs: int = 10_000
    max_user_paused_runs: int = 1000
    max_events: int = 100_000
    max_event_bytes: int = 256 * 2**20
    max_user_sessions: int = 10_000
    max_state: int = 0
    heartbeat: float
    drain: float
    guarded: bool = False
    """Whether requests need a token or `authenticate`."""

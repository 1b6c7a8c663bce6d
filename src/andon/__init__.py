# SPDX-License-Identifier: Apache-2.0
"""Andon: a runtime for AI agents whose runs can always be cancelled, leaving everything sound.

A map of the package. Imports point one way, from the bottom of this list to its top.

    errors      the error tree
    plain       structs as plain data: for JSON, pydantic and FastAPI
    media       images and files
    messages    provider-neutral messages and blocks, usage
    core/       runs and their cancels: signal, steps, journal, session; a run (run/), shared stores (shared/); runtime
    models/     one protocol (base); the parts of all providers (common); OpenAI's models; the scripted model
    tools/      async functions, and sync functions in threads of our own
    store/      the in-memory store, and SQLite or Postgres (an extra); the seams are core/store, core/shared/store
    sync        the blocking facade
    telemetry/  OpenTelemetry: spans and metrics, imported when a provider is set
    agent/      the definition (agent), THE loop (loop), its tool calls (tool_runner), settling (settle), hooks
    surface     every public name, re-exported; loaded when the first one is taken
    testing/    what you need to test your own agents: the cancel-everywhere explorer, history validators
    server/     agents over HTTP: a FastAPI app (an extra)
    cli/        the command `andon`, one file per command
    run/        two re-exports for programs written for the AgentOS family

Start with `agent/loop.py`: how an agent runs, and where a cancel lands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from andon.surface import *  # noqa: F403 - its `__all__` says what
    from andon.surface import __all__ as __all__
else:

    def __getattr__(name: str) -> object:
        """Load the public names, all of them, with the first that is taken."""
        if name == "__all__" or not name.startswith("__"):  # tools that inspect modules ask for names like `__path__`
            from importlib import import_module

            surface = import_module("andon.surface")
            for each in ["__all__", *surface.__all__]:
                globals().setdefault(each, getattr(surface, each))  # what a test has put in place of one stays
            if name in globals():
                return globals()[name]
        raise AttributeError(f"module 'andon' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__getattr__("__all__")})

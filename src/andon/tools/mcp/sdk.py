# SPDX-License-Identifier: Apache-2.0
"""The official SDK. Its import takes up to a second, so it is done in a thread, when the first server is connected."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any

from andon.errors import MissingExtraError

MODULES = (
    "mcp",
    "mcp_types",
    "mcp.client.client",
    "mcp.client.streamable_http",
    "mcp.shared._httpx_utils",
    "mcp.shared.message",
)


def check() -> None:
    """Raise `MissingExtraError` if the SDK is not installed. It is not imported."""
    if "mcp" not in sys.modules and importlib.util.find_spec("mcp") is None:
        raise _missing("it is not installed")


def load() -> Any:
    """The package `mcp_types`, with the client imported too. The first call takes long: it belongs into a thread."""
    try:
        for name in MODULES:
            importlib.import_module(name)
    except ImportError as error:
        raise _missing(error) from None
    return sys.modules["mcp_types"]


def _missing(why: object) -> MissingExtraError:
    return MissingExtraError(f'MCP servers need the mcp package, 2.3 or newer: pip install "andon[mcp]" ({why})')

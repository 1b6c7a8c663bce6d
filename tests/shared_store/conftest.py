# SPDX-License-Identifier: Apache-2.0
"""The same databases as the store's own tests have."""

from tests.store.conftest import any_url, own_server, postgres_url, server, sqlite_url, url

__all__ = ["any_url", "own_server", "postgres_url", "server", "sqlite_url", "url"]

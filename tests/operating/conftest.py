# SPDX-License-Identifier: Apache-2.0
"""The same databases as the store's own tests have."""

from tests.store.conftest import own_server, postgres_url, server

__all__ = ["own_server", "postgres_url", "server"]

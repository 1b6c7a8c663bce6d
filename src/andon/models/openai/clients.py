# SPDX-License-Identifier: Apache-2.0
"""OpenAI's clients: what makes one, and the secrets that it sends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from andon.models.common.clients import ClientCache
from andon.models.common.http import client_options
from andon.models.common.sdk import Sdk
from andon.models.common.secrets import Secrets, in_client
from andon.models.common.setup import ApiKey, HttpClient, check_key, from_environment

SDK = Sdk("OpenAI", module="openai", package="openai", extra="openai")

NO_KEY = "none"
"""Sent to a server of your own that asks for no key: the SDK wants one."""

_KEYS = ("api_key", "admin_api_key", "webhook_secret")
_HARMLESS = frozenset({"openai-beta", "openai-organization", "openai-project"})


class Settings(NamedTuple):
    """Two models with equal settings share a client."""

    api_key: ApiKey | None = None
    base_url: str | None = None
    organization: str | None = None
    project: str | None = None
    http_client: HttpClient | None = None

    def resolved(self) -> Settings:
        """The settings with what the environment has now, where none were given. Raises if there is no key."""
        base_url = self.base_url or from_environment("OPENAI_BASE_URL")
        api_key = self.api_key or from_environment("OPENAI_API_KEY") or (NO_KEY if base_url else None)
        return self._replace(api_key=check_key(api_key, "OpenAI", "OPENAI_API_KEY"), base_url=base_url)


def secrets_of(client: Any, options: Mapping[str, Any], base_url: str | None = None) -> Secrets:
    """All secrets that a client sends with a request that has these options."""
    sent = (options.get("headers"), options.get("params"))
    return Secrets(in_client(client, keys=_KEYS, urls=[base_url], headers=sent, harmless=_HARMLESS))


def _open(settings: Settings) -> Any:
    openai = SDK.load()
    # Always an HTTP client of ours: the SDK's own closes itself when it is garbage, on any loop that happens to run.
    if settings.http_client is not None:
        http_client = settings.http_client()
    else:
        http_client = openai.DefaultAsyncHttpxClient(**client_options())
    return openai.AsyncOpenAI(
        api_key=settings.api_key,
        base_url=settings.base_url,
        organization=settings.organization,
        project=settings.project,
        max_retries=0,  # the run itself retries, so that a cancel ends the retries and events report them
        http_client=http_client,
    )


async def _close(client: Any) -> None:
    await client.close()


clients: ClientCache[Settings, Any] = ClientCache(_open, _close)

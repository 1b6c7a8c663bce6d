# SPDX-License-Identifier: Apache-2.0
"""Anthropic's clients: what makes one, and the secrets that it sends.

Where no key is given, the SDK finds credentials in more places than a key's variable: a profile, a federation of
identities, headers of one's own. What the SDK could send with is not refused here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from andon.errors import SetupError, say
from andon.models.common.clients import ClientCache
from andon.models.common.http import client_options
from andon.models.common.sdk import Sdk
from andon.models.common.secrets import Secrets, in_client
from andon.models.common.setup import ApiKey, HttpClient, check_key, from_environment

SDK = Sdk("Anthropic", module="anthropic", package="anthropic", extra="anthropic")

HARMLESS = frozenset({"anthropic-beta", "anthropic-version"})
NO_KEY = "none"
"""What the SDK is given where the request brings its own key: it wants one."""

_KEY, _TOKEN = "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"
NO_KEY_HINT = f"set {_KEY} or {_TOKEN}, or pass api_key= to the model"
_PROFILE = "ANTHROPIC_PROFILE"
_CUSTOM_HEADERS = "ANTHROPIC_CUSTOM_HEADERS"
_CONFIG = "ANTHROPIC_CONFIG_DIR"
_RULE, _ORGANIZATION = "ANTHROPIC_FEDERATION_RULE_ID", "ANTHROPIC_ORGANIZATION_ID"
_IDENTITY = ("ANTHROPIC_IDENTITY_TOKEN", "ANTHROPIC_IDENTITY_TOKEN_FILE")
_READ_BY_SDK = (_CUSTOM_HEADERS, _PROFILE, _CONFIG, _RULE, _ORGANIZATION, *_IDENTITY)
"""The variables that the SDK reads itself when a client is made."""
_SECRETS = ("api_key", "auth_token", "webhook_key")


class Settings(NamedTuple):
    """Two models with equal settings share a client."""

    api_key: ApiKey | None = None
    auth_token: str | None = None
    base_url: str | None = None
    http_client: HttpClient | None = None
    has_own_header: bool = False
    """The requests bring a header with a key."""
    environment: tuple[str | None, ...] = ()
    """The values of the variables that the SDK reads."""

    def resolved(self) -> Settings:
        """The settings with what the environment has now, where none were given. Raises if there is no key."""
        api_key, auth_token = self.api_key, self.auth_token
        if api_key is None and auth_token is None:
            api_key = from_environment(_KEY)
            auth_token = None if api_key else from_environment(_TOKEN)
        if auth_token is not None:
            check_key(auth_token, "Anthropic")
        elif api_key is not None or not (self.has_own_header or _sdk_finds_some()):
            api_key = check_key(api_key, "Anthropic", _KEY, _TOKEN)
        return self._replace(
            api_key=api_key,
            auth_token=auth_token,
            base_url=self.base_url or from_environment("ANTHROPIC_BASE_URL"),
            environment=tuple(os.environ.get(name) for name in _READ_BY_SDK),
        )


def has_key(header: str) -> bool:
    """Whether a header of this name holds a key."""
    return header.strip().lower() in ("authorization", "x-api-key")


def _sdk_finds_some() -> bool:
    """Whether the SDK has credentials to look at. Whether they are good, it knows when it has read them."""
    if os.environ.get(_PROFILE):
        return True
    if os.environ.get(_RULE) and os.environ.get(_ORGANIZATION) and any(map(os.environ.get, _IDENTITY)):
        return True
    if any(has_key(line.partition(":")[0]) for line in os.environ.get(_CUSTOM_HEADERS, "").splitlines()):
        return True
    folder = _config_folder()
    return (folder / "active_config").exists() or (folder / "configs" / "default.json").exists()


def _config_folder() -> Path:
    """Where the SDK keeps its profiles."""
    if given := os.environ.get(_CONFIG):
        return Path(given)
    if sys.platform == "win32":  # pragma: no cover
        return Path(os.environ.get("APPDATA") or "~/AppData/Roaming").expanduser() / "Anthropic"
    return Path(os.path.expanduser("~/.config/anthropic"))


def secrets_of(
    client: Any, options: Mapping[str, Any], base_url: str | None = None, seen: Sequence[Mapping[str, str]] = ()
) -> Secrets:
    """All secrets that a client sends with a request that has these options. `seen` are headers that were sent."""
    sent = (options.get("headers"), options.get("params"), *seen)
    return Secrets(in_client(client, keys=_SECRETS, urls=[base_url], headers=sent, harmless=HARMLESS))


def _open(settings: Settings) -> Any:
    anthropic = SDK.load()
    # Always an HTTP client of ours: the SDK's own closes itself when it is garbage, on any loop that happens to run.
    if settings.http_client is not None:
        http_client = settings.http_client()
    else:
        http_client = anthropic.DefaultAsyncHttpxClient(**client_options())
    try:
        return anthropic.AsyncAnthropic(
            api_key=settings.api_key if isinstance(settings.api_key, str | None) else NO_KEY,
            auth_token=settings.auth_token,
            base_url=settings.base_url,
            max_retries=0,  # the run itself retries, so that a cancel ends the retries and events report them
            http_client=http_client,
        )
    except anthropic.AnthropicError as error:  # a profile that can't be read
        raise SetupError(f"the Anthropic SDK can't use the credentials that it found: {say(error)}") from None


async def _close(client: Any) -> None:
    await client.close()


clients: ClientCache[Settings, Any] = ClientCache(_open, _close)

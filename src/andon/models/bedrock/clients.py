# SPDX-License-Identifier: Apache-2.0
"""Bedrock's clients: how one is made from a region, credentials and an address, and the secrets that it sends.

Of the credentials, the first of these is used: `api_key`, keys, `profile`, AWS_BEARER_TOKEN_BEDROCK, keys in the
environment, and then what botocore finds by itself: AWS_PROFILE, files, a login, a container, an instance.
"""

from __future__ import annotations

import asyncio
import configparser
import contextlib
import gzip
import importlib
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from andon.errors import SetupError
from andon.models.common.clients import ClientCache
from andon.models.common.sdk import Sdk
from andon.models.common.secrets import Secrets, in_url
from andon.models.common.setup import check_key, from_environment

SDK = Sdk("Amazon Bedrock", module="aiobotocore", package="aiobotocore", extra="bedrock")

READ_SECONDS = 600.0
"""The longest silence. botocore's own 60 s are too short for a model that thinks."""
CONNECT_SECONDS = 10.0
CONNECTIONS = 1_000
"""The size of the pool. With botocore's own 10, the 11th request waits until one of the others has ended."""

ANY_REGION = "us-east-1"
"""Given to the SDK where the region changes nothing: at an address of one's own, with a bearer token."""

_BEARER = "AWS_BEARER_TOKEN_BEDROCK"
_PROFILE = ("AWS_PROFILE", "AWS_DEFAULT_PROFILE")
_OTHER_SOURCES = (
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
)
_SECRET_NAMES = ("access_key", "secret_key", "token")


def load(module: str) -> Any:
    """A module of the SDK, or of botocore below it."""
    SDK.load()
    return importlib.import_module(module)


class Settings(NamedTuple):
    """Two models with equal settings share a client."""

    region: str | None = None
    api_key: str | None = None
    access_key_id: str | None = None
    secret_access_key: str | None = None
    session_token: str | None = None
    profile: str | None = None
    base_url: str | None = None
    timeout: float | None = None
    max_connections: int | None = None
    session: Any = None

    def resolved(self) -> Settings:
        """The settings with what the environment has now, where none were given. Raises for half a pair of keys."""
        found = self._replace(
            region=self.region or from_environment("AWS_REGION", "AWS_DEFAULT_REGION"),
            base_url=self.base_url or _address(),
            timeout=READ_SECONDS if self.timeout is None else self.timeout,
            max_connections=self.max_connections or CONNECTIONS,
        )
        if found.api_key is None and not (self.access_key_id or self.secret_access_key or self.profile or self.session):
            if (token := from_environment(_BEARER)) is not None:
                found = found._replace(api_key=token)
            else:
                found = found._replace(
                    access_key_id=from_environment("AWS_ACCESS_KEY_ID"),
                    secret_access_key=from_environment("AWS_SECRET_ACCESS_KEY"),
                    session_token=from_environment("AWS_SESSION_TOKEN", "AWS_SECURITY_TOKEN"),
                    profile=from_environment(*_PROFILE),
                )
        if found.api_key is not None:
            check_key(found.api_key, "Amazon Bedrock", _BEARER)
            return found._replace(region=found.region or (ANY_REGION if found.base_url else None))
        if bool(found.access_key_id) != bool(found.secret_access_key):
            lacks = "the secret access key" if found.access_key_id else "the access key id"
            raise SetupError(
                f"of the AWS credentials, {lacks} is missing: pass both aws_access_key_id= and aws_secret_access_key=, "
                "or set both AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            )
        return found

    def check(self) -> None:
        """Raise `SetupError` for a region or credentials that are missing, as far as files and environment tell."""
        has_keys = self.api_key is not None or self.access_key_id is not None
        if self.session is not None or (has_keys and self.region is not None):  # a session may have anything
            return
        files = _Files(self.profile or from_environment(*_PROFILE) or "default")
        if self.profile is not None and not files.has_profile and not has_keys:
            raise SetupError(
                f"there is no AWS profile {self.profile!r}: add it to ~/.aws/config, or name another one by "
                "profile= or AWS_PROFILE"
            )
        if self.region is None and not files.has_region:
            raise SetupError(
                "there is no AWS region for Bedrock: set AWS_REGION, or pass region= to the model, "
                'as in region="us-east-1"'
            )
        if not (has_keys or files.has_profile or _may_be_elsewhere()):
            raise no_credentials()


def no_credentials() -> SetupError:
    return SetupError(
        f"there are no AWS credentials for Bedrock: set {_BEARER}, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "
        "AWS_PROFILE; or pass api_key=, aws_access_key_id= and aws_secret_access_key=, or profile= to the model"
    )


def _address() -> str | None:
    if (from_environment("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS") or "").lower() == "true":
        return None
    return from_environment("AWS_ENDPOINT_URL_BEDROCK_RUNTIME", "AWS_ENDPOINT_URL")


def _may_be_elsewhere() -> bool:
    """Whether botocore may find credentials where this must not look: on the network, for one."""
    if from_environment(*_OTHER_SOURCES) is not None:
        return True
    return (from_environment("AWS_EC2_METADATA_DISABLED") or "").lower() != "true"


class _Files:
    """What AWS's two files have for a profile. They are only asked whether it has something, and never what."""

    def __init__(self, profile: str) -> None:
        config = _read(from_environment("AWS_CONFIG_FILE") or "~/.aws/config")
        credentials = _read(from_environment("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials")
        section = "default" if profile == "default" else f"profile {profile}"
        sections = [
            each[name] for each, name in ((config, section), (config, profile), (credentials, profile)) if name in each
        ]
        self.has_profile = bool(sections)
        self.has_region = any(section.get("region") for section in sections)


def _read(path: str) -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read_string(Path(os.path.expanduser(path)).read_text("utf-8"))
    except (OSError, UnicodeDecodeError, configparser.Error):
        return configparser.RawConfigParser()  # botocore says what is wrong with it
    return parser


# -- clients ----------------------------------------------------------------------------------------------------------


class _Nothing:
    """Finds no credentials. With a bearer token there is no use for them, and looking for them may take seconds."""

    async def load_credentials(self) -> None:
        return None


class _Bearer:
    """Finds the token that was given."""

    def __init__(self, token: Any) -> None:
        self._token = token

    def load_token(self, **_: object) -> Any:
        return self._token


_RawObject = dict[str, msgspec.Raw]
_ENDPOINTS = "endpoints"
"""The file with the addresses of all services of AWS: 1 MB, and 4 MB as objects."""


class _PlainJson:
    """Reads the files that describe AWS's services. botocore's own reader takes twice the time, and 6 MB more."""

    def __init__(self, usual: Any) -> None:
        self.exists = usual.exists

    def load_file(self, path: str) -> Any:
        for ending, opened in ((".json", open), (".json.gz", gzip.open)):
            with contextlib.suppress(FileNotFoundError), opened(path + ending, "rb") as file:
                read = file.read()
                return _endpoints(read) if os.path.basename(path) == _ENDPOINTS else msgspec.json.decode(read)
        return None


def _endpoints(read: bytes) -> dict[str, Any]:
    """The addresses of AWS's services, of which only the one that is asked for becomes objects."""
    decode = msgspec.json.decode
    found = decode(read, type=_RawObject)
    partitions = decode(found.pop("partitions", b"[]"), type=list[_RawObject])
    return {
        **{name: decode(value) for name, value in found.items()},
        "partitions": [
            {name: _Services(value) if name == "services" else decode(value) for name, value in partition.items()}
            for partition in partitions
        ],
    }


class _Services(Mapping[str, Any]):
    """The services of one partition. botocore looks names up in it, and changes nothing."""

    def __init__(self, read: msgspec.Raw) -> None:
        self._services = msgspec.json.decode(read, type=_RawObject)

    def __getitem__(self, name: str) -> Any:
        return msgspec.json.decode(self._services[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._services)

    def __len__(self) -> int:
        return len(self._services)


_one_at_a_time = threading.Lock()
"""A session that was given may be asked for clients by several threads, and botocore's sessions have no lock."""


def _open(settings: Settings) -> Any:
    session_module = load("aiobotocore.session")
    # A loop of its own: the connections of a client belong to the loop of its first request, and not to this one.
    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        if settings.session is None:
            return runner.run(_create(_new_session(session_module, settings), settings))
        with _one_at_a_time:
            return runner.run(_create(settings.session, settings))


def _new_session(module: Any, settings: Settings) -> Any:
    session = module.AioSession(profile=settings.profile)  # beside keys, it has the region, and other settings
    loader = session.get_component("data_loader")
    loader.file_loader = _PlainJson(loader.file_loader)
    if settings.api_key is not None:
        token = load("botocore.tokens").FrozenAuthToken(settings.api_key)
        session.register_component("token_provider", _Bearer(token))
        session.register_component("credential_provider", _Nothing())
    return session


async def _create(session: Any, settings: Settings) -> Any:
    # Without a signature version that is set here, botocore prefers a token in the environment to all that was given.
    signature = {} if settings.session is not None else {"signature_version": "bearer" if settings.api_key else "v4"}
    config = load("aiobotocore.config").AioConfig(
        read_timeout=settings.timeout,
        connect_timeout=CONNECT_SECONDS,
        max_pool_connections=settings.max_connections,
        retries={"total_max_attempts": 1},  # the run itself retries, so that a cancel ends it and events report it
        parameter_validation=False,  # requests are built here, and the walk through them would be half of their cost
        **signature,
    )
    is_to_look = settings.session is None and settings.api_key is None and settings.access_key_id is None
    if is_to_look and await session.get_credentials() is None:
        raise no_credentials()
    context = session.create_client(
        "bedrock-runtime",
        region_name=settings.region,
        endpoint_url=settings.base_url,
        aws_access_key_id=settings.access_key_id if settings.api_key is None else None,
        aws_secret_access_key=settings.secret_access_key if settings.api_key is None else None,
        aws_session_token=settings.session_token if settings.api_key is None else None,
        config=config,
    )
    return await context.__aenter__()


async def _close(client: Any) -> None:
    await client.close()


clients: ClientCache[Settings, Any] = ClientCache(_open, _close)


# -- secrets ----------------------------------------------------------------------------------------------------------


def secrets_of(client: Any, settings: Settings | None) -> Secrets:
    """All secrets that a client sends. `settings` are those that it was made with, if it was made here."""
    return Secrets(_secrets(client, settings))


def _secrets(client: Any, settings: Settings | None) -> Iterator[str]:
    if settings is not None:
        given = (settings.api_key, settings.access_key_id, settings.secret_access_key, settings.session_token)
        yield from (value for value in given if value)
        yield from in_url(settings.base_url or "")
    signer = getattr(client, "_request_signer", None)
    token = getattr(getattr(signer, "_auth_token", None), "token", None)
    if isinstance(token, str):
        yield token
    # Their attributes, as they are: the properties of some would look for new ones.
    found = getattr(getattr(signer, "_credentials", None), "__dict__", {})
    for name in _SECRET_NAMES:
        for value in (found.get(name), found.get(f"_{name}")):
            if isinstance(value, str):
                yield value
    address = getattr(getattr(client, "meta", None), "endpoint_url", None)
    if isinstance(address, str):
        yield from in_url(address)

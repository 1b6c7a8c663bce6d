# SPDX-License-Identifier: Apache-2.0
"""Who may do what: tokens, the users that they belong to, and the web pages that may call the server.

What must stay true: `AuthMiddleware` finds the principal of a request before any route runs. The response about a thing
that the principal may not see is the same as for a thing that does not exist. Only the hash of a token is kept, so that
no log, error or receipt can contain a token.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable
from urllib.parse import unquote, urlsplit

from msgspec import Struct
from starlette.requests import HTTPConnection

from andon.errors import ConfigurationError
from andon.server.problems import Problem

log = logging.getLogger(__name__)

BEARER_PROTOCOL = "bearer."
PROTOCOL = "andon"
"""A browser offers this WebSocket subprotocol beside its token, and the server accepts this one."""


class Principal(Struct, frozen=True):
    """The sender of a request. One that is not an admin can see and change only the runs and sessions of its user."""

    user_id: str | None = None
    admin: bool = False
    by: str | None = None
    """The name in receipts."""

    def may_see(self, user_id: str | None) -> bool:
        return self.admin or (self.user_id is not None and self.user_id == user_id)

    def with_own_ids(self, fields: Mapping[str, Any], names: Sequence[str]) -> Mapping[str, Any]:
        """The fields with the principal's own `user_id` and `by`. Those of another user are refused."""
        own = {"by": self.by} if self.admin else {"user_id": self.user_id, "by": self.by}
        for name in names:
            if name in own and not self.admin and fields.get(name, own[name]) != own[name]:
                raise Problem(403, f"{name} is {fields[name]!r}, and the token belongs to another user: leave it out")
        return {**{name: value for name, value in own.items() if name in names and value is not None}, **fields}

    def require_admin(self) -> None:
        if not self.admin:
            raise Problem(403, "this takes an admin token, and yours is bound to a user")


ANONYMOUS = Principal()
"""For routes that need no token."""

OPEN_SERVER_USER = Principal(admin=True)
"""For every request to a server without tokens."""


def principal_of(connection: HTTPConnection) -> Principal:
    """The principal that `AuthMiddleware` has found. Fails if the middleware did not run."""
    principal = connection.scope["state"]["andon"]
    assert isinstance(principal, Principal)
    return principal


class Token(Struct, frozen=True):
    """A secret that gives access to the server. With a `user_id` and without `admin`, to that user's data alone."""

    secret: str
    user_id: str | None = None
    admin: bool = False

    def __repr__(self) -> str:
        return f"Token(user_id={self.user_id!r}, admin={self.admin})"

    @property
    def principal(self) -> Principal:
        admin = self.admin or self.user_id is None
        return Principal(None if admin else self.user_id, admin, self.user_id or "admin")


@runtime_checkable
class TokenSource(Protocol):
    """A source of tokens that may change while the server runs, such as `TokenFile`. Its methods must not block."""

    def read(self) -> list[Token]:
        """The current tokens. Raises `ConfigurationError` if they can't be used."""
        ...

    def has_changed(self) -> bool:
        """Whether the tokens have changed since `read`. Called for every request."""
        ...


Tokens = str | Token | TokenSource | Iterable[str | Token | TokenSource]


class Keyring:
    """Finds the principal of a token, by the token's hash."""

    def __init__(self, tokens: Tokens | None) -> None:
        given = [tokens] if isinstance(tokens, str | Token | TokenSource) else list(tokens or ())
        self._sources = [each for each in given if isinstance(each, TokenSource)]
        fixed = [each for each in given if not isinstance(each, TokenSource)]
        self._fixed = _known(fixed, {})
        self._known = self._read()
        if tokens is not None and not self._known:
            raise ConfigurationError("tokens is empty: leave it out for a server that is open to all, or give some")

    def __bool__(self) -> bool:
        return bool(self._known)

    def find(self, secret: str | None) -> Principal | None:
        """The principal of this secret. It is compared with all tokens, so that the time reveals nothing."""
        if any(source.has_changed() for source in self._sources):
            self._read_again()
        digest, found = _digest(secret or ""), None
        for known, principal in self._known.items():
            if hmac.compare_digest(known, digest):
                found = principal
        return found

    def _read(self) -> dict[bytes, Principal]:
        known = self._fixed
        for source in self._sources:
            known = _known(source.read(), known)
        return known

    def _read_again(self) -> None:
        """Read the tokens again. If they can't be used, the old ones stay in use."""
        try:
            self._known = self._read()
        except ConfigurationError as error:
            log.error("the tokens have changed and can't be used, so the old ones stay in use: %s", error)
        else:
            count = len(self._known)
            in_use = f"{count} token is in use now" if count == 1 else f"{count} tokens are in use now"
            log.warning("the tokens have changed and were read again: %s", in_use)


def _known(tokens: Iterable[Any], before: dict[bytes, Principal]) -> dict[bytes, Principal]:
    """The principals of these tokens by hash, added to those in `before`."""
    known = dict(before)
    for number, each in enumerate(tokens, 1):
        token = Token(each) if isinstance(each, str) else each
        if not isinstance(token, Token):
            raise ConfigurationError(f"token {number} is of type {type(token).__name__}: give text, or a Token")
        if not (isinstance(token.secret, str) and token.secret and all("!" <= c <= "~" for c in token.secret)):
            raise ConfigurationError(f"token {number} is empty, or has more than letters, digits and ASCII signs")
        if token.user_id == "":
            raise ConfigurationError(f"token {number} is bound to a user without a name")
        if known.setdefault(_digest(token.secret), token.principal) != token.principal:
            raise ConfigurationError(f"token {number} was given before, for another user: make another one")
    return known


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode(errors="surrogateescape")).digest()


def bearer_token(connection: HTTPConnection) -> str | None:
    """The token in the header `Authorization`, or in a WebSocket subprotocol: browsers can't set that header there."""
    scheme, _, secret = connection.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return secret.strip()
    for protocol in offered(connection):
        if protocol.startswith(BEARER_PROTOCOL):
            return unquote(protocol.removeprefix(BEARER_PROTOCOL))
    return None


def offered(connection: HTTPConnection) -> list[str]:
    return [str(each) for each in connection.scope.get("subprotocols", ())]


def subprotocol(connection: HTTPConnection) -> str | None:
    """The subprotocol to accept: never the one that carries the token."""
    return PROTOCOL if PROTOCOL in offered(connection) else None


class AllowedOrigins:
    """The host names of this server, and the origins of web pages that may call it.

    A page can let its own domain point to this machine. A browser then treats the server as same-origin with the page.
    So a server without tokens only answers requests whose Host header is one of its known names.
    """

    def __init__(self, hosts: Iterable[str], origins: Iterable[str]) -> None:
        if isinstance(hosts, str) or isinstance(origins, str):
            raise ConfigurationError("hosts and cors_origins are lists of names, not one text")
        self.hosts = {host.lower().strip("[]") for host in hosts}
        self.origins = [_origin(each) for each in origins]

    def allows_host(self, connection: HTTPConnection) -> bool:
        names = [_host_name(each) for each in connection.headers.getlist("host")]
        here = connection.scope.get("server")
        own = str(here[0]) if here else None
        return bool(names) and all(
            name is not None and (name == own or _is_loopback(name) or name in self.hosts or "*" in self.hosts)
            for name in names
        )

    def allows_origin(self, connection: HTTPConnection) -> bool:
        """Whether the request is from no web page, from a page of this server, or from an allowed origin."""
        hosts = connection.headers.getlist("host")
        return all(
            origin in self.origins or "*" in self.origins or (len(hosts) == 1 and _same(origin, hosts[0]))
            for origin in map(str.lower, connection.headers.getlist("origin"))
        )


def _host_name(host: str) -> str | None:
    """The name in a Host header, without its port."""
    try:
        return urlsplit(f"//{host}").hostname if host and not set(host) & set("/?#@\\") else None
    except ValueError:
        return None


def _is_loopback(name: str) -> bool:
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _same(origin: str, host: str) -> bool:
    """Whether the origin is this host. A proxy may change the scheme, so it is ignored; so are default ports."""
    scheme, _, there = origin.partition("://")
    port = {"http": ":80", "https": ":443"}.get(scheme)
    return port is not None and there.removesuffix(port) == host.lower().removesuffix(port)


def _origin(given: str) -> str:
    if given == "*":
        return given
    try:
        parts = urlsplit(given)
        bare = given.lower() == f"{parts.scheme}://{parts.netloc}".lower()
        good = bare and parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        good = False
    if not good or "@" in given:
        raise ConfigurationError(
            f"{given!r} is no origin: write https://name, with the port if it has one, and no path"
        )
    return given.lower()

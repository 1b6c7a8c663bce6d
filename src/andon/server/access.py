# SPDX-License-Identifier: Apache-2.0
"""Who may ask what: tokens, the users they are bound to, and the web pages that may speak to the server.

What must stay true: no route is reached before the guard has said who asks, and what a principal may not see is
answered like what is not there. Of a token only its hash is kept, so that no log, error or receipt can have it.
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
"""What a browser offers beside its token as the subprotocol of a WebSocket, and what it is answered with."""


class Principal(Struct, frozen=True):
    """Who asks. One who is no admin sees and touches what is the user's own, and nothing of anybody else."""

    user_id: str | None = None
    admin: bool = False
    by: str | None = None
    """Who it is, in receipts."""

    def may_see(self, user_id: str | None) -> bool:
        return self.admin or (self.user_id is not None and self.user_id == user_id)

    def with_own_ids(self, fields: Mapping[str, Any], names: Sequence[str]) -> Mapping[str, Any]:
        """What was sent, in the name of whoever sent it: `user_id` and `by` can't be anybody else's."""
        own = {"by": self.by} if self.admin else {"user_id": self.user_id, "by": self.by}
        for name in names:
            if name in own and not self.admin and fields.get(name, own[name]) != own[name]:
                raise Problem(403, f"{name} is {fields[name]!r}, and the request is another user's: leave it out")
        return {**{name: value for name, value in own.items() if name in names and value is not None}, **fields}

    def require_admin(self) -> None:
        if not self.admin:
            raise Problem(403, "this takes an admin token, and yours is bound to a user")


ANONYMOUS = Principal()
"""Who asks for what is open to all."""

OPEN_SERVER_USER = Principal(admin=True)
"""Who asks a server that has no tokens."""


def principal_of(connection: HTTPConnection) -> Principal:
    """Who asks. Without the guard's word there is no answer."""
    principal = connection.scope["state"]["andon"]
    assert isinstance(principal, Principal)
    return principal


class Token(Struct, frozen=True):
    """A secret that opens the server. With a `user_id` and without `admin` it opens what is that user's alone."""

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
    """Where tokens come from that may change while the server runs: see `TokenFile`. Nothing in it may wait."""

    def read(self) -> list[Token]:
        """The tokens as they are now. Raises `ConfigurationError` if they can't be used."""
        ...

    def has_changed(self) -> bool:
        """Whether they are others than those that were read. It is asked with every request."""
        ...


Tokens = str | Token | TokenSource | Iterable[str | Token | TokenSource]


class Keyring:
    """Knows tokens by their hashes."""

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
        """Whose it is. All of them are looked at, so that the time it takes tells nothing."""
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
        """What can't be used must not open the server, nor close it: the tokens stay as they were."""
        try:
            self._known = self._read()
        except ConfigurationError as error:
            log.error("the tokens have changed and can't be used, so they stay as they were: %s", error)
        else:
            count = len(self._known)
            in_use = f"{count} token is in use now" if count == 1 else f"{count} tokens are in use now"
            log.warning("the tokens have changed and were read again: %s", in_use)


def _known(tokens: Iterable[Any], before: dict[bytes, Principal]) -> dict[bytes, Principal]:
    """By its hash, who each of these stands for, beside those that were known before."""
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
            raise ConfigurationError(f"token {number} was given before, for someone else: make another one")
    return known


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode(errors="surrogateescape")).digest()


def bearer_token(connection: HTTPConnection) -> str | None:
    """The token that was sent: in the header, or, because browsers can't do that, as a WebSocket's subprotocol."""
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
    """What to answer a client that offers subprotocols: never the token."""
    return PROTOCOL if PROTOCOL in offered(connection) else None


class AllowedOrigins:
    """Which names the server goes by, and which web pages may speak to it.

    A page can have its own name point to this machine, and a browser then takes the server for the page's own; so a
    server without tokens answers only to names that are known to be its own.
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
        """Whether whoever asks is no web page, or one of this server's own, or one that was allowed."""
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
    """Whether a page of this origin came from this host. The scheme is a proxy's to change; default ports are none."""
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

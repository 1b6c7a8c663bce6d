# SPDX-License-Identifier: Apache-2.0
"""Cables between servers and their database: one pair of virtual network devices for each server or worker.

The far ends are in a network namespace of their own. The near ends are in the machine's, or, with a `Home`, each in the
namespace of its own process. A cable that is cut loses packets, as a partition does: the kernel
sends them again, connections are not told, and keepalives get no answer. A proxy alone can't do that, because its own
kernel confirms whatever reaches it.

A direction is cut by giving its sender a wrong hardware address for the other end: what it sends arrives, and the
receiver drops it as meant for another machine. So nothing but `ip` is needed.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

from bench.network import network_change

NETWORK = ipaddress.ip_network("198.18.0.0/15")
"""Reserved for tests of networks: no other machine has an address in it."""
NOWHERE = "02:00:00:00:00:99"
QUIET = ("addrgenmode", "none")
"""No address of IPv6, which the kernel would add a moment later by itself."""


class Home:
    """A network namespace for one process, and a cable by which clients on this machine reach it at `address`, and by
    which it reaches this machine at `outside`.
    """

    def __init__(self, namespace: str, number: int, block: ipaddress.IPv4Network) -> None:
        self.namespace = f"{namespace}h{number}"
        self.outside, self.address = (str(block[4 * number + each]) for each in (1, 2))
        self._device = f"{namespace}-{number}c"
        _ip("netns", "add", self.namespace)
        _ip("-netns", self.namespace, "link", "set", "lo", "up")
        _ip("link", "add", self._device, "type", "veth", "peer", "name", "clients", "netns", self.namespace)
        _ip("addr", "add", f"{self.outside}/30", "dev", self._device)
        _ip("link", "set", self._device, *QUIET, "up")
        _ip("-netns", self.namespace, "addr", "add", f"{self.address}/30", "dev", "clients")
        _ip("-netns", self.namespace, "link", "set", "clients", "up")

    @property
    def entrance(self) -> tuple[str, ...]:
        """What is put before a command to execute it there."""
        return ("ip", "netns", "exec", self.namespace)

    def remove(self) -> None:
        with contextlib.suppress(subprocess.CalledProcessError):
            _ip("link", "delete", self._device)
        _ip("netns", "delete", self.namespace)


class Wire:
    """One cable: `near` is the address of the server or worker, `far` the one at which it reaches the database."""

    def __init__(self, namespace: str, number: int, block: ipaddress.IPv4Network, home: Home | None = None) -> None:
        self._namespace, self.home = namespace, home
        self.near, self.far = (str(block[4 * number + each]) for each in (1, 2))
        self._devices = (f"{namespace}-{number}n", f"{namespace}-{number}f")
        near, far = self._devices
        _ip("link", "add", near, "type", "veth", "peer", "name", far, "netns", namespace)
        if home is not None:
            _ip("link", "set", near, "netns", home.namespace)
        for inside, device, address in ((False, near, self.near), (True, far, self.far)):
            self._ip("addr", "add", f"{address}/30", "dev", device, inside=inside)
            self._ip("link", "set", device, *QUIET, "up", inside=inside)
        self._machines = tuple(self._machine(device, inside=each) for device, each in ((near, False), (far, True)))
        self._pass(up=True, down=True)

    async def change(self, up: bool | None = None, down: bool | None = None) -> None:
        """`up` is towards the database. What is not given stays as it is."""
        await asyncio.to_thread(self._pass, up, down)

    def _pass(self, up: bool | None = None, down: bool | None = None) -> None:
        (near, far), (near_machine, far_machine) = self._devices, self._machines
        if up is not None:
            self._neighbour(self.far, far_machine if up else NOWHERE, near, inside=False)
        if down is not None:
            self._neighbour(self.near, near_machine if down else NOWHERE, far, inside=True)

    def _neighbour(self, address: str, machine: str, device: str, *, inside: bool) -> None:
        self._ip("neigh", "replace", address, "lladdr", machine, "dev", device, "nud", "permanent", inside=inside)

    def _machine(self, device: str, *, inside: bool) -> str:
        (found,) = json.loads(self._ip("-json", "link", "show", "dev", device, inside=inside))
        return str(found["address"])

    def _ip(self, *words: str, inside: bool) -> str:
        near = () if self.home is None else ("-netns", self.home.namespace)
        return _ip(*(("-netns", self._namespace) if inside else near), *words)

    def remove(self) -> None:
        with contextlib.suppress(subprocess.CalledProcessError):  # it went with the namespace
            self._ip("link", "delete", self._devices[0], inside=False)


def can_be_laid() -> bool:
    """Whether this user, on this machine, may make namespaces and devices."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        return False
    try:
        with wires(1):
            return True
    except subprocess.CalledProcessError:
        return False


@contextlib.contextmanager
def wires(count: int, *, homes: bool = False) -> Iterator[tuple[str, list[Wire]]]:
    """So many cables, and the name of the namespace in which they end; with `homes`, each begins in a namespace of its
    own. All of it is gone afterwards.
    """
    namespace, laid, made = f"andon{secrets.token_hex(2)}", list[Wire](), list[Home]()
    _ip("netns", "add", namespace)
    try:
        with network_change():
            block = _free_block()
            if homes:
                front = _free_block()
                while front == block:
                    front = _free_block()
                for number in range(count):
                    made.append(Home(namespace, number, front))
            for number in range(count):
                laid.append(Wire(namespace, number, block, made[number] if homes else None))
        yield namespace, laid
    finally:
        with network_change():
            for wire in laid:
                wire.remove()
            for home in made:
                home.remove()
        _ip("netns", "delete", namespace)


def _free_block() -> ipaddress.IPv4Network:
    """Of 256 addresses, which no other trial on this machine uses now."""
    devices: list[dict[str, Any]] = json.loads(_ip("-json", "-4", "addr"))
    used = {ipaddress.ip_address(each["local"]) for device in devices for each in device["addr_info"]}
    while True:
        block = ipaddress.ip_network((int(NETWORK[0]) + 256 * secrets.randbelow(512), 24))
        assert isinstance(block, ipaddress.IPv4Network)
        if not any(address in block for address in used):
            return block


def _ip(*words: str) -> str:
    return subprocess.run(("ip", *words), check=True, capture_output=True, text=True).stdout

"""Addresses: where a node listens and whom it looks for, as node.toml says it."""

from __future__ import annotations

import ipaddress
import json
import socket
from collections.abc import Iterable
from pathlib import Path

import msgspec

from epidemic.config import build
from epidemic.errors import BadInput, require_int
from epidemic.experiment import read_toml


class Addresses(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a node listens, and whom it looks for; node.toml in its folder."""

    listen: str | None = None
    """host:port; none for a node that is reached through a relay only."""
    connect: tuple[str, ...] = ()
    """host:port of others, or of relays; one that answers is enough."""
    relay: bool = False
    """Whether it is relays that it connects to: everything then goes through them."""
    founders: tuple[int, ...] = ()
    """The places that are waited for at the start; the others may come later."""
    reach: str | None = None
    """host:port that others reach it at, for nodes that tell each other where they are (topology.view); absent: as it listens."""
    largest: int | None = None
    """Bytes of the largest letter, for a relay, which does not see the data that a model's size may follow from."""

    def __post_init__(self) -> None:
        for address in self.all:
            split_address(address)
        if self.listen is None and not self.connect:
            raise BadInput("node.toml gives neither an address to listen on nor one to connect to")
        if self.relay and self.listen is not None:
            raise BadInput("node.toml: a node behind a relay (relay = true) does not listen; leave listen out")
        if self.largest is not None:
            require_int("node.toml: largest", self.largest, 1, 2**40)

    @property
    def all(self) -> tuple[str, ...]:
        """Every address named, its own first."""
        own = (address for address in (self.listen, self.reach) if address is not None)
        return (*own, *self.connect)

    @property
    def told(self) -> str:
        """Where others are told that this node is. Raises BadInput if that is not known."""
        found = self.reach if self.reach is not None else self.listen
        if found is None or _is_anywhere(found):
            raise BadInput(
                'node.toml: with topology.view nodes tell each other where they are; add reach = "HOST:PORT", which others can reach'
            )
        return found


def split_address(address: str) -> tuple[str, int]:
    """host:port, with [..] around an IPv6 address."""
    host, _, port = address.rpartition(":")
    digits = port.isascii() and port.isdigit() and len(port) <= 5
    if not host or not digits or not 1 <= int(port) <= 65535 or (":" in host) != (host[:1] == "["):
        raise BadInput(f"{address!r} is not an address; use host:port, for example 10.0.0.5:7447 or [fd00::5]:7447")
    if any(c in host for c in " /?#,") or not host.strip("[]"):
        raise BadInput(f"{address!r} is not an address; {host!r} is not the name of a host")
    return host.strip("[]"), int(port)


def is_loopback(address: str) -> bool:
    """Whether an address never leaves this machine."""
    host, _ = split_address(address)
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_anywhere(address: str) -> bool:
    """Whether an address stands for all of a machine's own, which is no place to be reached at."""
    try:
        return ipaddress.ip_address(split_address(address)[0]).is_unspecified
    except ValueError:
        return False


def free_addresses(count: int) -> list[str]:
    """Loopback addresses that nobody listens on now."""
    sockets = []
    try:
        for _ in range(count):
            found = socket.create_server(("127.0.0.1", 0))
            sockets.append(found)
        return [f"127.0.0.1:{s.getsockname()[1]}" for s in sockets]
    finally:
        for found in sockets:
            found.close()


def read_addresses(path: Path) -> Addresses:
    """What node.toml says."""
    return build(read_toml(path), Addresses, str(path))


def to_toml(addresses: Addresses, comments: Iterable[str] = ()) -> str:
    """node.toml."""
    lines = [f"# {line}" for line in comments]
    if addresses.listen is not None:
        lines.append(f"listen = {json.dumps(addresses.listen)}")
    lines.append(f"connect = {json.dumps(list(addresses.connect))}")
    if addresses.relay:
        lines.append("relay = true")
    if addresses.reach is not None:
        lines.append(f"reach = {json.dumps(addresses.reach)}")
    lines.append(f"founders = {json.dumps(list(addresses.founders))}")
    if addresses.largest is not None:
        lines.append(f"largest = {addresses.largest}")
    return "\n".join(lines) + "\n"

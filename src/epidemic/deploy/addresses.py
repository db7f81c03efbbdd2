"""Where a node listens and connects, as node.toml states it."""

from __future__ import annotations

import ipaddress
import json
import socket
from collections.abc import Iterable
from pathlib import Path

import msgspec

from epidemic.core.config import build
from epidemic.core.errors import BadInput, require_int
from epidemic.experiment import read_toml

IP = ipaddress.IPv4Address | ipaddress.IPv6Address

_HOLD_IPV4 = [ipaddress.IPv6Network(prefix) for prefix in ("::ffff:0:0/96", "::/96", "64:ff9b::/96")]
"""IPv6 addresses whose last 32 bits are an IPv4 address: mapped, compatible, translated."""


class Addresses(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a node listens and connects; node.toml in its folder."""

    listen: str | None = None
    """host:port; None for a node that is reached only through a relay."""
    connect: tuple[str, ...] = ()
    """host:port of peers or relays; one that answers is enough."""
    relay: bool = False
    """Whether `connect` names relays; everything then goes through them."""
    founders: tuple[int, ...] = ()
    """The nodes awaited at the start; others may join later."""
    reach: str | None = None
    """host:port at which peers reach the node, if nodes tell each other their addresses (topology.view); None: the same as `listen`."""
    largest: int | None = None
    """Bytes of the largest message, for a relay without the data that determines the model's size."""

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
        """All addresses named, the node's own first."""
        own = (address for address in (self.listen, self.reach) if address is not None)
        return (*own, *self.connect)

    @property
    def told(self) -> str:
        """The address to tell peers. Raises BadInput if it is unknown."""
        found = self.reach if self.reach is not None else self.listen
        if found is None or is_anywhere(found):
            raise BadInput(
                'node.toml: with topology.view nodes exchange their addresses; add reach = "HOST:PORT", which others can reach'
            )
        return found


def split_address(address: str) -> tuple[str, int]:
    """Split host:port; an IPv6 address is in [..]."""
    host, _, port = address.rpartition(":")
    digits = port.isascii() and port.isdigit() and len(port) <= 5
    if not host or not digits or not 1 <= int(port) <= 65535 or (":" in host) != (host[:1] == "["):
        raise BadInput(f"{address!r} is not an address; use host:port, for example 10.0.0.5:7447 or [fd00::5]:7447")
    if any(c in host for c in " /?#,") or not host.strip("[]") or not host.isprintable():
        raise BadInput(f"{address!r} is not an address; {host!r} is not the name of a host")
    return host.strip("[]"), int(port)


def ip_of(host: str) -> IP | None:
    """Parse a host as an IP address in any form that the system's resolver accepts; None for a name.

    Accepts forms such as 127.1, 2130706433, 0x7f.0.0.1 and 0177.0.0.1; an IPv4 address inside an IPv6 one is returned as IPv4.
    """
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        try:
            return ipaddress.IPv4Address(socket.inet_aton(host))
        except OSError:
            return None
    if isinstance(found, ipaddress.IPv4Address):
        return found
    if any(found in network for network in _HOLD_IPV4) and int(found) > 1:
        return ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
    return found.sixtofour or found


def is_loopback(address: str) -> bool:
    """Whether an address never leaves this machine."""
    host = split_address(address)[0]
    ip = ip_of(host)
    name = host.lower().rstrip(".")
    return ip.is_loopback if ip is not None else name == "localhost" or name.endswith(".localhost")


def is_anywhere(address: str) -> bool:
    """Whether an address stands for all addresses of a machine, at which no peer can reach it."""
    ip = ip_of(split_address(address)[0])
    return ip is not None and (ip.is_unspecified or (ip.version == 4 and int(ip) >> 24 == 0))


def same_address(one: str, other: str) -> bool:
    """Whether two addresses are the same, however they are written; names are not resolved."""
    (host, port), (other_host, other_port) = split_address(one), split_address(other)
    return port == other_port and _written(host) == _written(other_host)


def _written(host: str) -> IP | str:
    """A host in its canonical form."""
    return ip_of(host) or host.lower().rstrip(".")


def elsewhere(address: str) -> str:
    """The address with its host resolved to an IP address; raises BadInput if that is this machine. Resolving takes time.

    Connecting to the result is safe even if the name's address changes between two look-ups.
    """
    host, port = split_address(address)
    hosts = [host]
    if ip_of(host) is None and not is_loopback(address):
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            raise BadInput(f"{host!r} is not the name of a host that can be found") from None
        hosts = [str(where[4][0]) for where in found]
    for each in hosts:
        at = f"[{each}]:{port}" if ":" in each else f"{each}:{port}"
        if is_loopback(at) or is_anywhere(at):
            raise BadInput(f"{address!r} leads to this machine itself ({each})")
    return f"[{hosts[0]}]:{port}" if ":" in hosts[0] else f"{hosts[0]}:{port}"


def free_addresses(count: int) -> list[str]:
    """`count` free addresses on loopback."""
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
    """Read and check node.toml."""
    return build(read_toml(path), Addresses, str(path))


def to_toml(addresses: Addresses, comments: Iterable[str] = ()) -> str:
    """The text of node.toml."""
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

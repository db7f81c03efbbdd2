"""Opening the network: problems reported in one line."""

from __future__ import annotations

import errno
import socket

import zenoh

from epidemic.core.errors import BadInput, RunFailed
from epidemic.deploy.addresses import Addresses, split_address


class Unreachable(BadInput):
    """No peer or relay to connect to yet; the caller may retry."""


def check_free(address: str) -> None:
    """Raise BadInput if a port is in use."""
    host, port = split_address(address)
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
    except (OSError, UnicodeError) as problem:
        used = isinstance(problem, OSError) and problem.errno == errno.EADDRINUSE
        reason = "the port is in use" if used else getattr(problem, "strerror", None) or str(problem)
        raise BadInput(f"cannot listen on {address}: {reason}; choose another one in node.toml") from None


def worded(problem: zenoh.ZError, addresses: Addresses) -> BadInput | RunFailed:
    """A Zenoh error as one line for the user."""
    text = " ".join(str(problem).split()).split(" at /")[0]
    if "connect to any" in text:
        return Unreachable(f"no answer at {', '.join(addresses.connect)}, or not with a certificate of this authority")
    if "already in use" in text:
        return BadInput(f"cannot listen on {addresses.listen}: the port is in use; choose another one in node.toml")
    return RunFailed(f"the network could not be opened: {text}")

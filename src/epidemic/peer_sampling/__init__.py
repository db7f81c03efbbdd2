"""Peer sampling: services that give every node a partial view of the network, by kind.

May be imported by `topology/` and everything above it. To add a service: a frozen Struct derived from `PeerSampling` in a file of its own (`start`,
`exchange`, `unanswered`, and `sampler` for deployed nodes), and its row in `SERVICES`.
"""

from __future__ import annotations

from epidemic.core.config import build_kind
from epidemic.core.errors import BadInput
from epidemic.peer_sampling.base import Control, PeerSampling, ReachableLinks
from epidemic.peer_sampling.cyclon import Cyclon
from epidemic.peer_sampling.jelasity import Jelasity
from epidemic.peer_sampling.overlay import Overlay, Reach, draw_targets, overlay
from epidemic.peer_sampling.spray import Spray

SERVICES: dict[str, type[PeerSampling]] = {
    "cyclon": Cyclon,
    "jelasity": Jelasity,
    "spray": Spray,
}


def service_from(table: object, where: str = "topology.view") -> PeerSampling:
    """Read the service of a TOML table, for example {kind = "cyclon", size = 20}.

    Args:
        table: The settings, with `kind`.
        where: Its dotted path in the file, for messages.

    Returns:
        The service as a frozen value.
    """
    service = build_kind(table, SERVICES, where)
    if type(service) not in SERVICES.values():  # a file would name the derived-from class
        raise BadInput(f"{where} = {service!r} must be one of {', '.join(SERVICES)}, not a class derived from it")
    return service


__all__ = [
    "SERVICES",
    "Control",
    "Cyclon",
    "Jelasity",
    "Overlay",
    "PeerSampling",
    "Reach",
    "ReachableLinks",
    "Spray",
    "draw_targets",
    "overlay",
    "service_from",
]

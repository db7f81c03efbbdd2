"""Peer sampling: services that give every node a partial view of the network, by kind."""

from __future__ import annotations

from epidemic.config import build_kind
from epidemic.errors import BadInput
from epidemic.sampling.base import Control, Links, PeerSampling
from epidemic.sampling.cyclon import Cyclon
from epidemic.sampling.jelasity import Jelasity
from epidemic.sampling.overlay import Overlay, Reach, draw_targets, overlay
from epidemic.sampling.spray import Spray

SERVICES: dict[str, type[PeerSampling]] = {
    "cyclon": Cyclon,
    "jelasity": Jelasity,
    "spray": Spray,
}


def service_from(table: object, where: str = "topology.view") -> PeerSampling:
    """The service that a TOML table describes, for example {kind = "cyclon", size = 20}."""
    service = build_kind(table, SERVICES, where)
    if type(service) not in SERVICES.values():  # a file would name the class that it is derived from
        raise BadInput(f"{where} = {service!r} must be one of {', '.join(SERVICES)}, not a class derived from it")
    return service


__all__ = [
    "SERVICES",
    "Control",
    "Cyclon",
    "Jelasity",
    "Links",
    "Overlay",
    "PeerSampling",
    "Reach",
    "Spray",
    "draw_targets",
    "overlay",
    "service_from",
]

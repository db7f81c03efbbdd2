"""Topologies: every one of the paper's Table 1 and experiments, and later ones it is compared with, by kind."""

from __future__ import annotations

from epidemic.core.config import build_kind
from epidemic.topology.base import (
    Expected,
    GivesGraphs,
    Topology,
    ceil_log2,
    check_topology,
    control,
    exchange_of,
    expected,
    graph_among,
    is_doubly_stochastic,
    is_placed,
    is_random,
    is_static,
    is_symmetric,
    kind_of,
    natural_mixing,
    peer_sampling,
    topology_cautions,
)
from epidemic.topology.el import ELLocal, ELOracle, Pull
from epidemic.topology.equitopo import DEquiStatic, ODEquiDyn, OUEquiDyn, UEquiStatic
from epidemic.topology.finite import Base, Hypercube
from epidemic.topology.matcha import Matcha
from epidemic.topology.own import PythonTopology, require_keyed
from epidemic.topology.regular import Regular, Unlucky
from epidemic.topology.static import (
    Complete,
    ErdosRenyi,
    Exponential,
    Geometric,
    Isolated,
    OnePeerExponential,
    Ring,
    Torus,
)
from epidemic.topology.swap import PeerSwap
from epidemic.topology.tolerance import tolerance, tolerance_caution
from epidemic.topology.wrappers import Every, Fragments, Periodic, Wrapper, fragments_of

TOPOLOGIES: dict[str, type[Topology]] = {
    "el-oracle": ELOracle,
    "el-local": ELLocal,
    "regular": Regular,
    "unlucky": Unlucky,
    "ring": Ring,
    "torus": Torus,
    "complete": Complete,
    "none": Isolated,
    "erdos-renyi": ErdosRenyi,
    "exponential": Exponential,
    "one-peer-exponential": OnePeerExponential,
    "d-equistatic": DEquiStatic,
    "u-equistatic": UEquiStatic,
    "od-equidyn": ODEquiDyn,
    "ou-equidyn": OUEquiDyn,
    "hypercube": Hypercube,
    "base": Base,
    "matcha": Matcha,
    "geometric": Geometric,
    "peer-swap": PeerSwap,
    "pull": Pull,
    "every": Every,
    "periodic": Periodic,
    "fragments": Fragments,
    "python": PythonTopology,
}


def topology_from(table: object, where: str = "topology") -> Topology:
    """The topology that a TOML table describes, for example {kind = "el-local", s = 7}."""
    return build_kind(table, TOPOLOGIES, where)


__all__ = [
    "TOPOLOGIES",
    "Base",
    "Complete",
    "DEquiStatic",
    "ELLocal",
    "ELOracle",
    "ErdosRenyi",
    "Every",
    "Expected",
    "Exponential",
    "Fragments",
    "Geometric",
    "GivesGraphs",
    "Hypercube",
    "Isolated",
    "Matcha",
    "ODEquiDyn",
    "OUEquiDyn",
    "OnePeerExponential",
    "PeerSwap",
    "Periodic",
    "Pull",
    "PythonTopology",
    "Regular",
    "Ring",
    "Topology",
    "Torus",
    "UEquiStatic",
    "Unlucky",
    "Wrapper",
    "ceil_log2",
    "check_topology",
    "control",
    "exchange_of",
    "expected",
    "fragments_of",
    "graph_among",
    "is_doubly_stochastic",
    "is_placed",
    "is_random",
    "is_static",
    "is_symmetric",
    "kind_of",
    "natural_mixing",
    "peer_sampling",
    "require_keyed",
    "tolerance",
    "tolerance_caution",
    "topology_cautions",
    "topology_from",
]

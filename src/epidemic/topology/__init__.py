"""Who talks to whom: every topology of the paper's Table 1 and experiments, by kind."""

from __future__ import annotations

from epidemic.config import build_kind
from epidemic.topology.base import (
    Every,
    Expected,
    GivesGraphs,
    Topology,
    ceil_log2,
    check_topology,
    expected,
    is_random,
    is_static,
    kind_of,
    natural_mixing,
)
from epidemic.topology.el import ELLocal, ELOracle
from epidemic.topology.equitopo import DEquiStatic, ODEquiDyn, OUEquiDyn, UEquiStatic
from epidemic.topology.own import PythonTopology
from epidemic.topology.regular import Regular, Unlucky
from epidemic.topology.static import (
    Complete,
    ErdosRenyi,
    Exponential,
    Isolated,
    OnePeerExponential,
    Ring,
    Torus,
)

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
    "every": Every,
    "python": PythonTopology,
}


def topology_from(table: object, where: str = "topology") -> Topology:
    """The topology that a TOML table describes, for example {kind = "el-local", s = 7}."""
    return build_kind(table, TOPOLOGIES, where)


__all__ = [
    "TOPOLOGIES",
    "Complete",
    "DEquiStatic",
    "ELLocal",
    "ELOracle",
    "ErdosRenyi",
    "Every",
    "Expected",
    "Exponential",
    "GivesGraphs",
    "Isolated",
    "ODEquiDyn",
    "OUEquiDyn",
    "OnePeerExponential",
    "PythonTopology",
    "Regular",
    "Ring",
    "Topology",
    "Torus",
    "UEquiStatic",
    "Unlucky",
    "ceil_log2",
    "check_topology",
    "expected",
    "is_random",
    "is_static",
    "kind_of",
    "natural_mixing",
    "topology_from",
]

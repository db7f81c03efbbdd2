"""The spectral attack: enlarges the slowest difference between honest nodes of a static graph (Gaucher, Dieuleveut and Hendrikx, 2025)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from epidemic.adversary.base import Adversary, Scene, Sight
from epidemic.core.errors import BadInput, require_real
from epidemic.core.graph import FloatArray, Graph, IntArray

MOST_NODES = 2000


def fiedler_vector(graph: Graph, members: IntArray) -> FloatArray:
    """The eigenvector of the second smallest eigenvalue of the Laplacian of the links among these nodes, of length 1; 0 for all others.   # (n,)"""
    place = np.full(graph.n, -1)
    place[members] = np.arange(len(members))
    whole = graph.explicit()
    both = (place[whole.senders] >= 0) & (place[whole.receivers] >= 0)
    linked = np.zeros((len(members), len(members)))
    linked[place[whole.receivers[both]], place[whole.senders[both]]] = 1.0
    found = np.zeros(graph.n)
    if len(members) > 1:
        found[members] = np.linalg.eigh(np.diag(linked.sum(1)) - linked)[1][:, 1]
    return found


class Spectral(Adversary, frozen=True, tag="spectral"):
    """Pushes every receiver along the Fiedler vector of the honest nodes' graph, by which their models differ longest."""

    personal: ClassVar[bool] = True
    static_only: ClassVar[bool] = True

    factor: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_real("adversary.factor", self.factor)

    def check(self, n: int) -> None:
        """The spectrum is that of a dense matrix."""
        super().check(n)
        if n > MOST_NODES:
            raise BadInput(
                f'adversary.kind = "spectral" is for at most {MOST_NODES} nodes; nodes = {n}, use "dissensus"'
            )

    def prepare(self, sight: Sight, memory: dict[str, Tensor]) -> dict[str, Tensor]:
        """The vector, once; the sum of the honest models by it.   # (n,), (d,)"""
        if "fiedler" not in memory:
            honest = np.setdiff1d(np.arange(sight.graph.n), sight.malicious)
            memory["fiedler"] = torch.from_numpy(fiedler_vector(sight.graph, honest))
        v = memory["fiedler"].to(sight.rows.device, sight.rows.dtype)
        return {"fiedler": v, "component": v[torch.from_numpy(sight.honest)] @ sight.rows}

    def message(self, scene: Scene) -> Tensor:
        """x_i + z v_i * sum over honest j of v_j x_j.   # (d,)"""
        assert scene.own is not None
        assert scene.receiver is not None
        return scene.own + self.factor * scene.notes["fiedler"][scene.receiver] * scene.notes["component"]

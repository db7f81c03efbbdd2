"""The two topologies of Epidemic Learning (de Vos et al., NeurIPS 2023, section 3), and the mirror image in which nodes ask.

EL-Local does not need full knowledge: with a `view`, targets come from the few peers that a peer sampling service shows a node.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import msgspec
import numpy as np

from epidemic import theory
from epidemic.core.errors import require_choice, require_int
from epidemic.core.graph import Graph, IntArray
from epidemic.core.rng import Stream, Streams, distinct
from epidemic.peer_sampling import Control, PeerSampling, Reach, draw_targets, overlay, service_from
from epidemic.theory.malicious import Kind
from epidemic.topology.base import Expected, Topology, check_degree
from epidemic.topology.regular import random_regular_edges


class ELOracle(Topology, frozen=True, tag="el-oracle"):
    """Each round a random graph in which every node exchanges models with exactly `s` others.

    `base = "permuted"` relabels a fixed s-regular graph at random, `"fresh"` draws a new random s-regular graph. Every pair is linked with probability
    s / (n - 1) either way, and the contraction is the same. A round's graph need not be connected, and is never "repaired".
    """

    symmetric: ClassVar[bool | None] = True
    doubly_stochastic: ClassVar[bool | None] = True

    random: ClassVar[bool] = True
    law: ClassVar[Kind | None] = "el-oracle"

    s: int
    base: Literal["permuted", "fresh"] = "permuted"

    def __post_init__(self) -> None:
        require_int("topology.s", self.s, 1)
        require_choice("topology.base", self.base, ["permuted", "fresh"])

    def check(self, n: int) -> None:
        check_degree(n, self.s, even=True)

    def draw(self, n: int, round: int, streams: Streams) -> Graph:
        if self.s == n - 1:
            return Graph.complete(n)
        stream = streams("topology", round)
        if self.base == "fresh":
            return Graph.from_edges(n, *random_regular_edges(n, self.s, stream))
        position = stream.permutation(n).astype(
            np.int32
        )  # position[i]: the node on position i of a fixed circulant graph
        round_table = np.concatenate([position, position])
        half = range(1, self.s // 2 + 1)
        offsets = [*half, *(n - o for o in half), *([n // 2] if self.s % 2 else [])]
        heard = np.empty((n, self.s), dtype=np.int32)
        heard[position] = np.stack([round_table[o : o + n] for o in offsets], axis=1)
        return Graph.from_targets(heard)

    def expected(self, n: int, streams: Streams) -> Expected:
        alpha = theory.alpha(n, self.s)
        return Expected(sigma2=alpha, contraction=alpha, floors=theory.floors_oracle(n, self.s))


class ELLocal(Topology, frozen=True, tag="el-local", repr_omit_defaults=True):
    """Every node sends to `s` distinct others, chosen uniformly and independently anew each round.

    With a `view` they are chosen from the peers that the node knows in that round; a node that knows fewer than `s` sends to all of them. A view of all nodes
    gives the same graphs, to the bit, as full knowledge.
    """

    symmetric: ClassVar[bool | None] = False
    doubly_stochastic: ClassVar[bool | None] = False

    random: ClassVar[bool] = True

    s: int
    view: Any = None
    """A peer sampling service, for example {kind = "cyclon", size = 20}; None: all nodes know each other."""

    def __post_init__(self) -> None:
        require_int("topology.s", self.s, 1)
        if self.view is not None:
            msgspec.structs.force_setattr(self, "view", service_from(self.view))

    @property
    def law(self) -> Kind | None:  # type: ignore[override]
        """The law of malicious in-neighbours; None with a view, where members decide what they show of themselves."""
        return "el-local" if self.view is None else None

    @property
    def _service(self) -> PeerSampling | None:
        found: PeerSampling | None = self.view
        return found

    def check(self, n: int) -> None:
        check_degree(n, self.s, even=False)
        if self._service is not None:
            self._service.check(n, self.s)

    def draw(self, n: int, round: int, streams: Streams) -> Graph:
        return self._draw(n, round, streams, None)

    def graph_among(self, n: int, round: int, streams: Streams, reach: Reach | None) -> Graph:
        self.check(n)
        return self._draw(n, round, streams, reach)

    def _draw(self, n: int, round: int, streams: Streams, reach: Reach | None) -> Graph:
        if self._service is not None:
            known, _ = overlay(self._service, n, streams, reach).at(round)
            return draw_targets(known, self.s, streams("topology", round))
        if self.s == n - 1:
            return Graph.complete(n)
        return Graph.from_targets(_others(n, self.s, streams("topology", round)))

    def targets_of(self, n: int, node: int, stream: Stream) -> tuple[int, ...]:
        """The targets of one node, ascending, with full knowledge: distributed like one row of `draw`."""
        others = distinct(stream, 1, n - 1, self.s)[0]
        return tuple((others + (others >= node)).tolist())

    def control(self, n: int, round: int, streams: Streams, reach: Reach | None) -> Control | None:
        return None if self._service is None else overlay(self._service, n, streams, reach).at(round)[1]

    def cautions(self, n: int) -> list[str]:
        return [] if self._service is None else self._service.cautions(n, self.s)

    def expected(self, n: int, streams: Streams) -> Expected:
        if self._service is not None:
            return Expected()
        beta = theory.beta(n, self.s)
        contraction = beta - theory.mean_drift(n, self.s)
        return Expected(sigma2=beta, contraction=contraction, floors=theory.floors_local(n, self.s))


class Pull(Topology, frozen=True, tag="pull"):
    """Every node asks `s` distinct others, chosen uniformly and independently anew each round, for their models.

    So every node receives exactly s models, and sends as many as it is asked for. A request is a control message.
    """

    symmetric: ClassVar[bool | None] = False
    doubly_stochastic: ClassVar[bool | None] = False

    random: ClassVar[bool] = True
    exchange: ClassVar[str] = "requests"
    law: ClassVar[Kind | None] = "pull"

    s: int

    def __post_init__(self) -> None:
        require_int("topology.s", self.s, 1)

    def check(self, n: int) -> None:
        check_degree(n, self.s, even=False)

    def draw(self, n: int, round: int, streams: Streams) -> Graph:
        if self.s == n - 1:
            return Graph.complete(n, exchange=self.exchange)
        return Graph.from_heard(_others(n, self.s, streams("topology", round)), self.exchange)

    def expected(self, n: int, streams: Streams) -> Expected:
        # Rows are independent, and around the old mean each is that of EL-Oracle; the mean of n of them wanders by their variance.
        alpha = theory.alpha(n, self.s)
        return Expected(sigma2=alpha, contraction=alpha - alpha * (1 - alpha) / n)


def _others(n: int, s: int, stream: Stream) -> IntArray:
    """For each node s distinct others, ascending.   # (n, s)"""
    others = distinct(stream, n, n - 1, s)
    skipped: IntArray = others + (others >= np.arange(n, dtype=others.dtype)[:, None])  # oneself
    return skipped

"""The settings of methods without rounds. What their nodes are and may do is in `epidemic.protocol.node`."""

from __future__ import annotations

from typing import Any, ClassVar

from epidemic.algorithms.base import LocalTraining
from epidemic.errors import BadInput
from epidemic.protocol.node import SECOND, Kind, Letter, Me, Node, Row, Term
from epidemic.rng import Streams
from epidemic.topology import ELLocal, GivesGraphs, is_static, kind_of, peer_sampling

__all__ = ["SECOND", "FreeRunning", "Kind", "Letter", "Me", "Node", "Row", "Term", "check_peers"]


class FreeRunning(LocalTraining, frozen=True):
    """The settings of every method without rounds; a method adds its own and makes its nodes."""

    natural_mixing: ClassVar[str | None] = "uniform"  # weights are the method's own, whatever the topology's would be

    def check(self, topology: Any, mixing: str) -> None:
        """Refuse topologies whose graphs belong to rounds, and weights that no node would use."""
        check_peers(topology, self.called)
        if mixing != "auto":
            raise BadInput(
                f'mixing = "{mixing}" has no meaning for algorithm.kind = "{self.called}", which has weights of its own; leave it out'
            )

    def check_run(self, topology: Any, nodes: int, streams: Streams) -> None:
        """Refuse a run of so many nodes with this randomness; most need not look."""

    @property
    def parts(self) -> int:
        """Into how many parts a model is cut for letters; 1: not at all."""
        return 1

    @property
    def notes(self) -> int:
        """How many whole numbers go with a letter; 8 bytes each."""
        return 0

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The letters that it sends. A method that sends others than models, or than parts if it has them, lists its own."""
        return (Kind(part=self.parts > 1, notes=self.notes),)

    def node(self, me: Me) -> Node:
        """The node that `me` is."""
        raise NotImplementedError

    def init(self, x: Any) -> Any:
        """The models, and what the optimiser remembers."""
        return self.with_memory({"x": x})

    def emit(self, state: Any, learner: Any, turn: Any) -> Any:
        """There are no rounds to take part in."""
        raise BadInput(self.no_rounds)

    def absorb(self, state: Any, inbox: Any) -> Any:
        """There are no rounds to take part in."""
        raise BadInput(self.no_rounds)

    @property
    def no_rounds(self) -> str:
        """What to say where it is to run without a clock."""
        return f'algorithm.kind = "{self.called}" has no rounds and needs time: add a [clock] table to the experiment'


def check_peers(topology: GivesGraphs, kind: str) -> None:
    """Raise BadInput unless nodes can choose whom to send to without a graph that belongs to a round."""
    if peer_sampling(topology) is not None:
        raise BadInput(
            f'topology.view goes on round by round, but a node of algorithm.kind = "{kind}" has no rounds; leave out the view,'
            " and every node draws from all others, or use local-sgd"
        )
    if not isinstance(topology, ELLocal) and not is_static(topology):
        raise BadInput(
            f'topology.kind = "{kind_of(topology)}" has a graph for each round, but a node of algorithm.kind = "{kind}" has no rounds'
            " and draws its targets itself; use el-local or a static one (complete, ring, torus, regular)"
        )

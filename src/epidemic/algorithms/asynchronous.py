"""The settings of methods without rounds. What their nodes are and may do is in `epidemic.protocol.node`."""

from __future__ import annotations

from typing import Any, ClassVar

from epidemic.algorithms.base import LocalTraining
from epidemic.core.errors import BadInput
from epidemic.core.rng import Streams
from epidemic.protocol.node import SECOND, Message, MessageKind, Node, NodeContext, Row, Term

__all__ = ["SECOND", "AsynchronousMethod", "Message", "MessageKind", "Node", "NodeContext", "Row", "Term"]


class AsynchronousMethod(LocalTraining, frozen=True):
    """The settings of every method without rounds; a method adds its own and makes its nodes."""

    merges_pairs: ClassVar[bool] = False
    """Whether it takes in one received model at a time, never several."""
    trains_on_receipt: ClassVar[bool] = False
    """Whether its nodes train only when a message has arrived."""
    own_weights: ClassVar[bool] = True
    natural_mixing: ClassVar[str | None] = "uniform"  # weights are the method's own, whatever the topology's would be

    def check_run(self, topology: Any, nodes: int, streams: Streams) -> None:
        """Refuse a run of so many nodes with this randomness; most need not look."""

    @property
    def parts(self) -> int:
        """Into how many parts a model is cut for messages; 1: not at all."""
        return 1

    @property
    def notes(self) -> int:
        """How many whole numbers go with a message; 8 bytes each."""
        return 0

    @property
    def kinds(self) -> tuple[MessageKind, ...]:
        """The messages that it sends; a method that sends others than models or parts lists its own."""
        return (MessageKind(part=self.parts > 1, notes=self.notes),)

    def node(self, context: NodeContext) -> Node:
        """Make the node of this context."""
        raise NotImplementedError

    def init(self, x: Any) -> Any:
        """The models, and what the optimiser remembers."""
        return self.with_memory({"x": x})

    def local_update(self, state: Any, learner: Any, context: Any) -> Any:
        """There are no rounds to take part in."""
        raise BadInput(self.no_rounds)

    def aggregate(self, state: Any, inbox: Any) -> Any:
        """There are no rounds to take part in."""
        raise BadInput(self.no_rounds)

    @property
    def no_rounds(self) -> str:
        """The error for running without a clock."""
        return f'algorithm.kind = "{self.called}" has no rounds and needs time: add a [clock] table to the experiment'

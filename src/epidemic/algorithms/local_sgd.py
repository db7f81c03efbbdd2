"""Local SGD, then the average: EL-Oracle, EL-Local and D-PSGD on every topology are this one algorithm with different topologies."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from epidemic.algorithms.base import Inbox, LocalTraining, RoundContext, Rows
from epidemic.core.errors import require_choice
from epidemic.learner import Learner

ORDERS = ("adapt-then-combine", "combine-then-adapt")


class LocalSGD(LocalTraining, frozen=True, tag="local-sgd"):
    """`local_steps` mini-batch SGD steps, then the average.

    adapt-then-combine: train, then average the trained models (the paper). combine-then-adapt: average the models as they
    were, and add what was learnt from one's own (the original D-PSGD).
    """

    aggregates = True

    order: Literal["adapt-then-combine", "combine-then-adapt"] = "adapt-then-combine"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice("algorithm.order", self.order, ORDERS)

    def init(self, x: Tensor) -> Rows:
        """The models, and what the optimiser remembers."""
        return self.with_memory({"x": x})

    def local_update(self, state: Rows, learner: Learner, context: RoundContext) -> tuple[Rows, Rows, Tensor]:
        """Train; the message is the trained model, or the one before training if averaging comes first."""
        x = state["x"]
        before = x.clone() if self.order == "combine-then-adapt" else None
        loss = self.train(x, state, learner, context)
        if before is None:
            return state, {"x": x}, loss
        return {**state, "learnt": x - before}, {"x": before}, loss

    def aggregate(self, state: Rows, inbox: Inbox) -> Rows:
        """The aggregate is the new model, plus what was learnt where that was not part of it."""
        rest = {name: rows for name, rows in state.items() if name != "learnt"}
        x = inbox.aggregate("x")
        return {**rest, "x": x + state["learnt"] if "learnt" in state else x}

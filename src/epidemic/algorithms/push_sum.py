"""Push-sum, or stochastic gradient push (Assran et al., 2019): averages without bias over graphs that go one way.

Every node splits its mass evenly among its targets and itself, model x and weight w alike, and adds up what it receives. The model that
is trained and evaluated is z = x / w. The sum of all w stays n, and that of all x changes by gradients only, so the mean of the nodes is kept
where plain averaging over one-sided graphs lets it drift.

Training gives z', and x moves by as much as z does: x + (z' - z), computed as z' + (x - z), which is z' to the bit while w = 1.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from epidemic.algorithms.base import Column, Inbox, LocalTraining, Rows, Turn
from epidemic.errors import BadInput, RunFailed
from epidemic.learner import Learner
from epidemic.topology import ELLocal

LEAST_WEIGHT = 1e-12
"""A node with less than this has nothing left to divide by."""


class PushSum(LocalTraining, frozen=True, tag="push-sum"):
    """Local SGD on the de-biased model; sums instead of means, with a weight that travels along."""

    exact_exchange = True  # a letter that is lost takes its mass with it

    def check(self, topology: Any, mixing: str) -> None:
        """Refuse what cannot work (E[1/w^2] is infinite over EL-Local with s <= 2) or has no meaning here."""
        if mixing != "auto":
            raise BadInput(
                f'mixing = "{mixing}" has no meaning for algorithm.kind = "push-sum", where senders split evenly; leave it out'
            )
        if isinstance(topology, ELLocal) and topology.s <= 2:
            raise BadInput(
                f'topology.s = {topology.s} is too few for algorithm.kind = "push-sum" over el-local: nodes that nobody sends to'
                " for a while lose their weight, and steps explode; use s = 4 or more, or local-sgd"
            )

    def cautions(self, topology: Any) -> list[str]:
        """What is allowed but unwise."""
        if isinstance(topology, ELLocal) and topology.s == 3:
            return [
                "push-sum over el-local with s = 3: weights of single nodes get small now and then; s = 4 or more is safer"
            ]
        return []

    def columns(self, size: int, dtype: str) -> tuple[Column, ...]:
        """The share of the model and that of the weight."""
        return Column("x", (size,), dtype), Column("w", (), dtype)

    def init(self, x: Tensor) -> Rows:
        """Everybody has weight 1."""
        return self.with_velocity({"x": x, "w": x.new_ones(len(x))})

    def emit(self, state: Rows, learner: Learner, turn: Turn) -> tuple[Rows, Rows, Tensor]:
        """Train the de-biased models, and split the mass."""
        z = self.model(state)
        rest = state["x"] - z
        loss = self.train(z, state, learner, turn)
        parts = (turn.out_degree + 1).to(z.dtype)
        message = {"x": z.add_(rest).div_(parts[:, None]), "w": state["w"] / parts}
        return state, message, loss

    def absorb(self, state: Rows, inbox: Inbox) -> Rows:
        """What was kept and what arrived, added up."""
        w = inbox.sum("w")
        if bool((w < LEAST_WEIGHT).any()):
            raise RunFailed(
                f"push-sum: the weight of a node fell to {float(w.min()):.3g}, below {LEAST_WEIGHT:g}; use a larger topology.s"
            )
        return {**state, "x": inbox.sum("x"), "w": w}

    def model(self, state: Rows) -> Tensor:
        """z = x / w.   # (k, d)"""
        return state["x"] / state["w"][:, None]

    def give(self, state: Rows) -> Rows:
        """Both columns, so that the other one can divide."""
        return {"x": state["x"], "w": state["w"]}

    def adopt(self, state: Rows, given: Rows) -> Rows:
        """The other one's z with the own weight: the sum of all weights stays as it was."""
        return {**state, "x": given["x"] / given["w"][:, None] * state["w"][:, None]}

"""Push-sum, or stochastic gradient push (Assran et al., 2019): unbiased averages over directed graphs.

Every node splits its mass evenly among its targets and itself, model x and weight w alike, and adds up what it receives. The model that is trained and
evaluated is z = x / w. The sum of all w stays n, and that of all x changes by gradients only, so the mean of the nodes is preserved, which plain averaging
over directed graphs does not do.

Training gives z', and x moves by as much as z does: x + (z' - z), computed as z' + (x - z), which is z' to the bit while w = 1.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, ClassVar

from torch import Tensor

from epidemic.algorithms.base import Column, Inbox, LocalTraining, RoundContext, Rows
from epidemic.core.errors import BadInput, RunFailed
from epidemic.learner import Learner
from epidemic.topology import ELLocal, Every

SAFE = math.log(1 / 2)
"""Growth below which there is no warning: s = 4 and more, if each round has its own graph."""

LEAST_WEIGHT = 1e-12
"""A node with less than this has nothing left to divide by."""


class PushSum(LocalTraining, frozen=True, tag="push-sum"):
    """Local SGD on the de-biased model; sums instead of means, with a weight that travels along."""

    exact_exchange = True  # a message that is lost takes its mass with it
    own_weights: ClassVar[bool] = True  # senders split evenly
    natural_mixing: ClassVar[str | None] = "uniform"  # sums count every message whole, also one that was redirected

    def check(self, topology: Any, mixing: str) -> None:
        """Refuse what cannot work: E[1/w^2] is infinite over EL-Local with s <= 2."""
        s, held = _el_local(topology)
        if s and _growth(s, held) >= 0:
            enough = next(more for more in itertools.count(s) if _growth(more, held) < SAFE)
            raise BadInput(
                f'topology.s = {s} is too few for algorithm.kind = "push-sum" over el-local'
                + (f" with graphs held for {held} rounds" if held > 1 else "")
                + ": nodes that receive nothing for a while lose their weight, and steps explode;"
                f" use s = {enough} or more, or local-sgd"
            )

    def cautions(self, topology: Any) -> list[str]:
        """Warnings about settings that are allowed but unwise."""
        said = super().cautions(topology)
        s, held = _el_local(topology)
        if not s or _growth(s, held) < SAFE:
            return said
        return [
            *said,
            f"push-sum over el-local with s = {s}: weights of single nodes get small now and then; more is safer",
        ]

    def columns(self, size: int, dtype: str) -> tuple[Column, ...]:
        """The share of the model and that of the weight."""
        return Column("x", (size,), dtype), Column("w", (), dtype)

    def init(self, x: Tensor) -> Rows:
        """The initial state: every node has weight 1."""
        return self.with_memory({"x": x, "w": x.new_ones(len(x))})

    def local_update(self, state: Rows, learner: Learner, context: RoundContext) -> tuple[Rows, Rows, Tensor]:
        """Train the de-biased models, and split the mass."""
        z = self.model(state)
        rest = state["x"] - z
        loss = self.train(z, state, learner, context)
        parts = (context.out_degree + 1).to(z.dtype)
        message = {"x": z.add_(rest).div_(parts[:, None]), "w": state["w"] / parts}
        return state, message, loss

    def aggregate(self, state: Rows, inbox: Inbox) -> Rows:
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


def _el_local(topology: Any) -> tuple[int, int]:
    """s of EL-Local, 0 for any other topology, and for how many rounds each graph is held."""
    held = 1
    while isinstance(topology, Every):
        held, topology = held * topology.period, topology.inner
    return (topology.s if isinstance(topology, ELLocal) else 0), held


def _growth(s: int, held: int) -> float:
    """The log of the factor by which E[1/w^2] grows, through nodes that receive nothing, while a graph of EL-Local is held; 0 or more: it is infinite.

    A node receives nothing with probability (1 - s/(n-1))^(n-1) <= e^-s, and each such round divides its weight by s + 1.
    """
    return 2 * held * math.log(s + 1) - s

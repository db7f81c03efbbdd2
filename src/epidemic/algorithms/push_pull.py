"""Push-Pull (Pu et al., 2021): gradient tracking over directed graphs, such as EL-Local's.

Models are pulled: each receiver averages what it receives. Tracked gradients are pushed: each sender splits its y evenly among its targets and itself, and
receivers add up. So the sum of all y stays the sum of all gradients whatever the in-degrees are, and all nodes reach the optimum of all data where gradient
tracking with means agrees on a wrong point.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from epidemic.algorithms.base import Inbox, RoundContext, Rows
from epidemic.algorithms.gradient_tracking import GradientTracking


class PushPull(GradientTracking, frozen=True, tag="push-pull"):
    """Means of models, sums of split gradients; on every graph. The sender keeps the share of what does not arrive."""

    balanced = False
    own_weights: ClassVar[bool] = True  # receivers average, senders split evenly
    natural_mixing: ClassVar[str | None] = "uniform"  # sums count every message whole, also one that was redirected

    def shared(self, y: Tensor, context: RoundContext) -> Tensor:
        """An even part of y, for sums.   # (k, d)"""
        parts = (context.out_degree + 1).to(y.dtype)
        return y / parts[:, None]

    def aggregate(self, state: Rows, inbox: Inbox) -> Rows:
        """The mean of the models, the sum of the parts of y."""
        return {**state, "x": inbox.mean("x"), "y": inbox.sum("y")}

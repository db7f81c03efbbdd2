"""Gradient tracking: every node follows an estimate y of the mean gradient of all nodes instead of its own gradient.

    y = mixture of y + g(x) - g of the round before
    send  (x - gamma y, y)
    then  x and y are the mixtures

The sum of all y is the sum of all gradients in every round, because the weights are doubly stochastic. So all nodes reach the optimum of all data, however
heterogeneous it is. A message is twice as long as a model.

In one line each: x' = W (x - gamma y), y' = W y + g(x') - g(x). Alghunaim and Yuan (2022) call this form semi-ATC: x adapts, then combines; y combines, then
adapts, which takes one exchange a round. Others under the same name: DIGing (Nedic, Olshevsky, Shi, 2017; Qu and Li, 2018) combines first for both,
x' = W x - gamma y; Aug-DGM (Xu et al., 2015) adapts first for both, y' = W (y + g(x') - g(x)), which takes two exchanges a round and leaves less
disagreement under gradient noise.
"""

from __future__ import annotations

import torch
from torch import Tensor

from epidemic.algorithms.base import Column, Inbox, RoundContext, Rows
from epidemic.algorithms.plain_steps import PlainSteps
from epidemic.learner import Learner


class GradientTracking(PlainSteps, frozen=True, tag="gradient-tracking"):
    """Steps along the tracked mean gradient. It needs doubly stochastic weights, and every message."""

    exact_exchange = True
    balanced = True

    def columns(self, size: int, dtype: str) -> tuple[Column, ...]:
        """The model, and the gradient that is tracked."""
        return Column("x", (size,), dtype), Column("y", (size,), dtype)

    def init(self, x: Tensor) -> Rows:
        """Nothing is tracked yet; the first gradient becomes the first y."""
        return {"x": x, "y": torch.zeros_like(x), "g": torch.zeros_like(x)}

    def local_update(self, state: Rows, learner: Learner, context: RoundContext) -> tuple[Rows, Rows, Tensor]:
        """Replace the old gradient in y by the new one, and step along y."""
        g, loss = self.gradient(state["x"], state, learner, context)
        y = state["y"].sub_(state["g"]).add_(g)
        x = state["x"].add_(y, alpha=-self.gamma(context))
        return {"x": x, "y": y, "g": g}, {"x": x, "y": self.shared(y, context)}, loss

    def shared(self, y: Tensor, context: RoundContext) -> Tensor:
        """The part of y that is sent: all of it, for means.   # (k, d)"""
        return y

    def aggregate(self, state: Rows, inbox: Inbox) -> Rows:
        """Replace x and y by their mixtures."""
        return {**state, "x": inbox.mean("x"), "y": inbox.mean("y")}

    def give(self, state: Rows) -> Rows:
        """Both columns of a message; a returning node uses only the model."""
        return {"x": state["x"], "y": state["y"]}

"""Quasi-global momentum (QG-DSGDm; Lin et al., 2021): momentum from the movement of the mixed model instead of the node's own gradients.

With heterogeneous data the velocities of local momentum pull the nodes apart. Here the buffer m follows the difference of two mixed models, divided by the
round's learning rate, in which the nodes' own directions have already been averaged:

    send    x - gamma (b m + g)
    then    m = mu m + (1 - mu) (x - mixture) / gamma,   x = mixture

Messages are models, as in local SGD; with b = 0 it is local SGD.
"""

from __future__ import annotations

import torch
from torch import Tensor

from epidemic.algorithms.base import Inbox, RoundContext, Rows
from epidemic.algorithms.plain_steps import PlainSteps
from epidemic.core.errors import BadInput, require_real
from epidemic.learner import Learner


class QGMomentum(PlainSteps, frozen=True, tag="qg-momentum"):
    """Local steps along the gradient and a momentum that is common to the neighbourhood. `nesterov` looks ahead."""

    aggregates = True

    b: float = 0.9
    """How much of the buffer goes into a step."""
    mu: float = 0.9
    """How much of the buffer is kept from round to round."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in (("b", self.b), ("mu", self.mu)):
            require_real(f"algorithm.{name}", value, 0)
            if value >= 1:
                raise BadInput(f"algorithm.{name} = {value:g} must be less than 1")

    def check_nesterov(self) -> None:
        """Its own momentum can look ahead, if there is any."""
        if not self.b:
            raise BadInput("algorithm.nesterov = true needs algorithm.b above 0, for example 0.9")

    @property
    def instead_of_momentum(self) -> str:
        """What a message recommends instead of momentum."""
        return f"which has its own; use b = {self.momentum:g}"

    def init(self, x: Tensor) -> Rows:
        """The initial state, with zero momentum."""
        return {"x": x, "m": torch.zeros_like(x)}

    def local_update(self, state: Rows, learner: Learner, context: RoundContext) -> tuple[Rows, Rows, Tensor]:
        """Train, and add the momentum to what was learnt."""
        x, m, gamma = state["x"], state["m"], self.gamma(context)
        trained = x.clone()
        loss = self.train(trained, state, learner, context)
        if self.nesterov:  # x - gamma (g + b (b m + g)), where gamma g = x - trained
            ahead = trained - x
            trained.add_(ahead, alpha=self.b).add_(m, alpha=-gamma * self.b**2)
        elif self.b:
            trained.add_(m, alpha=-gamma * self.b)
        rates = torch.full((len(x),), gamma, dtype=x.dtype, device=x.device)
        return {**state, "gamma": rates}, {"x": trained}, loss

    def aggregate(self, state: Rows, inbox: Inbox) -> Rows:
        """The buffer follows what the model moved by."""
        x = inbox.aggregate("x")
        moved = (state["x"] - x).div_(state["gamma"][:, None])
        return {"x": x, "m": state["m"].mul_(self.mu).add_(moved, alpha=1 - self.mu)}

"""Exact diffusion (Yuan et al., 2019): local SGD without the bias caused by heterogeneous data.

Every node corrects what it sends by what the last exchange did to its model, so that at the end all nodes agree on the optimum of all data instead of
staying apart in proportion to the step size:

    psi = x - gamma g
    send  psi + (x - psi of the round before)
    then  x = (sent + mixture) / 2

The mean with what was sent makes it stable for every symmetric matrix, where D2, which leaves it out, diverges on some. It diverges on doubly stochastic
matrices that are not symmetric (directed circulant graphs), which the paper leaves out (its matrices are locally balanced) and which are refused here.
Where the learning rate changes the correction is scaled along: it stands for gamma times a gradient, with the gamma of the node's own last step, which
need not have been in the round before.
"""

from __future__ import annotations

import torch
from torch import Tensor

from epidemic.algorithms.base import Inbox, RoundContext, Rows
from epidemic.algorithms.plain_steps import PlainSteps
from epidemic.learner import Learner

FACTOR = "factor"
"""What the column of the state is called that holds what the learning rate was multiplied with in each node's last step.   # (k,)"""


class ExactDiffusion(PlainSteps, frozen=True, tag="exact-diffusion"):
    """Local steps, and a correction by the last exchange. It needs symmetric weights, and every message."""

    exact_exchange = True
    balanced = True
    symmetric_weights = True

    def init(self, x: Tensor) -> Rows:
        """The initial state, without a correction."""
        state = {"x": x, "psi": x.clone()}
        if self.schedule is not None:
            state[FACTOR] = torch.full((len(x),), self.factor(0), dtype=torch.float64, device=x.device)
        return state

    def local_update(self, state: Rows, learner: Learner, context: RoundContext) -> tuple[Rows, Rows, Tensor]:
        """Train, and send the corrected model."""
        x = state["x"]
        psi = x.clone()
        loss = self.train(psi, state, learner, context)
        correction = x - state["psi"]
        kept = {}
        if self.schedule is not None:
            now, before = self.factor(context.round), state.get(FACTOR)
            if before is None:  # of a checkpoint from before it was kept, or of the same without a schedule
                before = torch.full((len(x),), self.factor(max(context.round - 1, 0)), dtype=torch.float64)
            correction.mul_((now / before).to(x)[:, None])
            kept = {FACTOR: torch.full_like(before, now)}
        sent = correction.add_(psi)
        return {"x": sent, "psi": psi, **kept}, {"x": sent}, loss

    def aggregate(self, state: Rows, inbox: Inbox) -> Rows:
        """Half of what was sent, half of the mixture."""
        return {**state, "x": inbox.mean("x").add_(state["x"]).div_(2)}

    def adopt(self, state: Rows, given: Rows) -> Rows:
        """Begin with another one's model, with nothing to correct."""
        return {**state, "x": given["x"], "psi": given["x"].clone()}

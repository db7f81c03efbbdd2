"""Methods that do something with the gradient itself before it moves the model.

A node makes its local steps by plain SGD; what they moved the model by, divided by the learning rate, is its gradient (of one step: the
mini-batch gradient, clipped and with weight decay where that is asked for). So several local steps, and models that change their buffers,
need nothing more.
"""

from __future__ import annotations

from torch import Tensor

from epidemic.algorithms.base import LocalTraining, RoundContext, Rows
from epidemic.core.errors import BadInput
from epidemic.learner import Learner, Optimiser, SGDUpdate


class PlainSteps(LocalTraining, frozen=True):
    """Base of methods whose local steps must be plain SGD: without momentum or Adam."""

    def check_steps(self) -> None:
        """Refuse optimisers whose steps are not gradients."""
        if self.optimizer != "sgd":
            kind = self.optimizer if isinstance(self.optimizer, str) else self.optimizer.__struct_config__.tag
            raise BadInput(
                f'algorithm.optimizer = "{kind}" has no meaning for algorithm.kind = "{self.called}", which works with the gradient itself;'
                f' leave it out, or use algorithm.kind = "local-sgd" with {kind}'
            )
        if self.momentum:
            raise BadInput(
                f'algorithm.momentum = {self.momentum:g} does not go with algorithm.kind = "{self.called}", {self.instead_of_momentum}'
            )
        if self.nesterov:
            self.check_nesterov()

    def check_nesterov(self) -> None:
        """Refuse to look ahead along a velocity that is not there."""
        raise BadInput(
            f'algorithm.nesterov = true needs momentum, which algorithm.kind = "{self.called}" does not have; leave it out, or use'
            " qg-momentum or local-sgd"
        )

    @property
    def instead_of_momentum(self) -> str:
        """What a message recommends instead of momentum."""
        return "which works with the gradient itself; leave it out, or use qg-momentum"

    @property
    def step(self) -> Optimiser:
        """Plain SGD with the algorithm's settings."""
        return SGDUpdate(self.lr, 0.0, self.weight_decay, clip=float("inf") if self.clip is None else self.clip)

    def gradient(self, x: Tensor, state: Rows, learner: Learner, context: RoundContext) -> tuple[Tensor, Tensor]:
        """What the local steps move x by, divided by minus the learning rate, and the loss; x stays.   # (k, d), (k,)"""
        moved = x.clone()
        loss = self.train(moved, state, learner, context)
        return (x - moved).div_(self.gamma(context)), loss

    def gamma(self, context: RoundContext) -> float:
        """The learning rate of this round."""
        return self.lr * self.factor(context.round)

"""`algorithm.optimizer`: the optimiser of the local steps, as a name or as a table with its settings.

Learning rate, weight decay and clipping are settings of the algorithm, the same for every optimiser. The arithmetic is in `epidemic.learner.optimisers`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

from epidemic import learner
from epidemic.core.config import build_kind
from epidemic.core.errors import BadInput, require_real
from epidemic.core.settings import Settings


@dataclass(frozen=True)
class OptimizerSteps:
    """The settings of an algorithm that concern each of its steps."""

    lr: float
    momentum: float
    nesterov: bool
    weight_decay: float
    clip: float | None


class Optimizer(Settings, frozen=True, tag_field="kind", forbid_unknown_fields=True):
    """Base of the optimisers that a file can name."""

    def check(self, steps: OptimizerSteps) -> None:
        """Refuse settings of the algorithm that mean nothing to this optimiser."""

    def step(self, steps: OptimizerSteps) -> learner.Optimiser:
        """The optimiser with the algorithm's settings."""
        raise NotImplementedError


class PlainSGD(Optimizer, frozen=True, tag="sgd"):
    """Stochastic gradient descent, with the algorithm's momentum, Nesterov's if chosen."""

    def check(self, steps: OptimizerSteps) -> None:
        """Nesterov's look ahead is along the velocity."""
        if steps.nesterov and not steps.momentum:
            raise BadInput("algorithm.nesterov = true needs algorithm.momentum above 0, for example 0.9")

    def step(self, steps: OptimizerSteps) -> learner.Optimiser:
        """SGD with the algorithm's settings."""
        return learner.SGDUpdate(steps.lr, steps.momentum, steps.weight_decay, steps.nesterov, _bound(steps))


class Adam(Optimizer, frozen=True, tag="adam"):
    """Adam; the algorithm's weight decay is added to the gradient, as in torch.optim.Adam."""

    betas: tuple[float, float] = (0.9, 0.999)
    """How much of the mean gradient and of the mean squared gradient is kept from step to step."""
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        for name, beta in zip(("first", "second"), self.betas, strict=True):
            require_real(f"the {name} of algorithm.optimizer.betas", beta, 0)
            if beta >= 1:
                raise BadInput(f"the {name} of algorithm.optimizer.betas = {beta:g} must be less than 1")
        require_real("algorithm.optimizer.epsilon", self.epsilon, above=0)

    def check(self, steps: OptimizerSteps) -> None:
        """Raise BadInput for a momentum, because Adam has its own."""
        kind = self.__struct_config__.tag
        for name, value in (("momentum", steps.momentum), ("nesterov", steps.nesterov)):
            if value:
                shown = "true" if value is True else f"{value:g}"
                raise BadInput(
                    f'algorithm.{name} = {shown} is for algorithm.optimizer = "sgd"; leave it out, or give the optimiser'
                    f' its own: optimizer = {{kind = "{kind}", betas = [{steps.momentum or 0.9:g}, 0.999]}}'
                )

    def step(self, steps: OptimizerSteps) -> learner.Optimiser:
        """Adam with the algorithm's settings."""
        return learner.AdamUpdate(steps.lr, self.betas, self.epsilon, steps.weight_decay, clip=_bound(steps))


class AdamW(Adam, frozen=True, tag="adamw"):
    """Adam with the weight decay beside the gradient: x shrinks by lr * weight_decay in each step, as in torch.optim.AdamW."""

    def step(self, steps: OptimizerSteps) -> learner.Optimiser:
        """AdamW with the algorithm's settings."""
        return learner.AdamUpdate(
            steps.lr, self.betas, self.epsilon, steps.weight_decay, decoupled=True, clip=_bound(steps)
        )


OPTIMIZERS: dict[str, type[Optimizer]] = {"sgd": PlainSGD, "adam": Adam, "adamw": AdamW}


def optimizer_from(given: Any, where: str = "algorithm.optimizer") -> Optimizer:
    """The optimiser that a name or a table describes."""
    return build_kind({"kind": given} if isinstance(given, str) else given, OPTIMIZERS, where)


@cache  # it is asked for in every round
def made_optimizer(said: str | Optimizer) -> Optimizer:
    """The optimiser that `as_said` has described."""
    return optimizer_from(said)


def as_said(optimizer: Optimizer) -> Any:
    """The shortest that describes it: its name, where that is enough."""
    return optimizer.__struct_config__.tag if optimizer == type(optimizer)() else optimizer


def _bound(steps: OptimizerSteps) -> float:
    return math.inf if steps.clip is None else steps.clip

"""Learner: the model, the loss and the data of the hosted nodes; gradients and evaluation for many rows at once.

A model is a flat row: its trainable parameters one after the other, then its float buffers (so that the statistics of
BatchNorm are averaged with the parameters). Frozen parameters and integer buffers belong to the model's shape, not to the row.

Two strategies do the same arithmetic:
  stacked    torch.func vmap over a chunk of rows at a time, traced once; for small models, and on GPUs
  per-node   one row after the other in worker threads, channels_last; traced once as well, where that is possible; for all else on CPUs
Neither wins everywhere; `choice.py` has the rule that chooses. Neither depends on the number of threads.

Shapes: k hosted nodes, d row length, r local steps, b batch size.

May be imported by: `algorithms/`, `runtime/` and everything above them. It knows nodes as rows only: no graph, no message.
To add an optimiser: its arithmetic in `optimisers.py` (`remembers`, `memory`, `update`), its settings in `algorithms/optimisers.py`.
"""

from __future__ import annotations

from torch import Tensor

from epidemic.core.workers import Workers
from epidemic.learner.accuracies import Loss, PerPosition, accuracy, accuracy_measure
from epidemic.learner.allocator import keep_freed_memory
from epidemic.learner.choice import CHOICES, STRATEGIES, Choice, choose, obstacle_to_stacking, rule
from epidemic.learner.nature import Nature
from epidemic.learner.optimisers import AdamUpdate, Memory, Optimiser, Rate, SGDUpdate, with_rate
from epidemic.learner.per_node import PerNode
from epidemic.learner.rows import Layout
from epidemic.learner.stacked import Stacked
from epidemic.learner.task import (
    LOSSES,
    Evaluation,
    Strategy,
    Task,
    cross_entropy,
    squared_error,
)
from epidemic.metrics import Metric


class Learner:
    """Trains and evaluates rows by one of the strategies."""

    def __init__(
        self,
        task: Task,
        workers: Workers,
        strategy: str,
        *,
        draws_random_numbers: bool,
        prepared: Stacked | None = None,
    ) -> None:
        """`prepared`: what `choose` has traced of the strategy already."""
        keep_freed_memory()
        self.task = task
        self.layout = task.layout
        self.strategy = strategy
        self._workers = workers
        self.draws_random_numbers = draws_random_numbers
        self._does: Strategy = (
            (prepared or Stacked(task, workers))
            if strategy == "stacked"
            else PerNode(task, workers, draws_random_numbers=draws_random_numbers)
        )

    def sgd(self, x: Tensor, index: Tensor, step: Optimiser, seeds: list[int], memory: Memory | None = None) -> Tensor:
        """Do local steps on every row in place and return the mean loss of each.   # x (k, d), index (k, r, b) -> (k,)

        `index` names training samples. `seeds` has a number for each row, for models that draw random numbers (dropout). `memory` is what `step.memory(x)`
        returned before the first step, for optimisers with memory; it is changed in place.
        """
        return self._does.sgd(x, memory or {}, index, step, seeds)

    @property
    def has_numbers(self) -> bool:
        """Whether models can be evaluated now; always, unless somebody else does it."""
        return True

    @property
    def at_once(self) -> int | None:
        """How many nodes to train at once if early results are useful; None: all, because one batch is faster."""
        return 2 * self._workers.threads if self.strategy == "per-node" else None

    def steady(self, nodes: int) -> None:
        """Prepare for batches of ever other sizes of so many nodes: no size is traced but one."""
        if isinstance(self._does, Stacked):
            self._does.steady = min(32, max(1, nodes // 2))

    def gradients(self, x: Tensor, index: Tensor, seeds: list[int]) -> tuple[Tensor, Tensor]:
        """Loss and gradient of every row on one batch each; buffers have gradient zero.   # index (k, b) -> (k,), (k, d)"""
        return self._does.gradients(x, index, seeds)

    def evaluate(self, x: Tensor, samples: tuple[Tensor, Tensor], first: int = 0) -> Evaluation:
        """Every row on these samples (`task.tensors(...)`). `first`: the number of the first row, for models that draw random numbers."""
        return self._does.evaluate(x, *samples, first)


__all__ = [
    "CHOICES",
    "LOSSES",
    "STRATEGIES",
    "AdamUpdate",
    "Choice",
    "Evaluation",
    "Layout",
    "Learner",
    "Loss",
    "Memory",
    "Metric",
    "Nature",
    "Optimiser",
    "PerNode",
    "PerPosition",
    "Rate",
    "SGDUpdate",
    "Stacked",
    "Strategy",
    "Task",
    "accuracy",
    "accuracy_measure",
    "choose",
    "cross_entropy",
    "obstacle_to_stacking",
    "rule",
    "squared_error",
    "with_rate",
]

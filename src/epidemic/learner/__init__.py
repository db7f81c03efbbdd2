"""Learner: the model, the loss and the data of the hosted nodes; gradients and evaluation for many rows at once.

A model is a flat row: its trainable parameters one after the other, then its float buffers (so that the statistics of
BatchNorm are averaged with the parameters). Frozen parameters and integer buffers belong to the model's shape, not to the row.

Two strategies do the same arithmetic:
  stacked    torch.func vmap over a chunk of rows at a time, traced once; for small models, and on GPUs
  per-node   one row after the other in worker threads, channels_last; for convolutions on CPUs
Neither wins everywhere, so `choose` times both. Neither depends on the number of threads.

Shapes: k hosted nodes, d row length, r local steps, b batch size.
"""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from epidemic.errors import BadInput
from epidemic.learner.per_node import PerNode
from epidemic.learner.rows import Layout
from epidemic.learner.stacked import Stacked
from epidemic.learner.task import (
    LOSSES,
    SGD,
    Evaluation,
    Loss,
    Metric,
    Strategy,
    Task,
    accuracy,
    cross_entropy,
    squared_error,
)
from epidemic.workers import Workers

STRATEGIES = ("stacked", "per-node")


class Learner:
    """Trains and evaluates rows by one of the strategies."""

    def __init__(self, task: Task, workers: Workers, strategy: str, *, draws_random_numbers: bool) -> None:
        self.task = task
        self.layout = task.layout
        self.strategy = strategy
        self.draws_random_numbers = draws_random_numbers
        self._does: Strategy = (
            Stacked(task, workers)
            if strategy == "stacked"
            else PerNode(task, workers, draws_random_numbers=draws_random_numbers)
        )

    def sgd(self, x: Tensor, index: Tensor, step: SGD, seeds: list[int], velocity: Tensor | None = None) -> Tensor:
        """Local SGD steps on every row, in place; the mean loss of each.   # x (k, d), index (k, r, b) -> (k,)

        `index` names training samples. `seeds` has a number for each row, for models that draw random numbers (dropout).
        """
        return self._does.sgd(x, velocity, index, step, seeds)

    def gradients(self, x: Tensor, index: Tensor, seeds: list[int]) -> tuple[Tensor, Tensor]:
        """Loss and gradient of every row on one batch each; buffers have gradient zero.   # index (k, b) -> (k,), (k, d)"""
        return self._does.gradients(x, index, seeds)

    def evaluate(self, x: Tensor, samples: tuple[Tensor, Tensor]) -> Evaluation:
        """Every row on these samples (`task.tensors(...)`)."""
        return self._does.evaluate(x, *samples)


@dataclass(frozen=True)
class Choice:
    """Which strategy, and why."""

    strategy: str
    reason: str
    draws_random_numbers: bool


def probe(task: Task, *, stacking: bool = True) -> tuple[bool, str | None]:
    """Whether training draws random numbers, and why rows cannot be stacked (None if they can, or if nobody wants to know)."""
    module = copy.deepcopy(task.module).train()
    index = torch.arange(2, device=task.device) % len(task.train[0])
    inputs, _ = task.batch(index)
    before = {n: b.clone() for n, b in module.named_buffers()}
    state = torch.get_rng_state()
    try:
        with torch.no_grad():
            module(inputs.clone())
            copy.deepcopy(module).eval()(inputs.clone())
        random = not torch.equal(state, torch.get_rng_state())
    finally:
        torch.set_rng_state(state)
    if random:
        return True, "the model draws random numbers"
    if any(not torch.equal(b, before[n]) for n, b in module.named_buffers()):
        return False, "the model changes its buffers while training"
    if not stacking:
        return False, None
    row = task.layout.row(task.module)
    workers = Workers(1)
    try:
        rows, stacked = torch.stack([row, row]), Stacked(task, workers)
        stacked.gradients(rows, torch.stack([index, index]), [0, 0])
        stacked.evaluate(rows, task.train[0][index], task.train[1][index])
    except Exception as problem:
        return False, f"vmap cannot take the model ({' '.join(str(problem).split())[:200]})"
    finally:
        workers.close()
    return False, None


def choose(task: Task, workers: Workers, wanted: str, x: Tensor, index: Tensor, step: SGD) -> Choice:
    """The wanted strategy if there is one and it is possible; otherwise the one that is faster on the first batches."""
    random, obstacle = probe(task, stacking=wanted != "per-node")
    if wanted == "stacked" and obstacle is not None:
        raise BadInput(f'runtime.strategy = "stacked" is not possible: {obstacle}; use "per-node"')
    if wanted in STRATEGIES:
        return Choice(wanted, "set in the experiment", random)
    if obstacle is not None:
        return Choice("per-node", obstacle, random)
    rows = max(4, min(1000, 1_500_000 // task.layout.size))  # enough to tell, not enough to fill the memory
    stacked = _seconds_per_row(Stacked(task, workers), x[:rows].clone(), index[:rows], step)
    one_by_one = _seconds_per_row(PerNode(task, workers), x[:16].clone(), index[:16], step)
    reason = f"timed: stacked {stacked * 1e6:.0f} us a node and round, per-node {one_by_one * 1e6:.0f} us"
    return Choice("stacked" if stacked <= one_by_one else "per-node", reason, random)


def _seconds_per_row(strategy: Strategy, x: Tensor, index: Tensor, step: SGD) -> float:
    fastest = float("inf")
    for attempt in range(3):
        start = time.perf_counter()
        strategy.sgd(x, None, index, step, [0] * len(x))
        if attempt:  # the first one warms up
            fastest = min(fastest, time.perf_counter() - start)
    return fastest / len(x)


__all__ = [
    "LOSSES",
    "SGD",
    "STRATEGIES",
    "Choice",
    "Evaluation",
    "Layout",
    "Learner",
    "Loss",
    "Metric",
    "PerNode",
    "Stacked",
    "Strategy",
    "Task",
    "accuracy",
    "choose",
    "cross_entropy",
    "probe",
    "squared_error",
]

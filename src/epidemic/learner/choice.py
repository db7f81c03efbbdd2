"""Which strategy trains the rows: a rule, so that the same experiment gives the same bytes wherever and however often it runs.

The strategies differ in the last digits, and in speed by up to twenty times. `rule` looks at the model, the batch size, the number of
nodes of the whole experiment and the type of device. It has no clock, and does not know threads, load or who hosts which nodes, so
all hosts of an experiment choose alike. Where that is not good enough, `strategy = "timed"` measures instead.

Calibrated on two cores by `benchmarks/choices.py`; time of stacked relative to per-node, which has the cores, for n = 2, 16, 96 nodes:

  model                    batch         d   numbers convolved a batch    n = 2     16     96
  logistic on 64               8       650            0                     1.2    0.20   0.05
  mlp 784-32                   8    25,450            0                     1.4    0.28   0.16
  mlp 784-128                 32   101,770            0                     1.1    0.68   0.77
  mlp 784-512-512              8   669,706            0                     1.0    1.2    1.4
  mlp 3072-1024-1024           8 4,206,602            0                     1.0    1.0    1.0
  transformer, d = 32          8    34,954            0                     1.8    1.8    0.94
  transformer, d = 32         32    34,954            0                     1.8    2.2    1.2
  small-cnn on 8 x 8           8     1,898        4,096                     1.2    0.37   0.16
  small-cnn on 8 x 8          32     1,898       16,384                     1.4    0.83   0.40
  small-cnn on 28 x 28         8     9,098       50,176                     1.7    1.3    0.74
  small-cnn on 28 x 28        32     9,098      200,704                     2.6    1.9    1.8
  small-cnn on 3 x 32 x 32     8    11,642       65,536                     3.0    2.6    1.4

What stacking saves is the time to call an operation, some 40 us a step of a small model; what it costs is that products of many small
matrices are slower than those of one, and that up to 48 stacked models with convolutions are one piece and have one core. Hence the limits below.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from epidemic.core.errors import BadInput
from epidemic.core.workers import Workers
from epidemic.learner.nature import Nature
from epidemic.learner.optimisers import Optimiser
from epidemic.learner.per_node import PerNode
from epidemic.learner.stacked import Stacked, most_trained
from epidemic.learner.task import Strategy, Task

STRATEGIES = ("stacked", "per-node")
CHOICES = ("auto", "timed", *STRATEGIES)
"""The values of `runtime.strategy`."""

CONVOLVED = 64_000
"""Numbers that the largest convolution may put out per batch; more leave the cache when many models are stacked."""
CONVOLVED_BY_ONE = 20_000
"""The same where all models together are one piece of work, which has one core."""
MULTIPLIED = 4_000_000
"""Numbers of a model without convolutions, times the samples of a batch, up to which calling operations takes longer than computing them."""
FEWEST = 4
"""Nodes from which on convolutions are stacked; fewer are done sooner side by side."""


@dataclass(frozen=True)
class Choice:
    """The training strategy that was chosen, and the reason for it."""

    strategy: str
    reason: str
    draws_random_numbers: bool


def rule(nature: Nature, nodes: int, batch: int, device: str, size: int) -> tuple[str, str]:
    """The strategy for a model, and the reason, the same on every host.

    Args:
        nature: What the model does.
        nodes: Those of the experiment, wherever they are hosted.
        batch: Samples of a batch.
        device: Where the models are.
        size: Numbers of a model.
    """
    if nature.random:
        return "per-node", "the model draws random numbers"
    if nature.changes_buffers:
        return "per-node", "the model changes its buffers while training"
    if device != "cpu":
        return "stacked", f"by rule: on {device}"
    if nature.recurrent or nature.attention:
        return "per-node", f"by rule: {'recurrent layers' if nature.recurrent else 'attention'}"
    if not nature.convolved:
        if size * batch > MULTIPLIED:
            return "per-node", f"by rule: {size * batch} multiplications a batch, more than {MULTIPLIED}"
        return "stacked", "by rule: no convolutions"
    if nodes < FEWEST:
        return "per-node", f"by rule: convolutions of fewer than {FEWEST} nodes"
    numbers = nature.convolved * batch
    limit = CONVOLVED_BY_ONE if nodes <= most_trained(nodes, size, convolved=True) else CONVOLVED
    if numbers > limit:
        return "per-node", f"by rule: convolutions of {numbers} numbers a batch, more than {limit}"
    return "stacked", f"by rule: convolutions of {numbers} numbers a batch, at most {limit}"


def choose(
    task: Task, workers: Workers, wanted: str, row: Tensor, index: Tensor, step: Optimiser, nodes: int
) -> tuple[Choice, Stacked | None]:
    """The strategy for an experiment of so many nodes, and the strategy object if it was prepared for the choice.   # row (d,), index (k, r, b)"""
    nature = task.nature
    strategy, reason = rule(nature, nodes, index.shape[2], task.device.type, task.layout.size)
    if wanted in STRATEGIES:
        strategy, reason = wanted, "set in the experiment"
    if strategy == "per-node" and (wanted != "timed" or nature.random or nature.changes_buffers):
        return Choice(strategy, reason, nature.random), None
    stacked = Stacked(task, workers)
    obstacle = obstacle_to_stacking(stacked, row, index)
    if wanted == "stacked" and obstacle is not None:
        raise BadInput(f'runtime.strategy = "stacked" is not possible: {obstacle}; use "per-node"')
    if obstacle is not None:
        return Choice("per-node", obstacle, nature.random), None
    if wanted == "timed":
        strategy, reason = _timed(stacked, PerNode(task, workers), row, index, step)
    return Choice(strategy, reason, nature.random), stacked if strategy == "stacked" else None


def obstacle_to_stacking(stacked: Stacked, row: Tensor, index: Tensor) -> str | None:
    """Why the rows cannot be stacked; None if they can, and then the traces of training are there already."""
    nature = stacked.task.nature
    if nature.random:
        return "the model draws random numbers"
    if nature.changes_buffers:
        return "the model changes its buffers while training"
    few = index[0, 0, :2]
    inputs, targets = stacked.task.train
    try:
        stacked.prepare(row[None], index[:, 0])
        stacked.evaluate(row.repeat(2, 1), inputs[few], targets[few])
    except Exception as problem:
        return f"vmap cannot take the model ({' '.join(str(problem).split())[:200]})"
    return None


def _timed(stacked: Stacked, per_node: PerNode, row: Tensor, index: Tensor, step: Optimiser) -> tuple[str, str]:
    """The one that is faster here and now, on the first batches."""
    rows = max(4, min(1000, 1_500_000 // len(row)))  # enough to tell, not enough to fill the memory
    a = _seconds_per_row(stacked, row, index[:rows], step)
    b = _seconds_per_row(per_node, row, index[:16], step)
    reason = f"timed: stacked {a * 1e6:.0f} us a node and round, per-node {b * 1e6:.0f} us"
    return "stacked" if a <= b else "per-node", reason


def _seconds_per_row(strategy: Strategy, row: Tensor, index: Tensor, step: Optimiser) -> float:
    x = row.repeat(len(index), 1)
    memory = step.memory(x)
    fastest = float("inf")
    for attempt in range(3):
        start = time.perf_counter()
        strategy.sgd(x, memory, index, step, [0] * len(x))
        if x.device.type == "cuda":
            torch.cuda.synchronize()
        if attempt:  # the first one warms up
            fastest = min(fastest, time.perf_counter() - start)
    return fastest / len(x)

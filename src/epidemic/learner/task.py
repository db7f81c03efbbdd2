"""The task: module, loss, metrics and data, and what a strategy is asked to do with them."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from epidemic.data import Dataset, Samples
from epidemic.learner.accuracies import Loss
from epidemic.learner.nature import Nature, nature_of
from epidemic.learner.optimisers import Memory, Optimiser
from epidemic.learner.rows import Layout
from epidemic.metrics import Metric, PerSample, Whole

EVALUATION_BATCH = 50
"""Samples per forward pass in evaluation; more fall out of the cache."""
GATHERED = 16_000_000
"""Outputs that a piece of work may gather for metrics over all outputs of a node."""


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Softmax cross-entropy of (batch, classes) outputs, mean over the batch.

    Spelled out, because under vmap PyTorch's own takes more than twice the time for a small model.
    """
    shifted = outputs - outputs.detach().amax(-1, keepdim=True)
    return (shifted.exp().sum(-1).log() - shifted.gather(-1, targets[:, None])[:, 0]).mean()


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Half the squared distance of output and target, averaged over the batch.

    A single quantity may have its own axis or not: (batch,) and (batch, 1) are treated alike.
    """
    if outputs.shape != targets.shape or outputs.dim() == 1:
        outputs, targets = outputs.reshape(len(outputs), -1), targets.reshape(len(targets), -1)
        if outputs.shape != targets.shape:  # PyTorch would make them fit, by comparing each sample with all others
            raise ValueError(f"outputs {tuple(outputs.shape)} and targets {tuple(targets.shape)} do not fit each other")
    return 0.5 * (outputs - targets).flatten(1).square().sum(1).mean()


LOSSES: dict[str, Loss] = {"cross-entropy": cross_entropy, "squared-error": squared_error}


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Per row: the mean loss and each metric, not a number where one is undefined.   # (k,) float64 each"""

    loss: Tensor
    metrics: dict[str, Tensor]


class Strategy(Protocol):
    """The interface of strategies: how rows are trained and evaluated."""

    def sgd(self, x: Tensor, memory: Memory, index: Tensor, step: Optimiser, seeds: list[int]) -> Tensor:
        """Do steps on every row in place, updating the memory too; returns the mean loss of each.   # index (k, r, b) -> (k,)"""
        ...

    def gradients(self, x: Tensor, index: Tensor, seeds: list[int]) -> tuple[Tensor, Tensor]:
        """Loss and gradient of every row on one batch.   # index (k, b) -> (k,), (k, d)"""
        ...

    def evaluate(self, x: Tensor, inputs: Tensor, targets: Tensor, first: int = 0) -> Evaluation:
        """Evaluate every row on all samples.   # x: (k, d), inputs: (N, ...)"""
        ...


class Task:
    """The module, the loss, the metrics and the data, and what one batch is."""

    def __init__(
        self,
        module: nn.Module,
        data: Dataset,
        loss: Loss,
        metrics: Mapping[str, Metric],
        device: torch.device,
        kind: Hashable = None,
    ) -> None:
        """Prepare a task; tasks of the same `kind` compute the same results on the same numbers; None: unknown."""
        self.kind = kind
        self.module = copy.deepcopy(module).to(device)
        self.layout = Layout(self.module)
        self.loss = loss
        self.metrics: dict[str, PerSample] = {n: m for n, m in metrics.items() if not isinstance(m, Whole)}
        self.whole: dict[str, Whole] = {n: m for n, m in metrics.items() if isinstance(m, Whole)}
        self.device = device
        self.scale, self.shift = data.scale, data.shift
        self.float_targets = False
        self.train = self.tensors(data.train)
        self.integers = False
        self.integers = self._wants_integers()
        if self._wants_float_targets():
            self.float_targets, self.train = True, (self.train[0], self.train[1].to(self.layout.dtype))

    def measure_accuracy(self, measure: PerSample | None) -> None:
        """Evaluate the accuracy as well, before the other metrics; None: there is none."""
        if measure is not None:
            self.metrics = {"accuracy": measure, **self.metrics}

    def tensors(self, samples: Samples) -> tuple[Tensor, Tensor]:
        """Raw inputs, and targets, on the device."""
        arrays = (
            np.require(a, requirements=["C", "W"]) for a in (samples.inputs, samples.targets)
        )  # PyTorch shares no other
        inputs, targets = map(torch.from_numpy, arrays)
        if targets.is_floating_point() or self.float_targets:
            targets = targets.to(self.layout.dtype)
        return inputs.to(self.device), targets.to(self.device)

    def _wants_integers(self) -> bool:
        """Whether the model takes whole-number inputs as they are (an embedding) instead of as floats."""
        raw = self.train[0]
        if raw.is_floating_point() or raw.dtype == torch.uint8 or self.scale != 1.0:
            return False
        module = copy.deepcopy(self.module).eval()
        with torch.no_grad():
            try:
                module(self.floats(raw[:2]))
                return False
            except Exception:
                try:
                    module(raw[:2].to(torch.int64))
                    return True
                except Exception:
                    return False  # it takes neither; the check of the model says so

    def _wants_float_targets(self) -> bool:
        """Whether whole-number targets of several dimensions become floats: for squared error, and for a loss that takes nothing else."""
        inputs, targets = self.batch(torch.arange(2, device=self.device) % len(self.train[0]))
        if targets.is_floating_point() or targets.dim() == 1:
            return False
        if self.loss is squared_error:
            return True
        module = copy.deepcopy(self.module).eval()

        def taken(given: Tensor) -> bool:
            try:
                self.loss(module(inputs.clone()), given)
            except Exception:
                return False
            return True

        with torch.no_grad():  # if it takes neither, the check of the model says so
            return not taken(targets) and taken(targets.to(self.layout.dtype))

    @cached_property
    def nature(self) -> Nature:
        """What the module does while training, as two samples show it."""
        return nature_of(self.module, self.batch(torch.arange(2, device=self.device) % len(self.train[0]))[0])

    @cached_property
    def work(self) -> int:
        """About how many multiplications a forward pass takes per sample; every number of a row counts once at least."""
        return self.layout.size + self.nature.products

    def rows_to_gather(self, samples: int) -> int:
        """Of how many rows the outputs for so many samples may be gathered at once."""
        return max(1, GATHERED // max(1, samples * self.nature.outputs))

    def judge(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The metrics over all outputs of one row.   # (samples, ...), (samples, ...) -> (metrics,)"""
        found = [metric.number(name, outputs, targets) for name, metric in self.whole.items()]
        return torch.tensor(found, dtype=torch.float64)

    def floats(self, raw: Tensor) -> Tensor:
        """Raw inputs as the model takes them."""
        x = raw.to(
            torch.int64 if self.integers else self.layout.dtype, copy=True
        )  # a model may write into what it is given
        return x if self.scale == 1.0 and self.shift == 0.0 else x.mul_(self.scale).add_(self.shift)

    def batch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets of these training samples; the shape of the index stays in front."""
        inputs, targets = self.train
        flat = index.flatten()
        x, y = inputs[flat], targets[flat]  # these are copies already
        if x.dtype != self.layout.dtype or self.scale != 1.0 or self.shift != 0.0:
            x = self.floats(x)
        return x.view(*index.shape, *x.shape[1:]), y.view(*index.shape, *y.shape[1:])


def evaluation(means: Tensor, whole: Tensor, task: Task) -> Evaluation:
    """From an array of (rows, loss and metrics), and one of (rows, metrics over all outputs)."""
    metrics = {name: means[:, j] for j, name in enumerate(task.metrics, start=1)}
    return Evaluation(means[:, 0], metrics | {name: whole[:, j] for j, name in enumerate(task.whole)})

"""Many rows at once through vmap, traced once: for small models, and on GPUs."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap

from epidemic.core.workers import Workers, blocks
from epidemic.learner.optimisers import Memory, Optimiser, of_rows, parts_of_memory, with_rate
from epidemic.learner.per_node import PerNode
from epidemic.learner.script import script
from epidemic.learner.task import EVALUATION_BATCH, Evaluation, Task, evaluation
from epidemic.learner.tracing import flat, trace, traces_of

EVALUATED_TOGETHER = 400_000
"""Numbers that the largest convolution may put out per batch of an evaluation; with more, stacked models are several times slower than one after the other."""

EVALUATED = 250
"""Rows that are evaluated together at most, ..."""
SAMPLES = 4 * EVALUATION_BATCH
"""... on so many samples at a time."""


def most_trained(rows: int, size: int, *, convolved: bool, shared: bool = False) -> int:
    """How many of so many rows of this size are trained together at most; it grows with their number.

    `shared`: by several threads, which all should have a piece where rows are so large that it pays.
    """
    if convolved:
        return max(1, min(max(48, -(-rows // 8)), 1000, 32_000_000 // size))
    fewest = min(48, -(-rows // 2)) if shared else 48
    return max(1, min(max(fewest, 160_000 // size, -(-rows // 8)), 1000, 8_000_000 // size))


def most_evaluated(rows: int, size: int) -> int:
    """Return how many rows are evaluated in one chunk, so that the chunk fits into memory."""
    return min(most_trained(rows, size, convolved=True), EVALUATED)


class Stacked:
    """A chunk of rows at a time through vmap. The chunks depend on the number of rows only, never on the threads."""

    def __init__(self, task: Task, workers: Workers) -> None:
        self.task = task
        self.workers = workers
        self._module = copy.deepcopy(task.module)
        self._traced = traces_of(task)
        self._tracing = threading.Lock()
        self._alone = PerNode(task, workers)
        self.steady = (
            0  # a size of chunks for batches of ever other sizes, which are filled up to it; 0: by the number of rows
        )

    def chunk(self, rows: int) -> int:
        """How many rows are trained together: enough to hide the overhead of a call, not so many that they leave the cache.

        The last digits of stacked convolutions depend on it, and without any they do not. That is why the two differ.
        """
        if self.steady:
            return self.steady
        convolved = rows == 0 or self.task.nature.products > 0
        shared = self.task.device.type == "cpu"
        most = most_trained(rows, self.task.layout.size, convolved=convolved, shared=shared)
        return most if convolved else -(-rows // -(-rows // most))  # equal ones

    def sgd(self, x: Tensor, memory: Memory, index: Tensor, step: Optimiser, seeds: list[int]) -> Tensor:
        missing = -len(x) % self.steady if self.steady else 0
        if missing:
            return self._filled_up(x, memory, index, step, seeds, missing)
        losses = torch.zeros(len(x), dtype=torch.float64)
        self.prepare(x, index[:, 0])

        def one(part: slice) -> None:
            inputs, targets = self.task.batch(index[part])
            weights = list(self.task.layout.views(x[part], trainable=True).items())
            held = parts_of_memory(memory, part, partial(self.task.layout.views, trainable=True))
            optimiser = of_rows(step, part)
            for r in range(index.shape[1]):
                loss, *gradients = self._gradients(x[part], inputs[:, r], targets[:, r])
                optimiser.update(
                    [(value, held.get(name, {}), own) for (name, value), own in zip(weights, gradients, strict=True)]
                )
                losses[part] += loss.cpu()

        self.workers.map(one, blocks(len(x), self.chunk(len(x))), size=index.numel() * self.task.work)
        return losses / index.shape[1]

    def _filled_up(
        self, x: Tensor, memory: Memory, index: Tensor, step: Optimiser, seeds: list[int], missing: int
    ) -> Tensor:
        """The same, padded with unused rows, so that all chunks have the traced size."""
        k = len(x)

        def filled(rows: Tensor) -> Tensor:
            return torch.cat([rows, rows[-1:].expand(missing, *rows.shape[1:])])

        more, held = filled(x), {name: filled(rows) for name, rows in memory.items()}
        if isinstance(step.lr, Tensor):
            step = with_rate(step, filled(step.lr))
        losses = self.sgd(more, held, filled(index), step, [*seeds, *[0] * missing])
        x.copy_(more[:k])
        for name, rows in memory.items():
            rows.copy_(held[name][:k])
        return losses[:k]

    def gradients(self, x: Tensor, index: Tensor, seeds: list[int]) -> tuple[Tensor, Tensor]:
        losses = torch.zeros(len(x), dtype=torch.float64)
        gradients = torch.zeros_like(x)
        self.prepare(x, index)

        def one(part: slice) -> None:
            loss, *found = self._gradients(x[part], *self.task.batch(index[part]))
            for value, own in zip(self.task.layout.views(gradients[part], trainable=True).values(), found, strict=True):
                value.copy_(own)
            losses[part] = loss.cpu().double()

        self.workers.map(one, blocks(len(x), self.chunk(len(x))), size=index.numel() * self.task.work)
        return losses, gradients

    def evaluate(self, x: Tensor, inputs: Tensor, targets: Tensor, first: int = 0) -> Evaluation:
        task = self.task
        if task.device.type == "cpu" and task.nature.convolved * SAMPLES > EVALUATED_TOGETHER:
            return self._alone.evaluate(x, inputs, targets, first)
        sums = torch.zeros(len(x), 1 + len(task.metrics), dtype=torch.float64)
        whole = torch.zeros(len(x), len(task.whole), dtype=torch.float64)
        batch = SAMPLES

        def one(part: slice) -> None:
            gathered = []
            for which in blocks(len(inputs), batch):
                raw, wanted = inputs[which], targets[which]
                found = self._evaluate(x[part], task.floats(raw), wanted)
                if task.whole:
                    *found, outputs = found
                    gathered.append(outputs.cpu())
                sums[part] += torch.stack([part_sum.cpu().double() for part_sum in found], dim=1)
            if task.whole:
                for i, outputs in zip(range(part.start, part.stop), torch.cat(gathered, 1), strict=True):
                    whole[i] = task.judge(outputs, targets.cpu())

        with torch.no_grad():
            rows = most_evaluated(len(x), task.layout.size)
            chunks = blocks(len(x), min(rows, task.rows_to_gather(len(inputs))) if task.whole else rows)
            for part in {c.stop - c.start: c for c in chunks}.values():  # trace before the threads start
                for which in {w.stop - w.start: w for w in blocks(len(inputs), batch)}.values():
                    self._evaluate(x[part], self.task.floats(inputs[which]), targets[which])
            self.workers.map(one, chunks, size=len(x) * len(inputs) * self.task.work)
        return evaluation(sums / len(inputs), whole, task)

    def prepare(self, x: Tensor, index: Tensor) -> None:
        """Trace every size of chunk before the threads start.   # x (k, d) or one row for all (1, d), index (k, b)"""
        for part in {c.stop - c.start: c for c in blocks(len(index), self.chunk(len(index)))}.values():
            rows = part.stop - part.start
            if ("train", rows, index.shape[1]) not in self._traced:
                self._gradients(x[part] if len(x) > 1 else x.repeat(rows, 1), *self.task.batch(index[part]))

    def _gradients(self, rows: Tensor, inputs: Tensor, targets: Tensor) -> list[Tensor]:
        """The losses, and the gradients of each trainable tensor.   # (k,), (k, ...)"""

        def loss(weights: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            return self.task.loss(functional_call(self._module, {**weights, **buffers}, (x,)), y)

        layout = self.task.layout
        arguments = (layout.views(rows, trainable=True), layout.views(rows, trainable=False), inputs, targets)
        key = ("train", len(rows), inputs.shape[1])

        def in_order(*given: Any) -> list[Tensor]:
            gradients, losses = vmap(grad_and_value(loss))(*given)
            return [losses, *gradients.values()]

        return self._through_trace(key, in_order, arguments, True)

    def _evaluate(self, rows: Tensor, inputs: Tensor, targets: Tensor) -> list[Tensor]:
        def judge(values: dict[str, Tensor], x: Tensor, y: Tensor) -> list[Tensor]:
            outputs = functional_call(self._module, values, (x,))
            return [
                self.task.loss(outputs, y) * len(x),
                *(metric(outputs, y).sum() for metric in self.task.metrics.values()),
                *([outputs] if self.task.whole else []),
            ]

        arguments = (self.task.layout.views(rows), inputs, targets)
        key = ("evaluate", len(rows), len(inputs))
        return self._through_trace(key, vmap(judge, in_dims=(0, None, None)), arguments, False)

    def _through_trace(
        self, key: tuple[Any, ...], work: Callable[..., Any], arguments: tuple[Any, ...], training: bool
    ) -> list[Tensor]:
        """What `work` gives, by the plain tensor operations that it amounts to for arguments of these shapes: without vmap's own overhead."""
        if key not in self._traced:
            with self._tracing:
                if key not in self._traced:
                    self._module.train(training)
                    self._traced[key] = script(trace(work, arguments))
        found: list[Tensor] = self._traced[key](*flat(arguments))
        return found

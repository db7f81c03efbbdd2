"""One row after the other, in worker threads: for convolutions on CPUs, and for modules that vmap cannot take."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from epidemic.core.workers import Workers, blocks
from epidemic.learner.nature import channels_together
from epidemic.learner.optimisers import Memory, Optimiser, of_rows, parts_of_memory
from epidemic.learner.task import EVALUATION_BATCH, Evaluation, Task, evaluation

T = TypeVar("T")


class PerNode:
    """Trains one row after the other, each in a worker thread with a module of its own."""

    def __init__(self, task: Task, workers: Workers, *, draws_random_numbers: bool = False) -> None:
        self.task = task
        self.workers = workers
        self.serial = draws_random_numbers  # torch's generator is one for all threads
        self._own = threading.local()

    def sgd(self, x: Tensor, memory: Memory, index: Tensor, step: Optimiser, seeds: list[int]) -> Tensor:
        trainable = self.task.layout.trainable
        losses = torch.zeros(len(x), dtype=torch.float64)

        def one(i: int) -> None:
            bound = self._bound().take(x[i])
            inputs, targets = self.task.batch(index[i])
            row = slice(i, i + 1)
            held = parts_of_memory(memory, row, lambda rows: {"": rows[:, :trainable]}).get("", {})
            optimiser, pieces = of_rows(step, row), [(x[row, :trainable], held, bound.gradient[None])]
            for r in range(index.shape[1]):
                losses[i] += bound.backward(inputs[r], targets[r])
                optimiser.update(pieces)

        self._each(one, len(x), seeds)
        return losses / index.shape[1]

    def gradients(self, x: Tensor, index: Tensor, seeds: list[int]) -> tuple[Tensor, Tensor]:
        trainable = self.task.layout.trainable
        losses = torch.zeros(len(x), dtype=torch.float64)
        gradients = torch.zeros_like(x)

        def one(i: int) -> None:
            bound = self._bound().take(x[i])
            losses[i] = bound.backward(*self.task.batch(index[i]))
            gradients[i, :trainable] = bound.gradient

        self._each(one, len(x), seeds)
        return losses, gradients

    def evaluate(self, x: Tensor, inputs: Tensor, targets: Tensor, first: int = 0) -> Evaluation:
        task = self.task
        laid_out = channels_together if _by_channels(task, inputs) else _as_it_is
        cuts = blocks(len(inputs), 10 * EVALUATION_BATCH)

        @torch.no_grad()
        def one(piece: tuple[int, slice]) -> tuple[list[float], list[Tensor]]:
            i, block = piece
            bound = self._bound().take(x[i], training=False)
            sums, gathered = [0.0] * (1 + len(task.metrics)), []
            for part in blocks(block.stop - block.start, EVALUATION_BATCH):
                which = slice(block.start + part.start, block.start + part.stop)
                raw, wanted = inputs[which], targets[which]
                outputs = bound.module(laid_out(task.floats(raw)))
                sums[0] += float(task.loss(outputs, wanted)) * len(raw)
                for j, metric in enumerate(task.metrics.values(), start=1):
                    sums[j] += float(metric(outputs, wanted).sum())
                if task.whole:
                    gathered.append(outputs.cpu())
            return sums, gathered

        found: list[list[float]] = []
        whole = torch.zeros(len(x), len(task.whole), dtype=torch.float64)
        for rows in blocks(len(x), task.rows_to_gather(len(inputs)) if task.whole else len(x)):
            pieces = [(i, block) for i in range(rows.start, rows.stop) for block in cuts]
            parts = self._evaluate_all(one, pieces, first=(first + rows.start) * len(cuts))
            found += [sums for sums, _ in parts]
            if task.whole:
                gathered = [torch.cat(part) for _, part in parts]
                own = [gathered[start : start + len(cuts)] for start in range(0, len(gathered), len(cuts))]
                judged = self.workers.map(lambda some: task.judge(torch.cat(some), targets.cpu()), own)
                whole[rows] = torch.stack(judged)
        sums = torch.tensor(found, dtype=torch.float64).view(len(x), -1, 1 + len(task.metrics))
        return evaluation(sums.sum(1) / len(inputs), whole, task)

    def _evaluate_all(self, work: Callable[[Any], T], pieces: list[Any], first: int) -> list[T]:
        """`work` on every piece; `first` is the number of the first one, among the pieces of all rows."""
        if not self.serial:
            return self.workers.map(work, pieces)
        found = []
        with torch.random.fork_rng(devices=[self.task.device] if self.task.device.type == "cuda" else []):
            for number, piece in enumerate(pieces, start=first):
                torch.manual_seed(number)
                found.append(work(piece))
        return found

    def _each(self, work: Callable[[int], None], count: int, seeds: list[int]) -> None:
        if not self.serial:
            self.workers.map(work, range(count))
            return
        with torch.random.fork_rng(devices=[self.task.device] if self.task.device.type == "cuda" else []):
            for i in range(count):
                torch.manual_seed(seeds[i])
                work(i)

    def _bound(self) -> _RowModule:
        if not hasattr(self._own, "bound"):
            self._own.bound = _RowModule(self.task)
        bound: _RowModule = self._own.bound
        return bound


class _RowModule:
    """A module whose parameters are temporarily views into a row."""

    def __init__(self, task: Task) -> None:
        self.module = copy.deepcopy(task.module)
        self.loss = task.loss
        self._by_channels = _by_channels(task, task.train[0])
        self.layout = task.layout
        self.gradient = torch.zeros(task.layout.trainable, dtype=task.layout.dtype, device=task.device)
        parameters = dict(self.module.named_parameters())
        self._parameters = [parameters[e.name] for e in self.layout.entries if e.trainable]
        for e, p in zip(self.layout.entries, self._parameters, strict=False):
            p.grad = self.gradient[e.start : e.stop].view(e.shape)
        self._buffers = []
        for e in self.layout.entries:
            if not e.trainable:
                owner, _, leaf = e.name.rpartition(".")
                self._buffers.append((self.module.get_submodule(owner), leaf, e))
        self._counters = [(b, b.clone()) for b in self.module.buffers() if not b.is_floating_point()]

    def take(self, row: Tensor, *, training: bool = True) -> _RowModule:
        """Work on this row: what the optimiser or BatchNorm changes is changed in the row."""
        for e, p in zip(self.layout.entries, self._parameters, strict=False):
            p.data = row[e.start : e.stop].view(e.shape)
        for owner, leaf, e in self._buffers:
            # .data: a view would share its version counter with all rows, and autograd would see the other threads' writes
            owner._buffers[leaf] = row[e.start : e.stop].view(e.shape).data
        for counter, initial in self._counters:
            counter.copy_(initial)
        self.module.train(training)
        return self

    def backward(self, inputs: Tensor, targets: Tensor) -> float:
        """The loss; its gradient is then in `gradient`."""
        self.gradient.zero_()
        if self._by_channels and inputs.shape[1] > 1:
            inputs = channels_together(inputs)
        loss = self.loss(self.module(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())


def _by_channels(task: Task, inputs: Tensor) -> bool:
    """Whether the inputs are images that are passed to the module in channels-last layout."""
    return inputs.dim() == 4 and task.device.type == "cpu" and task.nature.any_layout


def _as_it_is(x: Tensor) -> Tensor:
    return x

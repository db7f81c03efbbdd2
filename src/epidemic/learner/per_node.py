"""One row after the other, in worker threads: for convolutions on CPUs, and for modules that vmap cannot take."""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value

from epidemic.core.workers import Workers, blocks
from epidemic.learner.effects import has_effects
from epidemic.learner.nature import channels_together
from epidemic.learner.optimisers import Memory, Optimiser, of_rows, parts_of_memory
from epidemic.learner.script import Run, script
from epidemic.learner.task import EVALUATION_BATCH, Evaluation, Task, evaluation
from epidemic.learner.tracing import Draw, draws_taken_out, trace, traces_of

T = TypeVar("T")


class PerNode:
    """Trains one row after the other, each in a worker thread with a module of its own."""

    def __init__(self, task: Task, workers: Workers, *, draws_random_numbers: bool = False) -> None:
        self.task = task
        self.workers = workers
        self.serial = draws_random_numbers  # torch's generator is one for all threads
        self._own = threading.local()
        self._traces = traces_of(task)
        self._tracing = threading.Lock()

    def sgd(self, x: Tensor, memory: Memory, index: Tensor, step: Optimiser, seeds: list[int]) -> Tensor:
        layout = self.task.layout
        losses = torch.zeros(len(x), dtype=torch.float64)
        traced = self._traced(index[:1, 0])

        def one(i: int) -> None:
            bound = self._bound().take(x[i], traced, seeds[i])
            inputs, targets = self.task.batch(index[i])
            row = slice(i, i + 1)
            optimiser = of_rows(step, row)
            cut = bound.tensors if step.by_tensor else bound.as_one
            values = cut(x[row])
            held = parts_of_memory(memory, row, lambda rows: dict(enumerate(cut(rows))))
            for r in range(index.shape[1]):
                loss, gradients = bound.backward(inputs[r], targets[r])
                losses[i] += loss
                found = gradients if step.by_tensor else [layout.joined(gradients, out=bound.gradient)]
                pieces = zip(values, found, strict=True)
                optimiser.update([(value, held.get(j, {}), g[None]) for j, (value, g) in enumerate(pieces)])
            bound.release()

        self._each(one, len(x), seeds, alone=traced is None)
        return losses / index.shape[1]

    def gradients(self, x: Tensor, index: Tensor, seeds: list[int]) -> tuple[Tensor, Tensor]:
        layout = self.task.layout
        losses = torch.zeros(len(x), dtype=torch.float64)
        gradients = torch.zeros_like(x)
        traced = self._traced(index[:1])

        def one(i: int) -> None:
            bound = self._bound().take(x[i], traced, seeds[i])
            losses[i], found = bound.backward(*self.task.batch(index[i]))
            layout.joined(found, out=gradients[i, : layout.trainable])
            bound.release()

        self._each(one, len(x), seeds, alone=traced is None)
        return losses, gradients

    def evaluate(self, x: Tensor, inputs: Tensor, targets: Tensor, first: int = 0) -> Evaluation:
        task = self.task
        laid_out = channels_together if by_channels(task, inputs) else _as_it_is
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
        if not (self.serial and self.task.nature.random_evaluated):
            return self.workers.map(work, pieces)
        found = []
        with torch.random.fork_rng(devices=[self.task.device] if self.task.device.type == "cuda" else []):
            for number, piece in enumerate(pieces, start=first):
                torch.manual_seed(number)
                found.append(work(piece))
        return found

    def _traced(self, index: Tensor) -> TracedGradient | None:
        """The gradient of one row for batches of this size, where it can be traced; None: PyTorch finds it anew each time.   # index (1, b)"""
        if not len(index):  # nobody takes part
            return None
        key = ("alone", index.shape[-1])
        if key not in self._traces:
            with self._tracing:
                if key not in self._traces:
                    self._traces[key] = traced_gradient(self.task, index[0])
        found: TracedGradient | None = self._traces[key]
        return found

    def _each(self, work: Callable[[int], None], count: int, seeds: list[int], *, alone: bool) -> None:
        """`work` for each row; `alone`: it takes random numbers from the generator that all threads share."""
        if not (self.serial and alone):
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
        self._by_channels = by_channels(task, task.train[0])
        self.layout = task.layout
        self.gradient = torch.zeros(task.layout.trainable, dtype=task.layout.dtype, device=task.device)
        parameters = dict(self.module.named_parameters())
        self._trainable = [e for e in self.layout.entries if e.trainable]
        self._parameters = [parameters[e.name] for e in self._trainable]
        self._buffers = []
        for e in self.layout.entries:
            if not e.trainable:
                owner, _, leaf = e.name.rpartition(".")
                self._buffers.append((self.module.get_submodule(owner), leaf, e))
        self._counters = [(b, b.clone()) for b in self.module.buffers() if not b.is_floating_point()]
        self._generator = torch.Generator(task.device)
        self._row: list[Tensor] = []
        self._traced: TracedGradient | None = None

    def tensors(self, rows: Tensor) -> list[Tensor]:
        """The trainable part of rows, cut into the tensors of the model.   # (k, d) -> (k, ...)"""
        return [rows[:, e.start : e.stop].view(-1, *e.shape) for e in self._trainable]

    def as_one(self, rows: Tensor) -> list[Tensor]:
        """The trainable part of rows in one piece.   # (k, d) -> (k, trainable)"""
        return [rows[:, : self.layout.trainable]]

    def take(
        self, row: Tensor, traced: TracedGradient | None = None, seed: int = 0, *, training: bool = True
    ) -> _RowModule:
        """Work on this row: what the optimiser or BatchNorm changes is changed in the row."""
        self._traced = traced
        if traced is not None:
            # .data: a view would keep the rows of a run that is over
            self._row = [row[e.start : e.stop].view(e.shape).data for e in self.layout.entries]
            if traced.draws:
                self._generator.manual_seed(seed)
            return self
        for e, p in zip(self._trainable, self._parameters, strict=True):
            p.data = row[e.start : e.stop].view(e.shape)
        for owner, leaf, e in self._buffers:
            # .data: a view would share its version counter with all rows, and autograd would see the other threads' writes
            owner._buffers[leaf] = row[e.start : e.stop].view(e.shape).data
        for counter, initial in self._counters:
            counter.copy_(initial)
        self.module.train(training)
        return self

    def release(self) -> None:
        """Hold nobody's row any more, where it was only looked at."""
        self._row = []

    def backward(self, inputs: Tensor, targets: Tensor) -> tuple[float, list[Tensor]]:
        """The loss, and its gradient for each trainable tensor."""
        if self._by_channels and inputs.shape[1] > 1:
            inputs = channels_together(inputs)
        if self._traced is not None:
            drawn = [draw(self._generator) for draw in self._traced.draws]
            loss, *gradients = self._traced.run(*self._row, inputs, targets, *drawn)
            return float(loss), gradients
        for p in self._parameters:
            p.grad = None  # fresh ones take less than zeros to which they are added
        loss = self.loss(self.module(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach()), [torch.zeros_like(p) if p.grad is None else p.grad for p in self._parameters]


@dataclass(frozen=True)
class TracedGradient:
    """The loss and the gradients of one row as plain tensor operations: no graph is built for each step, and no thread waits for Python."""

    run: Run
    """Takes the tensors of a row, inputs, targets and the numbers that are drawn."""
    draws: list[Draw]


def traced_gradient(task: Task, index: Tensor) -> TracedGradient | None:
    """What PyTorch does for a batch of these samples; None where that may differ from call to call, or cannot be told.   # (b,)"""
    nature, layout = task.nature, task.layout
    if task.device.type != "cpu" or nature.changes_buffers or nature.unseen or nature.recurrent:
        return None
    if has_effects(task.module, task.loss):
        return None
    module = copy.deepcopy(task.module).train()

    def loss(weights: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return task.loss(functional_call(module, {**weights, **buffers}, (x,)), y)

    def in_order(*given: Any) -> list[Tensor]:
        gradients, value = grad_and_value(loss)(*given)
        return [value, *gradients.values()]

    inputs, targets = task.batch(index)
    if by_channels(task, inputs) and inputs.shape[1] > 1:
        inputs = channels_together(inputs)
    row = layout.row(module)
    arguments = (layout.views(row, trainable=True), layout.views(row, trainable=False), inputs, targets)
    try:
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what tracing cannot take, nothing is said: it is done without
            traced = trace(in_order, arguments)
            draws = draws_taken_out(traced) if nature.random else []
    except Exception:
        return None
    return TracedGradient(script(traced), draws)


def by_channels(task: Task, inputs: Tensor) -> bool:
    """Whether these are pictures that the module is given with their channels side by side."""
    return inputs.dim() == 4 and task.device.type == "cpu" and task.nature.any_layout


def _as_it_is(x: Tensor) -> Tensor:
    return x

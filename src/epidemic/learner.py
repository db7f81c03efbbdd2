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
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from epidemic.data import Dataset, Samples
from epidemic.errors import BadInput
from epidemic.workers import Workers, blocks

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs, targets) -> the mean over the batch, a scalar."""
Metric = Callable[[Tensor, Tensor], Tensor]
"""(outputs, targets) -> one number per sample."""

STRATEGIES = ("stacked", "per-node")
EVALUATION_BATCH = 50
"""Samples per forward pass in evaluation; more fall out of the cache."""


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Softmax cross-entropy of (batch, classes) outputs, mean over the batch.

    Spelled out, because under vmap PyTorch's own takes more than twice the time for a small model.
    """
    shifted = outputs - outputs.detach().amax(-1, keepdim=True)
    return (shifted.exp().sum(-1).log() - shifted.gather(-1, targets[:, None])[:, 0]).mean()


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Half the squared distance of output and target, mean over the batch."""
    return 0.5 * (outputs - targets).flatten(1).square().sum(1).mean()


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """1 for each sample whose largest output is that of its class."""
    return (outputs.argmax(-1) == targets).to(torch.float32)


LOSSES: dict[str, Loss] = {"cross-entropy": cross_entropy, "squared-error": squared_error}


# -- rows -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    """One tensor of the model within a row."""

    name: str
    shape: torch.Size
    start: int
    stop: int
    trainable: bool


class Layout:
    """Where each tensor of a module lies in a row."""

    def __init__(self, module: nn.Module) -> None:
        if any(isinstance(p, nn.UninitializedParameter) for p in module.parameters()):
            raise BadInput(
                "the model has lazy parameters without a shape; run a batch through it before handing it over"
            )
        trainable = [(n, p) for n, p in module.named_parameters() if p.requires_grad]
        buffers = [(n, b) for n, b in module.named_buffers() if b.is_floating_point()]
        if not trainable:
            raise BadInput("the model has no trainable parameters")
        types = {t.dtype for _, t in trainable + buffers}
        if len(types) > 1:
            raise BadInput(f"the model mixes {', '.join(sorted(map(str, types)))}; all parameters must be of one type")
        self.dtype = types.pop()
        self.entries: list[Entry] = []
        start = 0
        for i, (name, tensor) in enumerate([*trainable, *buffers]):
            stop = start + tensor.numel()
            self.entries.append(Entry(name, tensor.shape, start, stop, i < len(trainable)))
            start = stop
        self.size = start
        self.trainable = sum(e.stop - e.start for e in self.entries if e.trainable)
        first = {id(t): n for n, t in [*trainable, *buffers]}
        every = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
        self.aliases = {n: first[id(t)] for n, t in every if id(t) in first and first[id(t)] != n}  # tied parameters
        saved = module.state_dict()
        inside = {e.name for e in self.entries} | set(self.aliases)
        self.constants = {n: t.detach().clone() for n, t in saved.items() if n not in inside}
        self.transient = {e.name for e in self.entries if e.name not in saved}  # buffers that are not to be saved

    def row(self, module: nn.Module) -> Tensor:
        """The module's numbers as a row.   # (d,)"""
        tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        return torch.cat([tensors[e.name].detach().flatten() for e in self.entries])

    def views(self, rows: Tensor, *, trainable: bool | None = None) -> dict[str, Tensor]:
        """Named views into (..., d) rows; all of them, or only the trainable ones or the buffers."""
        lead = rows.shape[:-1]
        chosen = [e for e in self.entries if trainable is None or e.trainable == trainable]
        return {e.name: rows[..., e.start : e.stop].view((*lead, *e.shape)) for e in chosen}

    def state_dict(self, row: Tensor) -> dict[str, Tensor]:
        """What `module.load_state_dict` takes."""
        named = {n: t.clone() for n, t in self.views(row).items()}
        tied = {alias: named[name] for alias, name in self.aliases.items()}
        return {**self.constants, **{n: t for n, t in named.items() if n not in self.transient}, **tied}


# -- what a learner is asked ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SGD:
    """One step of stochastic gradient descent, in PyTorch's convention."""

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0

    def update(self, x: Tensor, velocity: Tensor | None, gradient: Tensor) -> None:
        """Change x (and velocity) in place."""
        if self.weight_decay:
            gradient = gradient.add(x, alpha=self.weight_decay)
        if velocity is not None:
            velocity.mul_(self.momentum).add_(gradient)
            gradient = velocity
        x.add_(gradient, alpha=-self.lr)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Per row: the mean loss and the mean of each metric.   # (k,) float64 each"""

    loss: Tensor
    metrics: dict[str, Tensor]


class Strategy(Protocol):
    """How rows are trained and evaluated."""

    def sgd(self, x: Tensor, velocity: Tensor | None, index: Tensor, step: SGD, seeds: list[int]) -> Tensor:
        """Steps on every row in place; the mean loss of each.   # index (k, r, b) -> (k,)"""
        ...

    def gradients(self, x: Tensor, index: Tensor, seeds: list[int]) -> tuple[Tensor, Tensor]:
        """Loss and gradient of every row on one batch.   # index (k, b) -> (k,), (k, d)"""
        ...

    def evaluate(self, x: Tensor, inputs: Tensor, targets: Tensor) -> Evaluation:
        """Every row on all samples."""
        ...


class Task:
    """The module, the loss, the metrics and the data, and what one batch is."""

    def __init__(
        self, module: nn.Module, data: Dataset, loss: Loss, metrics: Mapping[str, Metric], device: torch.device
    ) -> None:
        self.module = copy.deepcopy(module).to(device)
        self.layout = Layout(self.module)
        self.loss = loss
        self.metrics = dict(metrics)
        self.device = device
        self.scale, self.shift = data.scale, data.shift
        self.train = self.tensors(data.train)
        self.integers = False
        self.integers = self._wants_integers()

    def tensors(self, samples: Samples) -> tuple[Tensor, Tensor]:
        """Raw inputs, and targets, on the device."""
        arrays = (
            np.require(a, requirements=["C", "W"]) for a in (samples.inputs, samples.targets)
        )  # PyTorch shares no other
        inputs, targets = map(torch.from_numpy, arrays)
        if targets.is_floating_point():
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


# -- one row after the other ------------------------------------------------------------------------------------------


class PerNode:
    """One row after the other, each by one worker thread with a module of its own."""

    def __init__(self, task: Task, workers: Workers, *, draws_random_numbers: bool = False) -> None:
        self.task = task
        self.workers = workers
        self.serial = draws_random_numbers  # torch's generator is one for all threads
        self._own = threading.local()

    def sgd(self, x: Tensor, velocity: Tensor | None, index: Tensor, step: SGD, seeds: list[int]) -> Tensor:
        trainable = self.task.layout.trainable
        losses = torch.zeros(len(x), dtype=torch.float64)

        def one(i: int) -> None:
            seat = self._seat().take(x[i])
            inputs, targets = self.task.batch(index[i])
            weights = x[i, :trainable]
            speed = None if velocity is None else velocity[i, :trainable]
            for r in range(index.shape[1]):
                losses[i] += seat.backward(inputs[r], targets[r])
                step.update(weights, speed, seat.gradient)

        self._each(one, len(x), seeds)
        return losses / index.shape[1]

    def gradients(self, x: Tensor, index: Tensor, seeds: list[int]) -> tuple[Tensor, Tensor]:
        trainable = self.task.layout.trainable
        losses = torch.zeros(len(x), dtype=torch.float64)
        gradients = torch.zeros_like(x)

        def one(i: int) -> None:
            seat = self._seat().take(x[i])
            losses[i] = seat.backward(*self.task.batch(index[i]))
            gradients[i, :trainable] = seat.gradient

        self._each(one, len(x), seeds)
        return losses, gradients

    def evaluate(self, x: Tensor, inputs: Tensor, targets: Tensor) -> Evaluation:
        pieces = [(i, block) for i in range(len(x)) for block in blocks(len(inputs), 10 * EVALUATION_BATCH)]

        @torch.no_grad()
        def one(piece: tuple[int, slice]) -> list[float]:
            i, block = piece
            seat = self._seat().take(x[i], training=False)
            sums = [0.0] * (1 + len(self.task.metrics))
            for part in blocks(block.stop - block.start, EVALUATION_BATCH):
                which = slice(block.start + part.start, block.start + part.stop)
                raw, wanted = inputs[which], targets[which]
                outputs = seat.module(_for_convolutions(self.task.floats(raw)))
                sums[0] += float(self.task.loss(outputs, wanted)) * len(raw)
                for j, metric in enumerate(self.task.metrics.values(), start=1):
                    sums[j] += float(metric(outputs, wanted).sum())
            return sums

        sums = torch.tensor(self._evaluate_all(one, pieces), dtype=torch.float64).view(
            len(x), -1, 1 + len(self.task.metrics)
        )
        return _evaluation(sums.sum(1) / len(inputs), self.task)

    def _evaluate_all(self, work: Callable[[Any], list[float]], pieces: list[Any]) -> list[list[float]]:
        if not self.serial:
            return self.workers.map(work, pieces)
        found = []
        with torch.random.fork_rng(devices=[self.task.device] if self.task.device.type == "cuda" else []):
            for number, piece in enumerate(pieces):
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

    def _seat(self) -> _Seat:
        if not hasattr(self._own, "seat"):
            self._own.seat = _Seat(self.task)
        seat: _Seat = self._own.seat
        return seat


class _Seat:
    """A module whose parameters are, for a while, views into somebody's row."""

    def __init__(self, task: Task) -> None:
        self.module = copy.deepcopy(task.module)
        self.loss = task.loss
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

    def take(self, row: Tensor, *, training: bool = True) -> _Seat:
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
        loss = self.loss(self.module(_for_convolutions(inputs)), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())


def _for_convolutions(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 and x.device.type == "cpu" else x


# -- many rows at once ------------------------------------------------------------------------------------------------


class Stacked:
    """A chunk of rows at a time through vmap. The chunks depend on the number of rows only, never on the threads."""

    def __init__(self, task: Task, workers: Workers) -> None:
        self.task = task
        self.workers = workers
        self._module = copy.deepcopy(task.module)
        self._traced: dict[tuple[Any, ...], Callable[..., Any]] = {}
        self._tracing = threading.Lock()

    def chunk(self, rows: int) -> int:
        """How many rows are stacked: enough to hide the overhead of a call, not so many that they leave the cache."""
        return max(1, min(max(48, -(-rows // 8)), 1000, 32_000_000 // self.task.layout.size))

    def sgd(self, x: Tensor, velocity: Tensor | None, index: Tensor, step: SGD, seeds: list[int]) -> Tensor:
        losses = torch.zeros(len(x), dtype=torch.float64)
        self._prepare(x, index[:, 0])

        def one(part: slice) -> None:
            inputs, targets = self.task.batch(index[part])
            weights = self.task.layout.views(x[part], trainable=True)
            speed = None if velocity is None else self.task.layout.views(velocity[part], trainable=True)
            for r in range(index.shape[1]):
                gradients, loss = self._gradients(x[part], inputs[:, r], targets[:, r])
                for name, value in weights.items():
                    step.update(value, None if speed is None else speed[name], gradients[name])
                losses[part] += loss.cpu()

        self.workers.map(one, blocks(len(x), self.chunk(len(x))))
        return losses / index.shape[1]

    def gradients(self, x: Tensor, index: Tensor, seeds: list[int]) -> tuple[Tensor, Tensor]:
        losses = torch.zeros(len(x), dtype=torch.float64)
        gradients = torch.zeros_like(x)
        self._prepare(x, index)

        def one(part: slice) -> None:
            found, loss = self._gradients(x[part], *self.task.batch(index[part]))
            for name, value in self.task.layout.views(gradients[part], trainable=True).items():
                value.copy_(found[name])
            losses[part] = loss.cpu().double()

        self.workers.map(one, blocks(len(x), self.chunk(len(x))))
        return losses, gradients

    def evaluate(self, x: Tensor, inputs: Tensor, targets: Tensor) -> Evaluation:
        sums = torch.zeros(len(x), 1 + len(self.task.metrics), dtype=torch.float64)
        batch = 4 * EVALUATION_BATCH

        def one(part: slice) -> None:
            for which in blocks(len(inputs), batch):
                raw, wanted = inputs[which], targets[which]
                found = self._evaluate(x[part], self.task.floats(raw), wanted)
                sums[part] += torch.stack([part_sum.cpu().double() for part_sum in found], dim=1)

        with torch.no_grad():
            chunks = blocks(len(x), min(self.chunk(len(x)), 250))
            for part in {c.stop - c.start: c for c in chunks}.values():  # trace before the threads start
                for which in {w.stop - w.start: w for w in blocks(len(inputs), batch)}.values():
                    self._evaluate(x[part], self.task.floats(inputs[which]), targets[which])
            self.workers.map(one, chunks)
        return _evaluation(sums / len(inputs), self.task)

    def _prepare(self, x: Tensor, index: Tensor) -> None:
        """Trace every size of chunk before the threads start."""
        for part in {c.stop - c.start: c for c in blocks(len(x), self.chunk(len(x)))}.values():
            if ("train", part.stop - part.start, index.shape[1]) not in self._traced:
                self._gradients(x[part], *self.task.batch(index[part]))

    def _gradients(self, rows: Tensor, inputs: Tensor, targets: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        def loss(weights: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            return self.task.loss(functional_call(self._module, {**weights, **buffers}, (x,)), y)

        layout = self.task.layout
        arguments = (layout.views(rows, trainable=True), layout.views(rows, trainable=False), inputs, targets)
        key = ("train", len(rows), inputs.shape[1])
        found: tuple[dict[str, Tensor], Tensor] = self._trace(key, vmap(grad_and_value(loss)), arguments, True)(
            *arguments
        )
        return found

    def _evaluate(self, rows: Tensor, inputs: Tensor, targets: Tensor) -> list[Tensor]:
        def judge(values: dict[str, Tensor], x: Tensor, y: Tensor) -> list[Tensor]:
            outputs = functional_call(self._module, values, (x,))
            return [
                self.task.loss(outputs, y) * len(x),
                *(metric(outputs, y).sum() for metric in self.task.metrics.values()),
            ]

        arguments = (self.task.layout.views(rows), inputs, targets)
        key = ("evaluate", len(rows), len(inputs))
        found: list[Tensor] = self._trace(key, vmap(judge, in_dims=(0, None, None)), arguments, False)(*arguments)
        return found

    def _trace(
        self, key: tuple[Any, ...], work: Callable[..., Any], arguments: Any, training: bool
    ) -> Callable[..., Any]:
        """The plain tensor operations that `work` amounts to for arguments of these shapes: a third of vmap's overhead."""
        if key not in self._traced:
            with self._tracing:
                if key not in self._traced:
                    self._module.train(training)
                    self._traced[key] = make_fx(work)(*arguments)
        return self._traced[key]


def _evaluation(means: Tensor, task: Task) -> Evaluation:
    return Evaluation(means[:, 0], {name: means[:, j] for j, name in enumerate(task.metrics, start=1)})


# -- the learner ------------------------------------------------------------------------------------------------------


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


def probe(task: Task) -> tuple[bool, str | None]:
    """Whether training draws random numbers, and why rows cannot be stacked (None if they can)."""
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
    random, obstacle = probe(task)
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

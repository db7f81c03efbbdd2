"""The rule that chooses the strategy, on a grid of models, numbers of nodes and batch sizes: what it costs beside the better of the two.

Processor time of one thread is measured, which other work on the machine disturbs little, and shared out to two threads as the pieces of work
allow: one row after the other has a piece for each row, stacked rows have one for each chunk.
"""

from __future__ import annotations

import math
import time
import warnings

import torch
from torch import nn

import epidemic as ep
from benchmarks.sizes import sized
from benchmarks.timing import verdict
from benchmarks.zoo import Subject, Transformer
from epidemic.core.workers import Workers
from epidemic.learner import PerNode, SGDUpdate, Stacked, Strategy, Task, cross_entropy, rule

_VECTOR, _DIGIT, _COLOURS, _TEXT = (64,), (1, 28, 28), (3, 32, 32), (32,)


def _mlp(*hidden: int, shape: tuple[int, ...] = _DIGIT) -> Subject:
    return Subject(lambda: ep.MLP(hidden).build(shape, 10), shape)


def _narrow() -> nn.Module:
    return Transformer(width=32)


SUBJECTS = {
    "logistic on 64": Subject(lambda: ep.Logistic().build(_VECTOR, 10), _VECTOR),
    "logistic on 784": Subject(lambda: ep.Logistic().build(_DIGIT, 10), _DIGIT),
    "mlp 64-32": _mlp(32, shape=_VECTOR),
    "mlp 784-32": _mlp(32),
    "mlp 784-128": _mlp(128),
    "mlp 784-512-512": _mlp(512, 512),
    "mlp 3072-1024-1024": _mlp(1024, 1024, shape=_COLOURS),
    "small-cnn 8 x 8": Subject(lambda: ep.SmallCNN().build((1, 8, 8), 10), (1, 8, 8)),
    "small-cnn 28 x 28": Subject(lambda: ep.SmallCNN().build(_DIGIT, 10), _DIGIT),
    "small-cnn 3 x 32 x 32": Subject(lambda: ep.SmallCNN().build(_COLOURS, 10), _COLOURS),
    "transformer, d = 32": Subject(_narrow, _TEXT, tokens=True),
}
NODES, BATCHES = sized((2, 16, 96), (2,)), sized((8, 32), (8,))
ALLOWED = 1.1


def run() -> bool:
    """Measure every point of the grid."""
    names = sized(list(SUBJECTS), ["logistic on 64"])
    lost = [_point(name, nodes, batch) for name in names for nodes in NODES for batch in BATCHES]
    within = sum(one <= ALLOWED for one in lost)
    mean = math.exp(sum(map(math.log, lost)) / len(lost))
    print(
        f"{within} of {len(lost)} points within {ALLOWED:g} of the better strategy; geometric mean {mean:.3f}, most {max(lost):.2f}"
    )
    return verdict("time by the chosen strategy relative to the better one, geometric mean", mean, 1.05, at_most=True)


def _point(name: str, nodes: int, batch: int) -> float:
    """The time by the strategy that the rule chooses, relative to the better one."""
    subject = SUBJECTS[name]
    torch.manual_seed(0)
    task = Task(subject.build(), subject.data(), cross_entropy, {}, torch.device("cpu"))
    chosen, _ = rule(task.nature, nodes, batch, "cpu", task.layout.size)
    workers = Workers(1)
    index = torch.randint(512, (nodes, 1, batch), generator=torch.Generator().manual_seed(0))
    stacked = Stacked(task, workers)
    pieces = -(-nodes // stacked.chunk(nodes))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        a = _seconds(stacked, task, index) * (-(-pieces // 2) / pieces)
        b = _seconds(PerNode(task, workers), task, index) * (-(-nodes // 2) / nodes)
    workers.close()
    found = {"stacked": a, "per-node": b}
    lost = found[chosen] / min(found.values())
    print(
        f"  {name:24} n = {nodes:3} b = {batch:3} d = {task.layout.size:8} stacked {a / nodes * 1e6:8.0f} us, per-node"
        f" {b / nodes * 1e6:8.0f} us: {a / b:5.2f} {chosen} {lost:.2f}",
        flush=True,
    )
    return lost


def _seconds(strategy: Strategy, task: Task, index: torch.Tensor) -> float:
    x = task.layout.row(task.module).repeat(len(index), 1)

    def once() -> float:
        start = time.thread_time()
        strategy.sgd(x, {}, index, SGDUpdate(0.01), [0] * len(x))
        return time.thread_time() - start

    once()
    begun, fastest = time.thread_time(), once()
    while time.thread_time() - begun < sized(0.25, 0.0):
        fastest = min(fastest, once())
    return fastest

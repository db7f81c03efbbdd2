"""Many small models: 10,000 against a plain loop over nn.Module and torch.optim.SGD, 100 against a plain loop in NumPy, in one run."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import epidemic as ep
from benchmarks.sizes import sized
from benchmarks.timing import best, interleaved, verdict
from epidemic.core.workers import Workers
from epidemic.learner import Stacked
from epidemic.runtime.mixing_arithmetic import mix
from epidemic.runtime.plan import plan_round
from epidemic.runtime.setup import prepare

NODES = sized(10_000, 300)
FEW = 100


def run() -> bool:
    """Both, one after the other."""
    reached = [_many(), _few()]
    return all(reached)


def _experiment(nodes: int) -> ep.Experiment:
    return ep.Experiment(
        nodes=nodes, topology=ep.ELLocal(14), data=ep.Synthetic(features=64, classes=10, samples=8 * nodes), partition=ep.IID(),
        model=ep.Logistic(), algorithm=ep.LocalSGD(lr=0.05, batch_size=8), runtime=ep.Runtime(strategy="stacked"),
    )  # fmt: skip


def _many() -> bool:
    workers = Workers()
    experiment = _experiment(NODES)
    setup = prepare(experiment, 1)
    learner = Stacked(setup.task, workers)
    x = setup.initial.repeat(NODES, 1)
    out = torch.empty_like(x)
    step, rounds = experiment.algorithm.step, iter(range(10**9))

    plain = [nn.Linear(64, 10) for _ in range(200)]
    optimisers = [torch.optim.SGD(module.parameters(), lr=0.05) for module in plain]
    inputs, targets = setup.task.batch(torch.from_numpy(setup.batches.index(setup.streams, 0))[:200, 0])

    def loop() -> None:
        for i, (module, optimiser) in enumerate(zip(plain, optimisers, strict=True)):
            optimiser.zero_grad()
            F.cross_entropy(module(inputs[i]), targets[i]).backward()
            optimiser.step()

    index = torch.from_numpy(setup.batches.index(setup.streams, 0))

    def train() -> None:
        learner.sgd(x, {}, index, step, [0] * NODES)

    def whole_round() -> None:
        t = next(rounds)
        plan = plan_round(experiment, setup.streams, t)
        drawn = torch.from_numpy(setup.batches.index(setup.streams, t))
        learner.sgd(x, {}, drawn, step, [0] * NODES)
        mix(plan.weights, x, workers, out)

    train()
    times = [(best(loop, 2) / len(plain), best(train, 2) / NODES, best(whole_round, 2)) for _ in range(sized(8, 1))]
    one, ours, everything = (min(column) for column in zip(*times, strict=True))
    print(
        f"plain loop {one * 1e6:.0f} us a node-step, ours {ours * 1e6:.2f} us; whole rounds {1 / everything:.1f} a second"
    )
    reached = verdict("node-steps per second relative to a plain loop", one / ours, 60, at_most=False)
    print(f"  with graph, batches and mixing: {one * NODES / everything:.0f}")
    workers.close()
    return reached


def _few() -> bool:
    """Whole rounds of 100 models: more threads must not make them slower, nor all that surrounds the arithmetic."""
    pools = Workers(1), Workers()
    one, every, plain = interleaved(*(_rounds(pool) for pool in pools), _numpy_rounds(), repeat=300)
    print(
        f"a round of {FEW}: {one * 1e6:.0f} us on one thread, {every * 1e6:.0f} us on all, {plain * 1e6:.0f} us in NumPy"
    )
    for pool in reversed(pools):
        pool.close()
    reached = verdict(f"a round of {FEW} models on all threads relative to one thread", every / one, 1.1, at_most=True)
    return (
        verdict(f"a round of {FEW} models relative to a plain NumPy loop", every / plain, 0.5, at_most=True) and reached
    )


def _rounds(workers: Workers) -> Callable[[], object]:
    experiment = _experiment(FEW)
    setup = prepare(experiment, 1)
    learner, x, rounds = Stacked(setup.task, workers), setup.initial.repeat(FEW, 1), count()
    out = torch.empty_like(x)

    def one() -> None:
        t = next(rounds)
        plan = plan_round(experiment, setup.streams, t)
        index = torch.from_numpy(setup.batches.index(setup.streams, t))
        learner.sgd(x, {}, index, experiment.algorithm.step, [0] * FEW)
        x.copy_(mix(plan.weights, x, workers, out))

    one()
    return one


def _numpy_rounds() -> Callable[[], object]:
    """The same arithmetic, node by node: a step of logistic regression each, then the averages."""
    experiment = _experiment(FEW)
    setup = prepare(experiment, 1)
    inputs, targets = (tensor.numpy() for tensor in setup.task.train)
    weight, bias = (t.repeat(FEW, *[1] * t.dim()).numpy() for t in setup.task.module.state_dict().values())
    rounds, rows = count(), np.arange(8)

    def one() -> None:
        t = next(rounds)
        plan = plan_round(experiment, setup.streams, t)
        index = setup.batches.index(setup.streams, t)[:, 0]
        for i in range(FEW):
            a, y = inputs[index[i]], targets[index[i]]
            z = a @ weight[i].T + bias[i]
            p = np.exp(z - z.max(1, keepdims=True))
            p /= p.sum(1, keepdims=True)
            p[rows, y] -= 1
            weight[i] -= 0.05 / 8 * (p.T @ a)
            bias[i] -= 0.05 / 8 * p.sum(0)
        weight[:] = (plan.weights @ weight.reshape(FEW, -1)).reshape(weight.shape)
        bias[:] = plan.weights @ bias

    return one

"""10,000 small models: node-steps per second against a plain loop over nn.Module and torch.optim.SGD, in one run."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

import epidemic as ep
from benchmarks.timing import best, verdict
from epidemic.host.mixture import mix
from epidemic.host.plan import plan_round
from epidemic.host.setup import prepare
from epidemic.learner import Stacked
from epidemic.workers import Workers

NODES = 10_000


def run() -> bool:
    workers = Workers()
    experiment = ep.Experiment(
        nodes=NODES, topology=ep.ELLocal(14), data=ep.Synthetic(features=64, classes=10, samples=8 * NODES), partition=ep.IID(),
        model=ep.Logistic(), algorithm=ep.LocalSGD(lr=0.05, batch_size=8), runtime=ep.Runtime(strategy="stacked"),
    )  # fmt: skip
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
        learner.sgd(x, None, index, step, [0] * NODES)

    def whole_round() -> None:
        t = next(rounds)
        plan = plan_round(experiment, setup.streams, t)
        drawn = torch.from_numpy(setup.batches.index(setup.streams, t))
        learner.sgd(x, None, drawn, step, [0] * NODES)
        mix(plan.weights, x, workers, out)

    train()
    times = [(best(loop, 2) / len(plain), best(train, 2) / NODES, best(whole_round, 2)) for _ in range(8)]
    one, ours, everything = (min(column) for column in zip(*times, strict=True))
    print(
        f"plain loop {one * 1e6:.0f} us a node-step, ours {ours * 1e6:.2f} us; whole rounds {1 / everything:.1f} a second"
    )
    reached = verdict("node-steps per second relative to a plain loop", one / ours, 60, at_most=False)
    print(f"  with graph, batches and mixing: {one * NODES / everything:.0f}")
    workers.close()
    return reached

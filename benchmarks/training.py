"""GN-LeNet, 96 nodes: the training phase against the machine's own matrix multiplication, and the rest of a round against training.

Both are measured in turn in one run. 68.9 MFLOP is one sample forward and backward.
"""

from __future__ import annotations

import numpy as np
import torch

import epidemic as ep
from benchmarks.sizes import sized
from benchmarks.timing import best, verdict
from epidemic.core.rng import Streams
from epidemic.core.workers import Workers, available_threads
from epidemic.data import Dataset, Samples
from epidemic.learner import PerNode
from epidemic.record import Spread
from epidemic.runtime.counters import Counters
from epidemic.runtime.mixing_arithmetic import mix
from epidemic.runtime.plan import plan_round
from epidemic.runtime.setup import prepare

FLOP_PER_SAMPLE = 68.9e6
NODES, STEPS, BATCH = sized(96, 16), sized(3, 1), 8


def pictures(size: int = sized(5000, 200)) -> Dataset:
    """Noise in the shape of CIFAR-10; what is computed does not depend on what is in the pictures."""
    stream = Streams(0)("pictures")
    x = stream.integers(256, size, 3, 32, 32).astype(np.uint8)
    y = stream.integers(10, size).astype(np.int64)
    return Dataset(Samples(x, y), Samples(x[:100], y[:100]), tuple(map(str, range(10))), 2 / 255, -1.0)


def run() -> bool:
    workers = Workers()
    data = pictures()
    reached = []
    side = sized(2048, 256)
    a, b = torch.randn(side, side), torch.randn(side, side)
    for topology in (ep.ELLocal(7), ep.Complete()):
        experiment = ep.Experiment(
            nodes=NODES, topology=topology, data=data, partition=ep.IID(), model=ep.GNLeNet(),
            algorithm=ep.LocalSGD(lr=0.01, local_steps=STEPS, batch_size=BATCH), runtime=ep.Runtime(strategy="per-node"),
        )  # fmt: skip
        setup = prepare(experiment, 1, data)
        learner = PerNode(setup.task, workers)
        x = setup.initial.repeat(NODES, 1)
        out = torch.empty_like(x)
        index = torch.from_numpy(setup.batches.index(setup.streams, 0))
        step, counters, rounds = experiment.algorithm.step, Counters.zero(NODES), iter(range(10**9))

        def multiply() -> None:
            torch.set_num_threads(available_threads())
            torch.mm(a, b)
            torch.set_num_threads(1)

        def train(x=x, index=index, learner=learner, step=step) -> None:
            learner.sgd(x, {}, index, step, [0] * NODES)

        def rest(experiment=experiment, setup=setup, x=x, out=out, counters=counters, rounds=rounds) -> None:
            t = next(rounds)
            plan = plan_round(experiment, setup.streams, t)
            setup.batches.index(setup.streams, t)
            mix(plan.weights, x, workers, out)
            counters.count(plan, 4 * x.shape[1])
            counters.traffic()
            Spread.of(np.zeros(NODES))

        train()
        times = np.array([[best(multiply, 3), best(train, 1), best(rest, 2)] for _ in range(sized(6, 1))]).min(axis=0)
        machine = 2 * side**3 / times[0]
        training = NODES * STEPS * BATCH * FLOP_PER_SAMPLE / times[1]
        print(
            f"{type(topology).__name__}: matrix multiplication {machine / 1e9:.0f} GFLOP/s, training {training / 1e9:.0f} GFLOP/s, a round {times[1]:.2f} s"
        )
        reached += [
            verdict("  training relative to matrix multiplication", training / machine, 0.65, at_most=False),
            verdict("  the rest of a round relative to training", times[2] / times[1], 0.05, at_most=True),
        ]
    workers.close()
    return all(reached)

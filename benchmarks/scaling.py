"""Cost of a round against the number of nodes and against s: linear in both."""

from __future__ import annotations

import torch

import epidemic as ep
from benchmarks.sizes import sized
from benchmarks.timing import best
from epidemic.core.workers import Workers
from epidemic.learner import Stacked
from epidemic.runtime.mixing_arithmetic import mix
from epidemic.runtime.plan import plan_round
from epidemic.runtime.setup import prepare


def run() -> bool:
    workers = Workers()
    print("logistic regression, 64 features, 10 classes; microseconds per node and round")
    print(f"{'nodes':>8} {'s':>4} {'train':>8} {'rest':>8} {'all':>8}")
    sizes = [(100, 14), (1_000, 14), (10_000, 14), (100_000, 14), (10_000, 3), (10_000, 7), (10_000, 28), (10_000, 56)]
    for n, s in sized(sizes, [(100, 14), (200, 7)]):
        experiment = ep.Experiment(
            nodes=n, topology=ep.ELLocal(s), data=ep.Synthetic(samples=8 * n), partition=ep.IID(), model=ep.Logistic(),
            algorithm=ep.LocalSGD(lr=0.05, batch_size=8), runtime=ep.Runtime(strategy="stacked"),
        )  # fmt: skip
        setup = prepare(experiment, 1)
        learner, x = Stacked(setup.task, workers), setup.initial.repeat(n, 1)
        out, rounds = torch.empty_like(x), iter(range(10**9))
        index = torch.from_numpy(setup.batches.index(setup.streams, 0))

        def train(learner=learner, x=x, index=index, experiment=experiment, n=n) -> None:
            learner.sgd(x, {}, index, experiment.algorithm.step, [0] * n)

        def rest(experiment=experiment, setup=setup, x=x, out=out, rounds=rounds) -> None:
            t = next(rounds)
            plan = plan_round(experiment, setup.streams, t)
            setup.batches.index(setup.streams, t)
            mix(plan.weights, x, workers, out)

        train()
        a, b = best(train, 4) / n * 1e6, best(rest, 4) / n * 1e6
        print(f"{n:>8,} {s:>4} {a:>8.2f} {b:>8.2f} {a + b:>8.2f}")
    workers.close()
    return True

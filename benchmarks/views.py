"""EL-Local on partial views against EL-Local with full knowledge: whole rounds of 10,000 small models."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import torch

import epidemic as ep
from benchmarks.sizes import sized
from benchmarks.timing import interleaved, verdict
from epidemic.core.workers import Workers
from epidemic.learner import Stacked
from epidemic.runtime.mixing_arithmetic import mix
from epidemic.runtime.plan import plan_round
from epidemic.runtime.setup import prepare

NODES, S = sized((10_000, 14), (200, 7))


def run() -> bool:
    workers = Workers()
    services = {
        "full knowledge": None,
        "cyclon": ep.Cyclon(),
        "jelasity, swapper": ep.Jelasity(),
        "jelasity, healer": ep.Jelasity(discard="healer"),
        "jelasity, blind": ep.Jelasity(discard="blind"),
        "spray, a = 2": ep.Spray(a=2),
    }
    known = _experiment(None)
    setup = prepare(known, 1)
    learner = Stacked(setup.task, workers)
    x = setup.initial.repeat(NODES, 1)
    out = torch.empty_like(x)

    def rounds_of(view: object) -> Callable[[], None]:
        experiment, rounds = _experiment(view), count()

        def whole_round() -> None:
            t = next(rounds)
            plan = plan_round(experiment, setup.streams, t)
            index = torch.from_numpy(setup.batches.index(setup.streams, t))
            learner.sgd(x, {}, index, experiment.algorithm.step, [0] * NODES)
            mix(plan.weights, x, workers, out)

        return whole_round

    full, *others = interleaved(*map(rounds_of, services.values()), repeat=12)
    print(f"n = {NODES}, s = {S}, logistic regressions: whole rounds with full knowledge take {full * 1e3:.0f} ms")
    reached = [
        verdict(f"{name}, {took * 1e3:.0f} ms, relative to full knowledge", took / full, 4, at_most=True)
        for name, took in zip(list(services)[1:], others, strict=True)
    ]
    workers.close()
    return all(reached)


def _experiment(view: object) -> ep.Experiment:
    return ep.Experiment(
        nodes=NODES, topology=ep.ELLocal(S, view=view), data=ep.Synthetic(features=64, classes=10, samples=8 * NODES), partition=ep.IID(),
        model=ep.Logistic(), algorithm=ep.LocalSGD(lr=0.05, batch_size=8), runtime=ep.Runtime(strategy="stacked"),
    )  # fmt: skip

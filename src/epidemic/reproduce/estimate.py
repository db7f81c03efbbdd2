"""What a set of runs would cost, before any of it runs: time by timing a few rounds on random data, bytes by counting."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from epidemic.batch import Job
from epidemic.callbacks import Callback
from epidemic.data import IID, Dataset, Samples
from epidemic.engine import simulate
from epidemic.experiment import Eval, Experiment
from epidemic.measure import measure
from epidemic.models import Model
from epidemic.record import HEADER_BYTES
from epidemic.topology import Ring

PROBE_NODES = 16
SMALL_MODEL = 50_000  # parameters; the time of smaller ones depends on how many nodes are trained together
PROBE_TESTS = 200

SHAPES: dict[str, tuple[tuple[int, ...], int, int]] = {  # by kind of data: input shape, classes, test samples
    "fashion": ((1, 14, 14), 10, 2000),
    "digits": ((1, 8, 8), 10, 360),
    "cifar10": ((3, 32, 32), 10, 10_000),
    "femnist": ((1, 28, 28), 62, 80_000),
}


class Cost(msgspec.Struct, frozen=True):
    """Of one run, all its seeds."""

    seconds: float
    sent_per_node: float  # bytes that a node would send over the network, one seed
    disk: float  # bytes of its directory


class _Stopwatch(Callback):
    """The time of a round, without the first ones, which are slower."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def advanced(self, rounds_done: int, x: object) -> None:
        self.times.append(time.perf_counter())


def costs(jobs: Sequence[Job]) -> dict[Path, Cost]:
    """The cost of every job; rates are measured once for each model and data shape."""
    rates: dict[str, tuple[float, float, int]] = {}
    found = {}
    for job in jobs:
        experiment = job.experiment
        kind = str(msgspec.to_builtins(experiment.data)["kind"])
        key = f"{kind} {experiment.model} {experiment.algorithm.local_steps} {experiment.algorithm.batch_size}"
        if key not in rates:
            rates[key] = _rates(experiment, kind)
        train, evaluate, parameters = rates[key]
        tests = SHAPES[kind][2]
        watched = tests if experiment.eval.samples == "all" else min(experiment.eval.samples, tests)
        evaluations = experiment.rounds // experiment.eval.every
        seeds, n = len(experiment.seeds), experiment.nodes
        seconds = seeds * n * (train * experiment.rounds + evaluate * (evaluations * watched + tests))
        sent = measure(experiment.topology, n, rounds=1).messages_per_node * experiment.rounds
        found[job.path] = Cost(seconds, sent * (4 * parameters + HEADER_BYTES), seeds * n * 4 * parameters * 2.0)
    return found


def _rates(experiment: Experiment, kind: str) -> tuple[float, float, int]:
    """Seconds of a node's round, seconds of a node's test sample, parameters."""
    shape, classes, _ = SHAPES[kind]
    rng = np.random.default_rng(1)

    def some(size: int) -> Samples:
        return Samples(rng.integers(0, 256, (size, *shape), dtype=np.uint8), np.arange(size) % classes)

    assert isinstance(experiment.model, Model)  # the paper's experiments name theirs
    parameters = sum(p.numel() for p in experiment.model.build(shape, classes).parameters())
    n = experiment.nodes if parameters < SMALL_MODEL else PROBE_NODES
    data = Dataset(some(64 * n), some(PROBE_TESTS), tuple(map(str, range(classes))), 2 / 255, -1.0)
    probe = msgspec.structs.replace(
        experiment, nodes=n, rounds=4, seeds=(1,), data=data, partition=IID(), topology=Ring(), eval=Eval(every=100)
    )
    watch = _Stopwatch()
    simulate(probe, callbacks=watch)
    train = min(b - a for a, b in zip(watch.times, watch.times[1:], strict=False)) / n
    # evaluated: once on one model, then twice on all models with their average (at the end, and on the full test set)
    evaluate = max(time.perf_counter() - watch.times[-1], 1e-9) / (PROBE_TESTS * 2 * (n + 1))
    return train, evaluate, parameters

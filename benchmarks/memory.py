"""Peak memory of the paper's two experiments with 96 nodes: real runs, each in a process of its own.

CIFAR-10 is the real one if $CIFAR10 says where it is, otherwise noise of the same size.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np

import epidemic as ep
from benchmarks.sizes import sized
from benchmarks.timing import verdict
from epidemic.data import Dataset, Samples


def peak_gigabytes() -> float:
    """Of this process alone; getrusage would count the parent that it was forked from, too."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024 / 1e9


def _noise(train: int, test: int, shape: tuple[int, ...], classes: int) -> Dataset:
    rng = np.random.default_rng(0)

    def draw(size: int) -> Samples:
        x = rng.integers(0, 256, (size, *shape), dtype=np.uint8)
        return Samples(x, rng.integers(0, classes, size))

    return Dataset(draw(train), draw(test), tuple(map(str, range(classes))), 2 / 255, -1.0)


def _cifar10() -> ep.Experiment:
    path = os.environ.get("CIFAR10")
    data = ep.CIFAR10(path=path) if path else _noise(sized(50_000, 960), sized(10_000, 100), (3, 32, 32), 10)
    return ep.Experiment(
        nodes=sized(96, 8), rounds=sized(3, 1), topology=ep.ELLocal(7), data=data, model=ep.GNLeNet(), algorithm=ep.LocalSGD(0.05, local_steps=3, batch_size=8),
        eval=ep.Eval(every=3, samples=100), partition=ep.Dirichlet(),
    )  # fmt: skip


def _femnist() -> ep.Experiment:
    return ep.Experiment(
        nodes=sized(96, 8), rounds=sized(2, 1), topology=ep.ELLocal(7), data=_noise(sized(100_000, 400), 50, (1, 28, 28), 62), model=ep.FEMNISTCNN(),
        algorithm=ep.LocalSGD(0.1, local_steps=7, batch_size=16), eval=ep.Eval(every=2, samples=50), partition=ep.IID(),
    )  # fmt: skip


EXPERIMENTS = {"cifar10": (_cifar10, 1.2), "femnist": (_femnist, 3.5)}


def run() -> bool:
    reached = []
    for name, (_, limit) in EXPERIMENTS.items():
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.memory", name], capture_output=True, text=True, check=True
        )
        reached.append(
            verdict(f"{name}, 96 nodes: peak resident memory in GB", float(done.stdout), limit, at_most=True)
        )
    return all(reached)


if __name__ == "__main__":
    experiment = EXPERIMENTS[sys.argv[1]][0]()
    data = experiment.load_data()
    test = Samples(data.test.inputs[:100], data.test.targets[:100])  # the full test set costs time, not memory
    ep.simulate(experiment, data=Dataset(data.train, test, data.classes, data.scale, data.shift))
    print(peak_gigabytes())

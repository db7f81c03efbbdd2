"""Your own model on your own data: 24 nodes learn to tell two spirals apart."""

import numpy as np
from torch import nn

import epidemic as ep


def spirals(size, seed):
    rng = np.random.default_rng(seed)
    label, t = rng.integers(0, 2, size), rng.uniform(0.5, 3, size)
    angle = 3 * t + np.pi * label
    return np.stack([t * np.cos(angle), t * np.sin(angle)], axis=1) + rng.normal(0, 0.05, (size, 2)), label


experiment = ep.Experiment(
    name="spirals", nodes=24, rounds=200, topology=ep.ELLocal(s=4), algorithm=ep.LocalSGD(lr=0.1, local_steps=5, momentum=0.9),
    data=(spirals(2400, 1), spirals(600, 2)), partition=ep.Dirichlet(alpha=0.5, min_samples=5), eval=ep.Eval(every=50),
    model=lambda: nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 2)),
)  # fmt: skip
run = ep.simulate(experiment)
for record in run.records:
    print(
        f"round {record.round:3d}: accuracy {100 * record.accuracy.mean:.1f} %, worst node {100 * record.accuracy.min:.1f} %"
    )

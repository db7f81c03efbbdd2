"""The data that an experiment would train on: its own where it is there, and otherwise random samples in the shape of what is known."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from epidemic.core.errors import BadInput
from epidemic.data import Dataset, Samples, Source
from epidemic.data.base import KnownSize
from epidemic.experiment import Experiment

PROBE_TESTS = 200
PROBE_SAMPLES = 64  # that a node has where the data is not there, unless that were more than
MOST_SAMPLES = 20_000  # in all


class SampleSizes(NamedTuple):
    """How many bytes the training, test and evaluated samples take."""

    train: int
    test: int
    evaluated: int = 0  # those that are evaluated while training


class SampleSource(NamedTuple):
    """The data of an experiment, or what stands in for it."""

    data: Dataset | None  # None: it is not there, but known
    sizes: SampleSizes
    evaluated: int  # samples that may be evaluated while training
    tests: int


def source_of(experiment: Experiment) -> SampleSource:
    """The data, and how much of it there is."""
    try:
        data = experiment.load_data()
    except BadInput:
        known = size_of(experiment)
        if known is None:
            raise
        shape, _, train, tests = known
        each = math.prod(shape) + 8
        watched = watched_of(experiment, tests)
        return SampleSource(None, SampleSizes(train * each, tests * each, watched * each), tests, tests)
    evaluated, tests = len(data.evaluated), len(data.test)
    watched = math.ceil(bytes_of(data.evaluated) * watched_of(experiment, evaluated) / max(1, evaluated))
    return SampleSource(data, SampleSizes(bytes_of(data.train), bytes_of(data.test), watched), evaluated, tests)


def watched_of(experiment: Experiment, evaluated: int) -> int:
    """How many samples are evaluated while training, of so many that could be."""
    wanted = experiment.eval.samples
    return evaluated if wanted == "all" else min(wanted, evaluated)


def bytes_of(samples: Samples) -> int:
    """Return how many bytes the inputs and targets take."""
    return int(samples.inputs.nbytes + samples.targets.nbytes)


def size_of(experiment: Experiment) -> KnownSize | None:
    """Input shape, classes, and how many samples for training and testing its data is known to have; None if nobody knows."""
    return experiment.data.size if isinstance(experiment.data, Source) else None


def kind_of(experiment: Experiment) -> str:
    """What its data is called; empty for arrays of a user's own."""
    table = experiment.table()["data"]
    return str(table.get("kind", "")) if isinstance(table, dict) else ""


def stand_in(experiment: Experiment) -> Dataset:
    """Random samples in the shape of data that is known."""
    known = size_of(experiment)
    assert known is not None
    shape, classes, _, _ = known
    rng = np.random.default_rng(1)

    def some(size: int) -> Samples:
        return Samples(rng.integers(0, 256, (size, *shape), dtype=np.uint8), np.arange(size) % classes)

    n = experiment.nodes
    train = some(max(n, min(PROBE_SAMPLES * n, MOST_SAMPLES)))
    return Dataset(train, some(PROBE_TESTS), tuple(map(str, range(classes))), 2 / 255, -1.0)

"""How a model is cut into parts for messages that carry one each."""

from __future__ import annotations

from typing import Any

import numpy as np

from epidemic.core.errors import BadInput
from epidemic.core.rng import Streams
from epidemic.experiment import Experiment
from epidemic.topology import fragments_of


def parts_of(experiment: Experiment, numbers: int, streams: Streams) -> list[np.ndarray[Any, np.dtype[np.int64]]]:
    """The coordinates of each part of a model: a keyed permutation, cut evenly; the same for all nodes.

    Empty if models travel whole. A method whose messages carry parts may have a single one: all numbers.
    """
    parts = check_parts(experiment, numbers)
    if parts == 1:
        free = experiment.free
        return [np.arange(numbers)] if free is not None and any(kind.part for kind in free.kinds) else []
    return [np.sort(part) for part in np.array_split(streams("parts").permutation(numbers), parts)]


def check_parts(experiment: Experiment, numbers: int) -> int:
    """The number of parts that models of so many numbers are cut into; raises BadInput if that is impossible."""
    parts = fragments_of(experiment.topology) if experiment.free is None else experiment.free.parts
    if parts > max(1, numbers):
        raise BadInput(f"a model of {numbers} numbers cannot be cut into {parts} parts; use at most {numbers}")
    return parts

"""What counts as a round: a round or, for asynchronous methods, a training of each node; and how many are planned.

Experiments are the tables of their files here, so that reading results executes nothing that they name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from epidemic.algorithms import ALGORITHMS, UNSAID_KIND
from epidemic.algorithms.asynchronous import AsynchronousMethod

TRAININGS = "trainings per node"
"""What stands for rounds where a method has none."""


def without_rounds(experiment: Mapping[str, Any]) -> bool:
    """Whether its method has no rounds; what its records call a round is then the number of trainings of a node, mean."""
    algorithm = experiment.get("algorithm")
    kind = algorithm.get("kind", UNSAID_KIND) if isinstance(algorithm, Mapping) else None
    made = ALGORITHMS.get(kind) if isinstance(kind, str) else None
    return made is not None and issubclass(made, AsynchronousMethod)


def round_label(experiments: Sequence[Mapping[str, Any]]) -> str:
    """What an axis of rounds is called."""
    free = [without_rounds(experiment) for experiment in experiments]
    if not any(free):
        return "round"
    return TRAININGS if all(free) else f"round (without rounds: {TRAININGS})"


def rounds_planned(experiment: Mapping[str, Any]) -> int | None:
    """How many it is to have; None where only simulated time or traffic ends it."""
    clock = experiment.get("clock")
    bounds = [clock.get(name) for name in ("stop", "megabytes")] if isinstance(clock, Mapping) else []
    return None if any(bounds) and without_rounds(experiment) else int(experiment.get("rounds", 0))


def of_planned(done: object, experiment: Mapping[str, Any], between: str = "/") -> str:
    """`3/10`, or `3` where nothing is planned."""
    planned = rounds_planned(experiment)
    return str(done) if planned is None else f"{done}{between}{planned}"

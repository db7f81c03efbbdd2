"""What a seed of an experiment does, counted without training: trainings, evaluations and bytes of a node."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec
import numpy as np

from epidemic.core.rng import Streams
from epidemic.experiment import Experiment
from epidemic.runtime.counters import Counters
from epidemic.runtime.plan import plan_round
from epidemic.simulator.dry_run import dry_run

DRAWN = 48
"""So many rounds are planned to count what is sent in them, at most ..."""
DRAWING_SECONDS = 3.0
"""... if that takes no longer."""
DRY_EVALUATIONS = 2
"""So many evaluations of a run under the clock lie in the part that is run without models."""


class Workload(msgspec.Struct, frozen=True):
    """What one seed does, counted without training: trainings, evaluations and bytes sent."""

    trainings: float  # of a node
    evaluations: int
    sent: float  # bytes, per node
    overhead: float = 0.0  # seconds that deciding takes under a clock, besides learning


def sent_in_rounds(experiment: Experiment, message_sizes: Sequence[int], model_bytes: int) -> float:
    """Bytes that a node sends in all rounds, mean, as the run will count them: from the plans of the first rounds; the rest is like them.

    `message_sizes`: of a message's numbers, or of one of each part of the models.
    """
    n, streams = experiment.nodes, Streams(experiment.seeds[0])
    counters, samples = Counters.zero(n), np.ones(n, dtype=np.int64)
    begun, drawn = time.perf_counter(), 0
    while drawn < min(experiment.rounds, DRAWN) and (drawn < 2 or time.perf_counter() - begun < DRAWING_SECONDS):
        counters.count(plan_round(experiment, streams, drawn, samples), message_sizes, model_bytes)
        drawn += 1
    return counters.traffic().total.mean * experiment.rounds / max(drawn, 1)


def workload_in_rounds(experiment: Experiment, message_sizes: Sequence[int], model_bytes: int) -> Workload:
    """Of an experiment without a clock."""
    evaluations = experiment.rounds // experiment.eval.every
    return Workload(experiment.rounds, evaluations, sent_in_rounds(experiment, message_sizes, model_bytes))


def workload_in_time(experiment: Experiment, parameters: int) -> Workload:
    """From the first part of its simulated time, run without models; the rest is like it."""
    assert experiment.clock is not None
    stop, evaluate = experiment.clock.stop, experiment.clock.evaluate
    assert stop > 0  # those that are reproduced end by time
    assert evaluate > 0
    part = min(DRY_EVALUATIONS * evaluate, stop)
    begun = time.perf_counter()
    work = dry_run(experiment, experiment.seeds[0], 4 * parameters, seconds=part)
    overhead = (time.perf_counter() - begun) * stop / part
    trainings = work.tally.steps / experiment.nodes / experiment.algorithm.local_steps
    sent = work.tally.bytes_sent / experiment.nodes
    return Workload(trainings * stop / part, round(stop / evaluate), sent * stop / part, overhead)


def what_decides_times(experiment: Experiment) -> bytes:
    """Under a clock, what decides when things happen: neither rates of learning nor samples do."""
    table = experiment.table()
    algorithm = {name: value for name, value in table["algorithm"].items() if name != "lr"}
    left = {name: value for name, value in table.items() if name not in ("name", "seeds", "data", "algorithm")}
    return msgspec.json.encode([algorithm, left])

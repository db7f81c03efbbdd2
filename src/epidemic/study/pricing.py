"""What many runs would cost, whose data need not be there: `reproduce --dry-run`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from epidemic.data import IID
from epidemic.estimate.measuring import (
    TrainingCost,
    Workload,
    exchange_of,
    in_rounds,
    kind_of,
    learning_of,
    size_of,
    stand_in,
    watched_of,
    what_decides_times,
    workload_in_rounds,
    workload_in_time,
)
from epidemic.estimate.planning import seconds_of
from epidemic.study.batch import Job
from epidemic.topology import fragments_of


class RunCost(msgspec.Struct, frozen=True):
    """Of one run, all its seeds."""

    seconds: float
    sent_per_node: float  # bytes that a node would send over the network, one seed
    disk: float  # bytes of its directory


def costs(jobs: Sequence[Job]) -> dict[Path, RunCost]:
    """The cost of every job, whose data need not be there; rates are measured once for what takes the same time."""
    known: dict[str, TrainingCost] = {}
    timed: dict[bytes, Workload] = {}
    found = {}
    for job in jobs:
        given = job.experiment
        data = stand_in(given)
        experiment = msgspec.structs.replace(given, data=data, partition=IID())
        # A rate takes no time, and methods without rounds are measured alike.
        algorithm = {**in_rounds(given).table()["algorithm"], "lr": None}
        key = f"{kind_of(given)} {given.model} {given.nodes} {algorithm} {given.compression} {given.aggregation} {fragments_of(given.topology)}"
        if key not in known:
            known[key] = learning_of(experiment, data)
        learning = known[key]
        known_size = size_of(given)
        assert known_size is not None
        tests = known_size[3]
        if given.clock is None:
            work = workload_in_rounds(given, learning.message_sizes, learning.model_bytes)
            seconds = seconds_of(experiment, learning, exchange_of(experiment, learning), tests, tests)[2]
        else:
            same = what_decides_times(given)
            work = timed[same] = timed.get(same) or workload_in_time(given, learning.parameters)
            watched = work.evaluations * watched_of(given, tests)
            evaluating = (given.nodes + 1) * learning.evaluate * (watched + tests)
            training = given.nodes * learning.train * work.trainings
            seconds = len(given.seeds) * (training + evaluating + work.overhead)
        disk = len(given.seeds) * given.nodes * 4 * learning.parameters * 2.0
        found[job.path] = RunCost(seconds, work.sent, disk)
    return found

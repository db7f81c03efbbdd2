"""What it takes to reach an accuracy: simulated seconds, rounds, local steps and bytes (TTA, RTA, STA, BTA).

It is reached at the first evaluation that has it: nothing is read between two evaluations, and what never has it takes infinitely
long. The mean over nodes hides those that are left behind, so the nodes are looked at one by one too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from epidemic.record import Record
from epidemic.report.statistics import Interval, curve, first_reaching, places_of

FIRST, MOST = 0.1, 0.9
"""The shares of the nodes whose time is told: the quickest tenth, and all but the slowest tenth."""


class CostToTarget(msgspec.Struct, frozen=True):
    """Until an accuracy is reached; everything is infinite if it never is."""

    rounds: float = math.inf
    bytes: float = math.inf  # sent per node
    seconds: float | None = None  # simulated; None: there is no clock
    steps: float | None = None  # of a node, mean

    @property
    def reached(self) -> bool:
        """Whether the target was reached at all."""
        return math.isfinite(self.rounds)

    @staticmethod
    def at(record: Record) -> CostToTarget:
        """What was spent until an evaluation."""
        time = record.time
        sent = record.bytes.total.mean
        return (
            CostToTarget(record.round, sent)
            if time is None
            else CostToTarget(record.round, sent, time.seconds, time.steps)
        )

    @staticmethod
    def never(records: Sequence[Record]) -> CostToTarget:
        """Of a seed that never got there."""
        return CostToTarget() if records[-1].time is None else CostToTarget(seconds=math.inf, steps=math.inf)


def cost(records: Sequence[Record], target: float) -> CostToTarget:
    """What one seed took to reach a mean accuracy over nodes."""
    found = first_reaching(records, target)
    return CostToTarget.never(records) if found is None else CostToTarget.at(found)


def mean_cost(by_seed: Sequence[Sequence[Record]], target: float) -> tuple[CostToTarget, list[int]]:
    """What it takes until the mean over seeds reaches the target, and the round of each seed then (none if it never does)."""
    found = curve(by_seed, "accuracy")
    at = next((p for p, a in zip(found.places, found.mean, strict=True) if a >= target - 1e-12), None)
    if at is None:
        return CostToTarget.never(by_seed[0]), []
    there = [records[places.index(at)] for places, records in zip(places_of(by_seed), by_seed, strict=True)]
    spent = [CostToTarget.at(record) for record in there]
    timed = all(one.seconds is not None for one in spent)
    mean = CostToTarget(
        found.rounds[found.places.index(at)],
        _mean([one.bytes for one in spent]),
        _mean([one.seconds or 0.0 for one in spent]) if timed else None,
        _mean([one.steps or 0.0 for one in spent]) if timed else None,
    )
    return mean, [record.round for record in there]


def over_seeds(values: Sequence[float | None]) -> Interval | None:
    """The mean over seeds with its interval; None where a seed never got there, or nobody knows."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    return Interval.of(known) if known and len(known) == len(values) else None


def seconds_in_all(by_seed: Sequence[Sequence[Record]]) -> Interval | None:
    """Simulated seconds by the last evaluation, over the seeds; None without a clock."""
    return over_seeds([None if (time := records[-1].time) is None else time.seconds for records in by_seed])


def node_seconds(records: Sequence[Record], target: float) -> list[float]:
    """For each node the simulated time of the first evaluation at which its own model has the accuracy. Empty where that is not recorded."""
    found: dict[int, float] = {}
    nodes = 0
    for record in records:
        for node, accuracy in enumerate([] if record.time is None else record.time.accuracies):
            nodes = max(nodes, node + 1)
            if accuracy >= target and record.time is not None:
                found.setdefault(node, record.time.seconds)
    return [found.get(node, math.inf) for node in range(nodes)]


def until(times: Sequence[float], share: float) -> float | None:
    """When at least this share of the nodes had got there, infinite if never; None of no nodes."""
    return sorted(times)[max(math.ceil(share * len(times) - 1e-9), 1) - 1] if times else None


def nodes_until(by_seed: Sequence[Sequence[Record]], target: float, share: float) -> Interval | None:
    """The same over the seeds; None where a seed never got so far, or nodes were not recorded."""
    return over_seeds([until(node_seconds(records, target), share) for records in by_seed])


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)

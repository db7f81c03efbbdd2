"""Numbers over several seeds: means with Student-t intervals, and curves of them."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from functools import cache

import msgspec
import numpy as np
import scipy.special

from epidemic.record import Record

LARGEST = 1e150
"""Squares of numbers below this, and sums of them, are numbers too."""


class Interval(msgspec.Struct, frozen=True):
    """A mean over seeds and the half-width of its 95 % interval (None for a single seed)."""

    mean: float
    half_width: float | None
    seeds: int

    @staticmethod
    def of(values: Sequence[float]) -> Interval:
        """Student t with m - 1 degrees of freedom."""
        m = len(values)
        if (
            LARGEST < max(map(abs, values)) < math.inf
        ):  # squares and sums would overflow; a power of two changes no digit
            small = Interval.of([math.ldexp(v, -600) for v in values])
            return Interval(_large(small.mean), None if small.half_width is None else _large(small.half_width), m)
        mean = math.fsum(values) / m
        if m == 1:
            return Interval(mean, None, 1)
        sd = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (m - 1))
        return Interval(mean, _quantile(m - 1) * sd / math.sqrt(m), m)


def _large(value: float) -> float:
    """A number of up to 600 more binary digits, or the largest float."""
    return min(value, sys.float_info.max / 2.0**600) * 2.0**600


@cache
def _quantile(freedom: int) -> float:
    """Student's t that 97.5 % stay below."""
    return float(scipy.special.stdtrit(freedom, 0.975))


class Curve(msgspec.Struct, frozen=True):
    """A quantity at each evaluation: mean over seeds and half-width of its interval (zero for one seed)."""

    rounds: list[float]
    mean: list[float]
    half_width: list[float]
    places: list[
        float
    ]  # what tells which evaluation it is: the round or, if seeds were evaluated at the same times, the seconds


def accuracy_of(record: Record) -> float:
    """Return the mean accuracy over nodes, or NaN where there is none."""
    return record.accuracy.mean if record.accuracy is not None else math.nan


def disagreement_of(record: Record) -> float:
    """D(X); NaN if unknown (records of deployed nodes)."""
    return math.nan if record.disagreement is None else record.disagreement


def metric_of(record: Record, name: str) -> float:
    """A user's own metric, mean over nodes; not a number where it has no value."""
    found = record.metrics.get(name)
    return math.nan if found is None or found.mean is None else found.mean


def places_of(by_seed: Sequence[Sequence[Record]]) -> list[list[float]]:
    """Keys that tell which evaluations of several seeds belong together.

    The round (with a small increment for each further evaluation in it); or the simulated seconds, if seeds were evaluated at the same times. For asynchronous
    methods (where `round` counts trainings) or with random speeds, only one of the two is the same in all seeds.
    """
    rounds = [_numbered([r.round for r in records]) for records in by_seed]
    times = [[r.time.seconds for r in records if r.time is not None] for records in by_seed]
    longest = sorted(range(len(by_seed)), key=lambda i: len(by_seed[i]))[-2:]
    if all(len(times[i]) == len(by_seed[i]) for i in range(len(by_seed))):
        same_times, same_rounds = (set.intersection(*(set(found[i]) for i in longest)) for found in (times, rounds))
        if len(same_times) >= len(same_rounds):
            return times
    return rounds


def _numbered(rounds: Sequence[int]) -> list[float]:
    found: list[float] = []
    for i, round in enumerate(rounds):
        found.append(found[-1] + MORE if i and rounds[i - 1] == round else round)
    return found


MORE = 2.0**-20
"""Increment of the key between two evaluations in one round."""


READ: dict[str, Callable[[Record], float]] = {
    "accuracy": accuracy_of,
    "loss": lambda r: r.loss.mean,
    "accuracy_sd": lambda r: math.nan if r.accuracy is None else r.accuracy.sd,
    "loss_sd": lambda r: r.loss.sd,
    "disagreement": disagreement_of,
    "rounds": lambda r: r.round,
    "bytes": lambda r: r.bytes.total.mean,
    "seconds": lambda r: math.nan if r.time is None else r.time.seconds,
    "steps": lambda r: math.nan if r.time is None else r.time.steps,
    "busy": lambda r: math.nan if r.time is None else r.time.busy,
    "uplink": lambda r: math.nan if r.time is None or r.time.uplink is None else r.time.uplink,
    "staleness": lambda r: math.nan if r.time is None or r.time.staleness is None else r.time.staleness,
    "staleness_95": lambda r: math.nan if r.time is None or r.time.staleness_95 is None else r.time.staleness_95,
    "online": lambda r: math.nan if r.time is None else r.time.online,
}
"""The quantities that a curve can show, besides a user's own metrics."""

ALWAYS = ("loss", "loss_sd", "rounds", "bytes")
"""Quantities that every record has; a loss that is NaN is shown as such."""


def curve(by_seed: Sequence[Sequence[Record]], value: str, *, partial: bool = False) -> Curve:
    """Mean and interval of a quantity over seeds, from their records.

    `value` is one of `READ`, or metric.NAME for a user's own. Evaluations that not all seeds have are left out or, if `partial`, are the mean of those that have
    them. Unknown values are left out.
    """
    own = value.removeprefix("metric.")
    one = READ[value] if own == value else lambda r: metric_of(r, own)
    tables = [
        {place: (one(r), r.round) for place, r in zip(places, records, strict=True)}
        for places, records in zip(places_of(by_seed), by_seed, strict=True)
    ]
    if value not in ALWAYS:
        tables = [{t: v for t, v in table.items() if not math.isnan(v[0])} for table in tables]
    common = sorted((set.union if partial else set.intersection)(*(set(table) for table in tables)))
    found = [Interval.of([table[t][0] for table in tables if t in table]) for t in common]
    rounds = [_mean_round([table[t][1] for table in tables if t in table]) for t in common]
    return Curve(rounds, [i.mean for i in found], [i.half_width or 0.0 for i in found], common)


def _mean_round(rounds: Sequence[int]) -> float:
    """As it is where all are the same, so that rounds stay whole numbers."""
    return rounds[0] if len(set(rounds)) == 1 else math.fsum(rounds) / len(rounds)


def along(axis: Curve, found: Curve) -> list[float]:
    """Where the evaluations of a curve are on an axis, which is a curve of rounds, seconds, steps or bytes; NaN where that is unknown."""
    known = dict(zip(axis.places, axis.mean, strict=True))
    return [known.get(place, math.nan) for place in found.places]


def first_reaching(records: Sequence[Record], target: float) -> Record | None:
    """The first evaluated round with at least this accuracy."""
    return next((r for r in records if accuracy_of(r) >= target), None)


def best(by_seed: Sequence[Sequence[Record]]) -> tuple[Interval, Interval]:
    """Best accuracy and best loss of each seed, over the seeds."""
    top = Interval.of([float(np.max([accuracy_of(r) for r in records])) for records in by_seed])
    low = Interval.of([min(r.loss.mean for r in records) for records in by_seed])
    return top, low


# -- What it takes to reach an accuracy: simulated seconds, rounds, local steps and bytes (TTA, RTA, STA, BTA) -------
# It is reached at the first evaluation that has it: nothing is read between two evaluations, and what never has it takes infinitely
# long. The mean over nodes hides those that are left behind, so the nodes are looked at one by one too.


FIRST, MOST = 0.1, 0.9
"""The shares of the nodes whose times are reported: the quickest tenth, and all but the slowest tenth."""


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
        """The cost up to an evaluation."""
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
    """The cost until the mean over seeds reaches the target, and the round of each seed then (none if it never does)."""
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
    """The mean over seeds with its interval; None if a seed never reached it, or if it is unknown."""
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

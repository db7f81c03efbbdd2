"""Numbers over several seeds: means with Student-t intervals, and when a target was reached."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache

import msgspec
import numpy as np
import scipy.special

from epidemic.record import Record


class Interval(msgspec.Struct, frozen=True):
    """A mean over seeds and the half-width of its 95 % interval (None for a single seed)."""

    mean: float
    half_width: float | None
    seeds: int

    @staticmethod
    def of(values: Sequence[float]) -> Interval:
        """Student t with m - 1 degrees of freedom."""
        m = len(values)
        mean = math.fsum(values) / m
        if m == 1:
            return Interval(mean, None, 1)
        sd = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (m - 1))
        return Interval(mean, _quantile(m - 1) * sd / math.sqrt(m), m)


@cache
def _quantile(freedom: int) -> float:
    """Student's t that 97.5 % stay below."""
    return float(scipy.special.stdtrit(freedom, 0.975))


class Curve(msgspec.Struct, frozen=True):
    """A quantity against rounds: mean over seeds and half-width of its interval (zero for one seed)."""

    rounds: list[int]
    mean: list[float]
    half_width: list[float]


def accuracy_of(record: Record) -> float:
    """Mean accuracy over nodes."""
    return record.accuracy.mean if record.accuracy is not None else math.nan


def disagreement_of(record: Record) -> float:
    """D(X); not a number where nobody knew it (records of deployed nodes)."""
    return math.nan if record.disagreement is None else record.disagreement


def metric_of(record: Record, name: str) -> float:
    """A user's own metric, mean over nodes; not a number where it has no value."""
    found = record.metrics.get(name)
    return math.nan if found is None or found.mean is None else found.mean


def curve(by_seed: list[list[Record]], value: str, *, partial: bool = False) -> Curve:
    """Mean and interval of a quantity over seeds, from their records.

    `value` is accuracy, loss, their sd over nodes (accuracy_sd, loss_sd), disagreement, bytes, or metric.NAME for a user's own.
    Rounds that not all seeds have are left out or, if `partial`, are the mean of those that have them. Rounds without a known
    value have none.
    """
    read: dict[str, Callable[[Record], float]] = {
        "accuracy": accuracy_of,
        "loss": lambda r: r.loss.mean,
        "accuracy_sd": lambda r: math.nan if r.accuracy is None else r.accuracy.sd,
        "loss_sd": lambda r: r.loss.sd,
        "disagreement": disagreement_of,
        "bytes": lambda r: r.bytes.total.mean,
    }
    own = value.removeprefix("metric.")
    one = read[value] if own == value else lambda r: metric_of(r, own)
    tables = [{r.round: one(r) for r in records} for records in by_seed]
    if own != value or value in ("accuracy", "accuracy_sd", "disagreement"):
        tables = [{t: v for t, v in table.items() if not math.isnan(v)} for table in tables]
    rounds = sorted((set.union if partial else set.intersection)(*(set(table) for table in tables)))
    found = [Interval.of([table[t] for table in tables if t in table]) for t in rounds]
    return Curve(rounds, [i.mean for i in found], [i.half_width or 0.0 for i in found])


def first_reaching(records: list[Record], target: float) -> Record | None:
    """The first evaluated round with at least this accuracy."""
    return next((r for r in records if accuracy_of(r) >= target), None)


def mean_reaching(by_seed: list[list[Record]], target: float) -> tuple[int, float] | None:
    """Round and bytes sent per node at the first evaluation whose mean over seeds reaches the target."""
    found, sent = curve(by_seed, "accuracy"), curve(by_seed, "bytes")
    reached = next((t for t, a in zip(found.rounds, found.mean, strict=True) if a >= target - 1e-12), None)
    return None if reached is None else (reached, sent.mean[sent.rounds.index(reached)])


def best(by_seed: list[list[Record]]) -> tuple[Interval, Interval]:
    """Best accuracy and best loss of each seed, over the seeds."""
    top = Interval.of([float(np.max([accuracy_of(r) for r in records])) for records in by_seed])
    low = Interval.of([min(r.loss.mean for r in records) for records in by_seed])
    return top, low

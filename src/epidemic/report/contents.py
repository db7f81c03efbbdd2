"""What a report shows, found out once for all its sections: runs, their looks, what differs, and what came out of each."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from epidemic.counting import round_label, without_rounds
from epidemic.report.charts import Series
from epidemic.report.palette import LineStyle
from epidemic.report.parts import value_text
from epidemic.report.results import Result, Results, SeedResult
from epidemic.report.settings import ComparedSettings, Scheme, dashed_by, look_of_value, looks
from epidemic.report.statistics import Curve, Interval, accuracy_of, along, curve, metric_of

GIB, MIB = 2**30, 2**20
HOUR = 3600.0
LONG = 10_000.0
"""Simulated seconds from which on charts have hours."""


class Target(msgspec.Struct, frozen=True):
    """The target accuracy for which costs are compared."""

    accuracy: float
    source: str


class Quantity(msgspec.Struct, frozen=True):
    """Something that was measured: accuracy, loss, or a user's own metric."""

    key: str  # as `statistics.curve` knows it
    name: str
    factor: float = 1.0
    unit: str = ""
    digits: int = 4

    @property
    def label(self) -> str:
        """The name of the quantity, with its unit if it has one."""
        return f"{self.name} ({self.unit})" if self.unit else self.name


ACCURACY = Quantity("accuracy", "accuracy", 100.0, "%", 2)
LOSS = Quantity("loss", "loss")


class ReportContents:
    """The runs of a report. Means are over the seeds that have ended (`Result.settled`)."""

    def __init__(self, results: Results, target: float | None = None) -> None:
        settled = [run.settled() for run in results.runs]
        self.results = results
        self._curves: dict[str, list[Curve]] = {}
        self.all = results.runs
        self.runs = [run for run, _ in settled]
        self.notes = [*results.notes, *(note for _, left in settled for note in left)]
        self.notes += [_disconnected(run) for run in results.runs if run.disconnected]
        self.classes = any(map(has_accuracy, self.runs))
        if self.classes:
            self.notes += [_quantities(run) for run in self.runs if not has_accuracy(run)]
        self.ended = all(seed.summary is not None for run in self.runs for seed in run.seeds)
        own = dict.fromkeys(n for run in self.runs for records in run.by_seed for r in records for n in r.metrics)
        self.metrics = [Quantity(f"metric.{name}", name) for name in own]
        self.quantities = [*([ACCURACY] if self.classes else []), LOSS, *self.metrics]
        self.design = results.design
        self.scheme = Scheme.of(self.design, self.scores())
        kinds = [run.kind for run in self.runs]
        self.looks = looks(self.design, kinds, self.scheme)
        self.panel_looks = looks(self.design, kinds, self.scheme, panels=True)
        self.target = self._target(target) if self.classes else None
        largest = max((v for sent in self.curves("bytes") for v in sent.mean), default=0.0)
        self.unit, self.unit_name = (GIB, "GiB") if largest >= GIB else (MIB, "MiB")
        self.timed = [all(r.time is not None for records in run.by_seed for r in records) for run in self.runs]
        self.free = [run.label for run in self.runs if without_rounds(run.experiment)]
        longest = max((v for passed in self.curves("seconds") for v in passed.mean), default=0.0)
        self.time_unit, self.time_name = (HOUR, "h") if longest >= LONG else (1.0, "s")

    @property
    def clock(self) -> bool:
        """Whether there is simulated time to show."""
        return any(self.timed)

    @property
    def round_label(self) -> str:
        """What an axis of rounds is called."""
        return round_label([run.experiment for run in self.runs])

    @property
    def time_label(self) -> str:
        """What an axis of simulated time is called."""
        return f"simulated time ({self.time_name})"

    @property
    def about_rounds(self) -> str:
        """What a round is where methods have none; nothing where all have."""
        if not self.free:
            return ""
        named = ", ".join(self.free[:6]) + (f" and {len(self.free) - 6} more" if len(self.free) > 6 else "")
        return (
            f"{named}: no rounds; what stands for them is the number of trainings of a node (mean, rounded down). What methods train and"
            " send in one differs, so compare them by simulated time and traffic, too."
        )

    @property
    def main(self) -> Quantity:
        """The quantity by which runs are judged: the first of those shown."""
        return self.quantities[0]

    def scores(self) -> list[float]:
        """The final value of each run, in the quantity by which runs are judged."""
        found = [self.final(run, self.main) for run in self.runs]
        return [math.nan if one is None else one.mean for one in found]

    def final(self, run: Result, what: Quantity) -> Interval | None:
        """The final value of a run: on all test samples if every run has ended, otherwise from its last evaluation."""
        values = [final_of(seed, what) if self.ended else _of(seed, what) for seed in run.seeds]
        known = [value for value in values if not math.isnan(value)]
        return Interval.of(known) if known else None

    @property
    def final_words(self) -> str:
        """On which samples, and when, the values of `final` were measured, in words."""
        return (
            "on all test samples at the end"
            if self.ended
            else "at the last evaluation of each, because not all have ended"
        )

    def series(
        self, xs: Sequence[list[float]], found: Sequence[Curve], factor: float, looks: Sequence[LineStyle] | None = None
    ) -> list[Series]:
        """Return one series for each run, with the half-widths of its intervals, multiplied by `factor`."""
        return [
            Series(run.label, look, x, [factor * v for v in c.mean], [factor * h for h in c.half_width])
            for run, look, x, c in zip(self.runs, looks or self.looks, xs, found, strict=True)
        ]

    def curves(self, key: str) -> list[Curve]:
        """A quantity of each run, as `statistics.curve` knows it."""
        if key not in self._curves:
            self._curves[key] = [curve(run.by_seed, key) for run in self.runs]
        return self._curves[key]

    def by_round(self, key: str, factor: float = 1.0, looks: Sequence[LineStyle] | None = None) -> list[Series]:
        """A quantity of each run against rounds."""
        found = self.curves(key)
        return self.series([[float(t) for t in c.rounds] for c in found], found, factor, looks)

    def by_time(self, key: str, factor: float = 1.0, looks: Sequence[LineStyle] | None = None) -> list[Series]:
        """A quantity of each run against simulated time; runs without it have an empty line."""
        return self._along("seconds", self.time_unit, key, factor, looks)

    def by_traffic(self, key: str, factor: float = 1.0) -> list[Series]:
        """A quantity of each run against what a node sent."""
        return self._along("bytes", self.unit, key, factor, None)

    def _along(
        self, axis: str, unit: float, key: str, factor: float, looks: Sequence[LineStyle] | None
    ) -> list[Series]:
        found = self.curves(key)
        xs = [[v / unit for v in along(a, c)] for a, c in zip(self.curves(axis), found, strict=True)]
        kept = [c if not any(map(math.isnan, x)) else Curve([], [], [], []) for x, c in zip(xs, found, strict=True)]
        return self.series([x if c.places else [] for x, c in zip(xs, kept, strict=True)], kept, factor, looks)

    def legend(self, *, panels: bool = False) -> list[tuple[str, list[tuple[LineStyle, str]]]]:
        """What colours and dashes mean: the runs, or the values of settings."""
        colour, dashed = self.scheme.colour, dashed_by(self.scheme, panels=panels)
        if colour is None:
            return [("", [(look, run.label) for run, look in zip(self.runs, self.looks, strict=True)])]
        groups = [(colour.key, [(look_of_value(colour, v), value_text(v)) for v in colour.values])]
        if dashed is not None:
            groups.append(
                (dashed.key, [(LineStyle("complete", i), value_text(v)) for i, v in enumerate(dashed.values)])
            )
        return groups

    def untold(self, *, panels: bool = False) -> list[str]:
        """The settings not shown by colours, dashes or panels: runs that look alike may differ in them."""
        told = [self.scheme.colour, dashed_by(self.scheme, panels=panels), self.scheme.panel if panels else None]
        return [] if self.scheme.colour is None else [s.key for s in self.design.settings if s not in told]

    def _target(self, given: float | None) -> Target:
        if given is not None:
            return Target(given, "given")
        known = [run for run in self.runs if has_accuracy(run)]
        static = [run for run in known if run.kind == "regular"] or known[:1]
        tops = [(max(curve(run.by_seed, "accuracy").mean), run.label) for run in static]
        return Target(max(tops)[0], f"the best mean of {max(tops)[1]}")


def final_of(seed: SeedResult, what: Quantity) -> float:
    """The final value of a seed that has ended, on all test samples."""
    end = seed.summary
    if end is None:
        return math.nan
    own = end.final_metrics.get(what.name) if what.key.startswith("metric.") else None
    if what.key == "accuracy":
        return math.nan if end.final_accuracy is None else end.final_accuracy.mean
    if what.key == "loss":
        return end.final_loss.mean
    return math.nan if own is None or own.mean is None else own.mean


def _of(seed: SeedResult, what: Quantity) -> float:
    last = seed.records[-1]
    if what.key == "accuracy":
        return accuracy_of(last)
    return last.loss.mean if what.key == "loss" else metric_of(last, what.name)


def has_accuracy(run: Result) -> bool:
    """Whether every record has an accuracy, that is, whether the run predicts classes."""
    return all(r.accuracy is not None for records in run.by_seed for r in records)


def _quantities(run: Result) -> str:
    return (
        f"{run.label} predicts quantities: it has no accuracy, and its loss is not to be compared with that of classes"
    )


def _disconnected(run: Result) -> str:
    seeds = ", ".join(map(str, run.disconnected))
    return (
        f"the static graph of {run.label} is disconnected (seed{'s' if len(run.disconnected) > 1 else ''} {seeds}):"
        " models of some nodes never reach all others"
    )


def design_words(design: ComparedSettings) -> str:
    """A sentence that names the settings that differ."""
    names = [
        f"{s.key} ({len(s.values)} values{', together with ' + ', '.join(s.together) if s.together else ''})"
        for s in design.settings
    ]
    return ", ".join(names)

"""What differs between runs: which settings, their values in order, and how much each of them matters.

Found from the tables of the experiments alone, so any set of runs will do, not only those of one sweep.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from statistics import fmean, pstdev
from typing import Any

import msgspec

from epidemic.counting import without_rounds
from epidemic.experiment.differences import BETWEEN_RUNS, MEANT, among, flat
from epidemic.report.palette import DASHES, WORDS, LineStyle, looks_of_methods

METHOD = "topology.kind"
"""The setting that names a method of the paper; methods have colours of their own."""

ALGORITHM = "algorithm.kind"

OWN = frozenset(f"{part}.{key}" for part in ("topology", "algorithm") for key in ("own", "is", "factory"))
"""Settings that distinguish a user's own methods: the class of an object, its fingerprint, and the name in a file."""

FULL = 0.6
"""The share of a grid's points from which runs count as a grid."""

Value = str | int | float | None


def settings_of(experiment: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of an experiment that decide its result, by dotted keys, with what a file means that leaves them out."""
    table = flat(experiment)
    if isinstance(experiment.get("algorithm"), Mapping) and table.get("algorithm.kind") != "python":
        table = table | {k: v for k, v in MEANT.items() if k.startswith("algorithm.") and k not in table}
    if METHOD not in table and "topology.own" in table:
        table = {METHOD: str(table["topology.own"]).rpartition(".")[2]} | table
    return {k: v for k, v in table.items() if k not in ("name", "format") and not among(k, BETWEEN_RUNS)}


def method_of(experiment: Mapping[str, Any]) -> str:
    """The kind of its topology; "own" for a user's own object."""
    topology = experiment.get("topology")
    return str(topology.get("kind", "own")) if isinstance(topology, Mapping) else "own"


def differing(tables: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys in which tables of settings differ, in the order of their first appearance."""
    keys = dict.fromkeys(key for table in tables for key in table)
    return [key for key in keys if any(table.get(key) != tables[0].get(key) for table in tables)]


class VariedSetting(msgspec.Struct, frozen=True):
    """A setting in which runs differ."""

    key: str  # dotted, as in the experiment's file
    name: str  # its last word, where that is clear
    values: list[Value]  # numbers from small to large, words as they first appear
    ordered: bool  # whether all values are numbers
    together: list[str] = []  # settings that change whenever this one does, and only then

    @property
    def log(self) -> bool:
        """Whether the values are spread over decades, so that a logarithm shows them more evenly."""
        if not self.ordered or len(self.values) < 2:
            return False
        numbers = [float(v) for v in self.values if v is not None]
        if numbers[0] <= 0 or numbers[-1] < 10 * numbers[0]:
            return False
        return _unevenness([math.log(v) for v in numbers]) <= _unevenness(numbers)

    def index(self, value: Value) -> int:
        """The index of this value among all."""
        return self.values.index(value)

    def place(self, value: Value) -> float:
        """The position of a value among the others, from 0 to 1."""
        return self.index(value) / max(len(self.values) - 1, 1)


class ComparedSettings(msgspec.Struct, frozen=True):
    """The settings in which runs differ, and the value of each in every run."""

    settings: list[VariedSetting]
    points: list[tuple[Value, ...]]  # by run
    free: bool = False  # whether methods without rounds are among them

    @staticmethod
    def of(experiments: Sequence[Mapping[str, Any]]) -> ComparedSettings:
        """Of the experiments' tables, one for each run."""
        tables = [settings_of(experiment) for experiment in experiments]
        columns = {key: [_plain(table.get(key)) for table in tables] for key in differing(tables)}
        telling = _distinguishing(columns)
        last = [key.rpartition(".")[2] for key in columns]
        settings = []
        for key, together in telling.items():
            name = key.rpartition(".")[2]
            values = list(dict.fromkeys(columns[key]))
            ordered = all(isinstance(value, int | float) for value in values)
            settings.append(
                VariedSetting(
                    key,
                    name if last.count(name) == 1 and name != "kind" else key,
                    sorted(values, key=float) if ordered else values,  # type: ignore[arg-type]
                    ordered,
                    together,
                )
            )
        points = [tuple(columns[key][i] for key in telling) for i in range(len(tables))]
        return ComparedSettings(settings, points, any(map(without_rounds, experiments)))

    @property
    def grid(self) -> bool:
        """Whether most combinations of the values were run."""
        cells = math.prod(len(setting.values) for setting in self.settings)
        return bool(self.settings) and len(set(self.points)) >= FULL * cells

    @property
    def comparison(self) -> bool:
        """Whether the runs are methods side by side, or indistinguishable, rather than points of a sweep."""
        keys = {setting.key for setting in self.settings}
        own = bool(keys & OWN) and not keys - OWN - {METHOD, ALGORITHM}
        return not keys or keys == {METHOD} or own or (METHOD in keys and not self.grid) or self.algorithms

    @property
    def algorithms(self) -> bool:
        """Whether the runs are synchronous and asynchronous methods side by side, each with its own settings."""
        if not self.free or ALGORITHM not in [setting.key for setting in self.settings]:
            return False
        cells = math.prod(len(setting.values) for setting in self.settings)
        return len(self.settings) > 1 and len(set(self.points)) < cells

    def column(self, setting: VariedSetting) -> list[Value]:
        """The value of a setting in every run."""
        i = self.settings.index(setting)
        return [point[i] for point in self.points]

    def effects(self, scores: Sequence[float]) -> list[float]:
        """For each setting: the largest change of the mean score between its values.

        NaN for a setting most of whose values were run only once: its effect cannot be separated from the others'.
        """
        return [self._effect(setting, scores) for setting in self.settings]

    def _effect(self, setting: VariedSetting, scores: Sequence[float]) -> float:
        groups: dict[Value, list[float]] = {}
        for value, score in zip(self.column(setting), scores, strict=True):
            if math.isfinite(score):
                groups.setdefault(value, []).append(score)
        if len(self.settings) > 1 and sum(map(len, groups.values())) < 2 * len(groups):
            return math.nan
        means = [fmean(group) for group in groups.values()]
        return max(means) - min(means) if means else math.nan


def _plain(value: Any) -> Value:
    """A value that can be compared and written: truth and lists as they are in the file."""
    if value is None or (isinstance(value, str | int | float) and not isinstance(value, bool)):
        return value
    return msgspec.json.encode(value).decode()


def _distinguishing(columns: Mapping[str, Sequence[Value]]) -> dict[str, list[str]]:
    """The settings needed to distinguish the runs, each with those that follow from it. Kinds come first."""
    kept: dict[str, list[str]] = {}
    for key in sorted(columns, key=lambda k: (k != METHOD, not k.endswith(".kind"))):
        leader = next((k for k in kept if _follows(columns[key], columns[k], kind=k.endswith(".kind"))), None)
        if leader is None:
            kept[key] = []
        else:
            kept[leader].append(key)
    return {key: kept[key] for key in columns if key in kept}


def _follows(values: Sequence[Value], leader: Sequence[Value], *, kind: bool) -> bool:
    """Whether one setting adds nothing to another: implied by its kind, or always changing with it."""
    pairs = set(zip(leader, values, strict=True))
    if len(pairs) != len(set(leader)):
        return False
    if kind:
        return True
    if len(pairs) != len(set(values)):
        return False
    numbers = [(a, b) for a, b in pairs if isinstance(a, int | float) and isinstance(b, int | float)]
    if len(numbers) < len(pairs):
        return True
    seconds = [b for _, b in sorted(numbers)]
    return seconds in (sorted(seconds), sorted(seconds, reverse=True))


def _unevenness(values: Sequence[float]) -> float:
    gaps = [b - a for a, b in itertools.pairwise(values)]
    return pstdev(gaps) / fmean(gaps)


# -- Which setting is told by which colours, dashes and panels, so that runs are drawn by what tells them apart ------


PANELS = 12
"""A setting with more values than this has no panels."""


class Scheme(msgspec.Struct, frozen=True):
    """Which setting is shown by colours, dashes and panels. All None: every run looks like its method."""

    colour: VariedSetting | None = None
    panel: VariedSetting | None = None  # has a panel for each of its values, and dashes where all are in one chart
    third: VariedSetting | None = None  # has dashes within the panels

    @staticmethod
    def of(design: ComparedSettings, scores: Sequence[float] | None = None) -> Scheme:
        """Choose a scheme: methods keep their colours; of three settings and more, those with the greatest effect on the scores come first."""
        if design.comparison:
            return Scheme()
        ranked = list(design.settings)
        if len(ranked) == 2:
            ranked.reverse()  # panels for the first, colours for the second
        elif scores is not None:
            effects = [0.0 if math.isnan(effect) else effect for effect in design.effects(scores)]
            ranked = [ranked[i] for i in sorted(range(len(ranked)), key=lambda i: -effects[i])]
        ranked[:2] = sorted(ranked[:2], key=lambda s: (s.key != METHOD, len(s.values) <= PANELS))
        return Scheme(*ranked[:3])


def look_of_value(setting: VariedSetting, value: Value, variant: int = 0) -> LineStyle:
    """The colour of one value of a setting."""
    if setting.key == METHOD:
        method = looks_of_methods([str(one) for one in setting.values])[setting.index(value)]
        return msgspec.structs.replace(method, variant=method.variant + variant)
    if setting.ordered:
        return LineStyle(variant=variant, place=setting.place(value))
    number = setting.index(value)
    return LineStyle(variant=variant + number // WORDS, word=number % WORDS)


def looks(design: ComparedSettings, kinds: Sequence[str], scheme: Scheme, *, panels: bool = False) -> list[LineStyle]:
    """One style for each run, whose methods are these kinds; in one chart, or in `panels`, where dashes need not show the panel."""
    if scheme.colour is None and design.algorithms:  # of one topology, perhaps
        return [LineStyle(kind, i // WORDS, word=i % WORDS) for i, kind in enumerate(kinds)]
    if scheme.colour is None:
        return looks_of_methods(kinds)
    dashed = dashed_by(scheme, panels=panels)
    dashes = [dashed.index(v) for v in design.column(dashed)] if dashed else [0] * len(kinds)
    colours = design.column(scheme.colour)
    return [look_of_value(scheme.colour, value, dash) for value, dash in zip(colours, dashes, strict=True)]


def looks_of(experiments: Sequence[Mapping[str, Any]], scores: Sequence[float] | None = None) -> list[LineStyle]:
    """One style for each run, from the tables of their experiments; `scores` show which of three and more settings matter most."""
    design = ComparedSettings.of(experiments)
    return looks(design, [method_of(table) for table in experiments], Scheme.of(design, scores))


def dashed_by(scheme: Scheme, *, panels: bool = False) -> VariedSetting | None:
    """The setting shown by dashes; None if it has more values than there are dashes."""
    setting = scheme.third if panels else scheme.panel
    return setting if setting is not None and len(setting.values) <= len(DASHES) else None

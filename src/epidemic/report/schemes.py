"""Which setting is told by which colours, dashes and panels, so that runs are drawn by what tells them apart."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from epidemic.report.palette import DASHES, WORDS, LineStyle, looks_of_methods
from epidemic.report.settings import METHOD, ComparedSettings, Value, VariedSetting, method_of

PANELS = 12
"""A setting with more values than this has no panels."""


class Scheme(msgspec.Struct, frozen=True):
    """Which setting is told by what. All None: every run looks like its method."""

    colour: VariedSetting | None = None
    panel: VariedSetting | None = None  # has a panel for each of its values, and dashes where all are in one chart
    third: VariedSetting | None = None  # has dashes within the panels

    @staticmethod
    def of(design: ComparedSettings, scores: Sequence[float] | None = None) -> Scheme:
        """Methods keep their colours. Of three settings and more, those with the greatest effect on the scores come first."""
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
    """One for each run, whose methods are these kinds; in one chart, or in `panels`, where dashes need not tell the panel."""
    if scheme.colour is None and design.algorithms:  # of one topology, perhaps
        return [LineStyle(kind, i // WORDS, word=i % WORDS) for i, kind in enumerate(kinds)]
    if scheme.colour is None:
        return looks_of_methods(kinds)
    dashed = dashed_by(scheme, panels=panels)
    dashes = [dashed.index(v) for v in design.column(dashed)] if dashed else [0] * len(kinds)
    colours = design.column(scheme.colour)
    return [look_of_value(scheme.colour, value, dash) for value, dash in zip(colours, dashes, strict=True)]


def looks_of(experiments: Sequence[Mapping[str, Any]], scores: Sequence[float] | None = None) -> list[LineStyle]:
    """One for each run, from the tables of their experiments; `scores` say which of three and more settings matter most."""
    design = ComparedSettings.of(experiments)
    return looks(design, [method_of(table) for table in experiments], Scheme.of(design, scores))


def dashed_by(scheme: Scheme, *, panels: bool = False) -> VariedSetting | None:
    """The setting that dashes tell; none if it has more values than there are dashes."""
    setting = scheme.third if panels else scheme.panel
    return setting if setting is not None and len(setting.values) <= len(DASHES) else None

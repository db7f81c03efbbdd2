"""The section on what settings do: a curve for one, a heat map and panels for two, panels and a table for more."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from epidemic.core.formatting import count, mean_alone
from epidemic.counting import of_planned
from epidemic.report import charts
from epidemic.report.charts import PANEL, ChartPoint, Series
from epidemic.report.contents import ACCURACY, LOSS, Quantity, ReportContents, design_words
from epidemic.report.parts import (
    Cell,
    figure,
    half_width,
    heat_table,
    legend,
    section,
    shown_interval,
    swatch,
    table,
    value_text,
)
from epidemic.report.parts import shown as number
from epidemic.report.results import Result
from epidemic.report.settings import PANELS, Value, VariedSetting
from epidemic.report.statistics import Interval


def sweep_section(shown: ReportContents) -> str:
    """What the settings do, for runs that are points of a sweep; nothing for methods side by side."""
    if shown.design.comparison:
        return ""
    settings = shown.design.settings
    if len(settings) == 1:
        parts = [_grid(_curves(shown, settings[0], shown.quantities))]
    elif len(settings) == 2 and shown.design.grid:
        parts = [_heat_maps(shown), _panels(shown)]
    else:
        parts = [_effects(shown), _panels(shown)]
        if not shown.design.grid:
            parts.append(
                _grid("".join(_curves(shown, setting, [shown.main]) for setting in settings if setting.ordered))
            )
    ranking = _ranking(shown)
    if len(settings) < 3:
        ranking = f"<details><summary>All results, the best first</summary>{ranking}</details>"
    intro = f"What differs: {design_words(shown.design)}. Results are those of the nodes' own models, averaged over nodes, {shown.final_words}."
    return section("What the settings do", f"<p>{escape(intro)}</p>{''.join(parts)}{ranking}")


# -- one setting ------------------------------------------------------------------------------------------------------


def _curves(shown: ReportContents, setting: VariedSetting, quantities: Sequence[Quantity]) -> str:
    """Charts of results against the values of a setting, with intervals; joined by a line if nothing else differs."""
    figures = []
    alone = len(shown.design.settings) == 1
    for what in quantities:
        found = [
            (run, look, value, one)
            for run, look, value in zip(shown.runs, shown.looks, shown.design.column(setting), strict=True)
            if (one := shown.final(run, what)) is not None
        ]
        if not found:
            continue
        points = [
            (f"{run.label}{_standing(run)}", look, value, one.mean * what.factor, _scaled(one, what))
            for run, look, value, one in found
        ]  # fmt: skip
        name = f"final-{shown.design.settings.index(setting)}-{shown.quantities.index(what)}"
        title = f"Final {what.name} against {setting.key}"
        said = "; ".join(f"{called}: {mean:.4g}" for called, _, _, mean, _ in points)
        means = [mean for _, _, _, mean, _ in points]
        if setting.ordered:
            chart = charts.value_chart(
                name, title, f"{title}. {said}.",
                [ChartPoint(called, look, float(value or 0), mean, half) for called, look, value, mean, half in points],
                setting.key + (", log" if setting.log else ""), f"final {what.label}" + (", log" if far_apart(means, what) else ""),
                log_x=setting.log, log_y=far_apart(means, what), joined=alone,
            )  # fmt: skip
        else:
            rows = [(value_text(value), look, mean, half) for _, look, value, mean, half in points]
            chart = charts.rows_chart(name, title, f"{title}. {said}.", rows, f"final {what.label}")
        figures.append(figure(title, chart))
    return "".join(figures)


def _grid(figures: str) -> str:
    return f"<div class=grid2>{figures}</div>"


def _scaled(one: Interval, what: Quantity) -> float | None:
    return None if one.half_width is None else one.half_width * what.factor


def far_apart(values: Sequence[float], what: Quantity) -> bool:
    """Whether losses need a logarithm: some runs have gone wrong by orders of magnitude."""
    known = [v for v in values if math.isfinite(v)]
    return what == LOSS and bool(known) and min(known) > 0 and max(known) > 50 * min(known)


# -- two settings -----------------------------------------------------------------------------------------------------


def _heat_maps(shown: ReportContents) -> str:
    """A heat map for each quantity: rows for the setting that has panels below, columns for the coloured one."""
    down, across = shown.scheme.panel, shown.scheme.colour
    assert down is not None
    assert across is not None
    runs: dict[tuple[Value, Value], Result] = {}
    for row, column, run in zip(shown.design.column(down), shown.design.column(across), shown.runs, strict=True):
        runs[row, column] = _both(runs[row, column], run) if (row, column) in runs else run
    maps = []
    for what in shown.quantities:
        found = {key: shown.final(run, what) for key, run in runs.items()}
        means = [one.mean for one in found.values() if one is not None]
        if not means:
            continue
        log = far_apart(means, what)
        cells = [
            [_cell(runs.get((row, column)), found.get((row, column)), what, means, log=log, where=f"{down.name} = {value_text(row)}, {across.name} = {value_text(column)}")
             for column in across.values]
            for row in down.values
        ]  # fmt: skip
        better = "the lower" if what == LOSS else "the higher"
        maps.append(
            heat_table(
                f"Final {what.label}: the stronger the colour, {better}",
                down.key,
                across.key,
                [value_text(value) for value in down.values],
                [value_text(value) for value in across.values],
                cells,
            )
        )
    return _grid("".join(maps))


def _both(first: Result, second: Result) -> Result:
    """Two directories of one experiment as one; a seed that is in both counts once."""
    known = [seed.seed for seed in first.seeds]
    more = [seed for seed in second.seeds if seed.seed not in known]
    return Result(first.label, first.path, first.experiment, [*first.seeds, *more])


def _cell(run: Result | None, one: Interval | None, what: Quantity, means: Sequence[float], *, log: bool, where: str) -> Cell:  # fmt: skip
    if run is None or one is None:
        return Cell("-", title=f"{where}: no result", depth=None)
    scale = math.log if log else float
    low, high = scale(min(means)), scale(max(means))
    depth = 0.5 if high <= low else (scale(one.mean) - low) / (high - low)
    below = "" if one.half_width is None else f"±\u00a0{half_width(one, what.factor, what.digits)}"
    standing = _standing(run)
    said = f"{where}: {shown_interval(one, what.factor, what.digits)}, {count(one.seeds, 'seed')}{standing}"
    return Cell(
        mean_alone(one, what.factor, what.digits),
        [line for line in (below, standing.strip(", ")) if line],
        said,
        1 - depth if what == LOSS else depth,
    )


def _panels(shown: ReportContents) -> str:
    """Small charts of the course of learning, one for each value of a setting, with the same axes."""
    setting, colour = shown.scheme.panel, shown.scheme.colour
    if setting is None or colour is None or len(setting.values) > PANELS:
        return ""
    parts = []
    plans = [(what, "rounds", shown.round_label) for what in ([ACCURACY, LOSS] if shown.classes else [LOSS])]
    if shown.clock:
        plans.insert(1, (shown.main, "simulated time", shown.time_label))
    for what, against, label in plans:
        by = shown.by_round if against == "rounds" else shown.by_time
        series = by(what.key, what.factor, shown.panel_looks)
        log = far_apart([v for s in series for v in s.y], what)
        ranges = charts.range_of(series, log_y=log)
        column = shown.design.column(setting)
        name = f"panel-{what.name}{'' if against == 'rounds' else '-time'}"
        figures = [
            _panel(f"{name}-{i}", setting, value, what, (against, label), [s for s, v in zip(series, column, strict=True) if v == value], ranges, log=log)
            for i, value in enumerate(setting.values)
        ]  # fmt: skip
        parts.append(
            f"<h3>{escape(what.label.capitalize())} against {against}, by {escape(setting.key)}</h3><div class=panels>{''.join(figures)}</div>"
        )
    others = [s.key for s in shown.design.settings if s not in (setting, colour)]
    note = f"Each panel is a value of {setting.key}, all with the same axes; colours are {colour.key}."
    if others:
        note += f" Lines of one colour in a panel differ in {', '.join(others)}."
    return f"<p>{escape(note)}</p>{legend(shown.legend(panels=True))}{''.join(parts)}"


def _panel(name: str, setting: VariedSetting, value: Value, what: Quantity, axis: tuple[str, str], series: Sequence[Series],
           ranges: tuple[tuple[float, float], tuple[float, float]], *, log: bool) -> str:  # fmt: skip
    title = f"{setting.name} = {value_text(value)}"
    said = "; ".join(f"{s.name}: {s.y[-1]:.4g} at the end" for s in series if s.y)
    chart = charts.line_chart(
        name, f"{what.name.capitalize()} against {axis[0]}, {title}", f"{what.label}, {title}. {said}.", series, axis[1], "", log_y=log,
        box=PANEL, ranges=ranges,
    )  # fmt: skip
    return figure(title, chart)


# -- more settings ----------------------------------------------------------------------------------------------------


def _effects(shown: ReportContents) -> str:
    """How much each setting matters, and which are shown below."""
    design, what = shown.design, shown.main
    unit = " points" if what == ACCURACY else ""
    effects = [what.factor * effect for effect in design.effects(shown.scores())]
    if all(map(math.isnan, effects)):
        return ""
    order = sorted(range(len(effects)), key=lambda i: -(0.0 if math.isnan(effects[i]) else effects[i]))
    rows = [
        [escape(design.settings[i].key), str(len(design.settings[i].values)), number(effects[i], what.digits)]
        for i in order
    ]
    heads = ["setting", "values", f"effect on the final {what.name}{' (' + unit.strip() + ')' if unit else ''}"]
    panel, colour = shown.scheme.panel, shown.scheme.colour
    assert colour is not None
    said = "The effect is the difference between those values of a setting whose runs have the highest and the lowest mean."
    if any(map(math.isnan, effects)):
        said += " It cannot be told for a setting that has another value in nearly every run."
    if panel is not None and len(panel.values) <= PANELS:
        said += f" Shown below are the two with the greatest: {colour.key} and {panel.key}." if len(rows) > 2 else ""
    elif panel is not None:
        said += f" {panel.key} has {len(panel.values)} values, too many for a panel each."
    return f"{table(heads, rows)}<p>{escape(said)}</p>"


def _ranking(shown: ReportContents) -> str:
    """All runs with their settings and results, the best first."""
    settings = shown.design.settings
    heads = ["run", *(s.name for s in settings), *(f"final {what.label}" for what in shown.quantities), "seeds"]
    worst = -math.inf if shown.classes else math.inf
    scores = [worst if math.isnan(score) else score for score in shown.scores()]
    order = sorted(range(len(scores)), key=lambda i: -scores[i] if shown.classes else scores[i])
    rows = [
        [
            f"{swatch(shown.looks[i])}{escape(shown.runs[i].label)}{escape(_standing(shown.runs[i]))}",
            *(escape(value_text(value)) for value in shown.design.points[i]),
            *(shown_interval(shown.final(shown.runs[i], what), what.factor, what.digits) for what in shown.quantities),
            str(len(shown.runs[i].seeds)),
        ]
        for i in order
    ]
    return table(heads, rows)


def _standing(run: Result) -> str:
    """Where a run is that has not ended, or how it ended without a result."""
    if run.finished:
        return ""
    where = f", round {of_planned(run.seeds[0].records[-1].round, run.experiment, ' of ')}"
    state = next((seed.state.state for seed in run.seeds if seed.summary is None and seed.state.over), "")
    return f"{where}, {state}" if state else where

"""The sections of the report that every set of runs has, each a function of what is shown."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from html import escape
from typing import Any

import msgspec

from epidemic.core.formatting import ABOUT_DISAGREEMENT
from epidemic.counting import rounds_planned
from epidemic.report import charts
from epidemic.report.charts import Series
from epidemic.report.contents import LOSS, Quantity, ReportContents, has_accuracy
from epidemic.report.palette import LineStyle
from epidemic.report.parts import figure, legend, section, shown_interval, swatch, table, value_text
from epidemic.report.parts import shown as number
from epidemic.report.results import NodeResult, Result, SeedResult
from epidemic.report.statistics import (
    FIRST,
    MOST,
    READ,
    CostToTarget,
    Interval,
    best,
    disagreement_of,
    first_reaching,
    mean_cost,
    nodes_until,
    over_seeds,
)
from epidemic.report.sweeps import far_apart

NODES_SHOWN = 200
"""More nodes than these are not drawn one by one."""
ROWS_SHOWN = 40
"""More runs than these are not drawn one below the other."""
CLOCKED = ("simulated seconds", "quickest tenth of the nodes (s)", "nine tenths of the nodes (s)", "local steps")
"""The costs of a target under the clock, besides rounds and bytes."""
METRICS_SHOWN = 12
"""More metrics of a user's own than these have no chart each."""


def summary(shown: ReportContents) -> str:
    """Return the table with one row for each run: accuracy, loss, traffic and time."""
    heads = ["run", "seeds", "rounds"]
    if shown.classes:
        heads += ["best accuracy (%)", "at the end, all test samples (%)", "averaged model (%)"]
    partial = shown.classes and any(s.summary and s.summary.final_living_accuracy for r in shown.runs for s in r.seeds)
    heads += ["of those in the last round (%)"] if partial else []
    heads += ["simulated seconds", "local steps"] if shown.clock else []
    heads += ["best loss", *(m.name for m in shown.metrics), "disagreement", f"sent per node ({shown.unit_name})"]
    rows = []
    for whole, run, look in zip(shown.all, shown.runs, shown.looks, strict=True):
        top, low = best(run.by_seed)
        done = [seed.summary for seed in run.seeds if seed.summary is not None]
        cells = [_seeds(whole, run), rounds_of(run)]
        if shown.classes:
            final = [s.final_accuracy.mean for s in done if s.final_accuracy is not None]
            mean = [s.final_mean_model_accuracy for s in done if s.final_mean_model_accuracy is not None]
            cells += [shown_interval(top, 100, 2), _mean(final, 100), _mean(mean, 100)]
        if partial:
            cells.append(_mean([s.final_living_accuracy.mean for s in done if s.final_living_accuracy], 100))
        if shown.clock:
            last = [r[-1] for r in run.by_seed]
            cells += [shown_interval(over_seeds([READ[part](r) for r in last]), 1, 1) for part in ("seconds", "steps")]
        apart = Interval.of([disagreement_of(r[-1]) for r in run.by_seed])
        sent = Interval.of([r[-1].bytes.total.mean for r in run.by_seed])
        cells += [
            shown_interval(low, 1, 3),
            *(shown_interval(shown.final(run, m), 1, m.digits) for m in shown.metrics),
            "-" if math.isnan(apart.mean) else f"{apart.mean:.3g}",
            number(sent.mean / shown.unit),
        ]
        rows.append([run_name(whole, look), *cells])
    note = "Accuracy and loss are those of the nodes' own models, averaged over nodes."
    if shown.metrics:
        note += f" Metrics of your own are those {shown.final_words}."
    return section("Summary", f"{table(heads, rows)}<p>{note}</p>")


def learning(shown: ReportContents) -> str:
    """The course of learning: accuracy and loss, by rounds, simulated time and traffic, the metrics, and how far nodes are apart."""
    what, rounds = shown.main, shown.round_label
    label = f"{what.name} over nodes ({what.unit})" if what.unit else f"{what.name} over nodes"
    level = None if shown.target is None else 100 * shown.target.accuracy
    log_y = _log(shown, what)
    figures = [lines_figure("rounds", f"{what.name.title()} against rounds", shown.by_round(what.key, what.factor), rounds, label,
                            target=level, log_y=log_y)]  # fmt: skip
    if what != LOSS:
        figures.append(_course(shown, LOSS, "loss"))
    if shown.clock:
        by_time = shown.by_time(what.key, what.factor)
        figures.append(lines_figure("time", f"{what.name.title()} against simulated time", by_time, shown.time_label, label,
                                    target=level, log_y=log_y))  # fmt: skip
    by_bytes = shown.by_traffic(what.key, what.factor)
    figures.append(lines_figure("bytes", f"{what.name.title()} against traffic", by_bytes, f"sent per node ({shown.unit_name}, log)", label,
                                log_x=True, target=level, log_y=log_y))  # fmt: skip
    figures += [_course(shown, metric, f"metric{i}") for i, metric in enumerate(shown.metrics[:METRICS_SHOWN])]
    figures += [
        lines_figure("apart", "Disagreement D(X)", shown.by_round("disagreement"), rounds, "D(X), log", log_y=True),
        lines_figure("spread", f"Spread of {what.name} over nodes", shown.by_round(f"{what.key}_sd", what.factor), rounds,
                     f"standard deviation ({what.unit or what.name})", from_zero=True),
    ]  # fmt: skip
    words = ["The dotted line is the target of the next section."] if level is not None else []
    words.append(f"{escape(ABOUT_DISAGREEMENT)}.")
    if shown.about_rounds:
        words.append(escape(shown.about_rounds))
    if shown.clock and not all(shown.timed):
        words.append("Runs without a simulated clock have no line against simulated time.")
    if shown.untold():
        words.append(f"Lines that look alike differ in {escape(', '.join(shown.untold()))}.")
    if len(shown.runs) > charts.BANDS:
        words.append(f"With more than {charts.BANDS} runs, intervals are left out of these charts.")
    if len(shown.metrics) > METRICS_SHOWN:
        words.append(f"{len(shown.metrics) - METRICS_SHOWN} more metrics are in the table above.")
    content = f"{legend(shown.legend())}<div class=grid2>{''.join(figures)}</div><p>{' '.join(words)}</p>"
    return section("Learning", content)


def _course(shown: ReportContents, what: Quantity, name: str) -> str:
    title = f"{what.name.title() if what == LOSS else what.name} against rounds"
    series = shown.by_round(what.key, what.factor)
    return lines_figure(name, title, series, shown.round_label, f"{what.label} over nodes", log_y=_log(shown, what))


def _log(shown: ReportContents, what: Quantity) -> bool:
    return far_apart([v for s in shown.by_round(what.key) for v in s.y], what)


def cost(shown: ReportContents) -> str:
    """The section on the cost of reaching the target."""
    if shown.target is None:
        return ""
    traffic = f"sent per node ({shown.unit_name})"
    heads = ["run", "rounds", *(CLOCKED if shown.clock else ()), traffic, "seconds of computing", "seeds that reach it alone"]  # fmt: skip
    rows: list[list[str]] = []
    paid: list[tuple[str, LineStyle, CostToTarget]] = []
    for i, (whole, look) in enumerate(zip(shown.all, shown.looks, strict=True)):
        run, goal = shown.runs[i], shown.target.accuracy
        if not has_accuracy(run):
            rows.append([run_name(whole, look), *["-"] * (len(heads) - 1)])
            continue
        alone = sum(first_reaching(seed.records, goal) is not None for seed in run.seeds)
        found, there = mean_cost(run.by_seed, goal)
        times = [seed.seconds.get(round) for seed, round in zip(run.seeds, there, strict=False)]
        known = [t for t in times if t is not None]
        clocked = [_amount(found.seconds), *(shown_interval(nodes_until(run.by_seed, goal, share), 1, 1) for share in (FIRST, MOST)),
                   _amount(found.steps)]  # fmt: skip
        cells = [
            _amount(found.rounds, 0),
            *(clocked if shown.clock else ()),
            _amount(found.bytes / shown.unit, 2),
            number(sum(known) / len(known), 0) if known else "-",
        ]
        rows.append([run_name(whole, look), *cells, f"{alone} of {len(run.seeds)}"])
        paid.append((run.label, look, found))
    charted = [i for i, run in enumerate(shown.runs) if has_accuracy(run)]
    paid = [paid[charted.index(i)] for i in _foremost(shown) if i in charted]
    figures = _bars("torounds", "Rounds to the target", [(n, k, c.rounds) for n, k, c in paid], "rounds", 0)
    if shown.clock:
        spent = [(n, k, math.inf if c.seconds is None else c.seconds / shown.time_unit) for n, k, c in paid]
        figures += _bars("totime", "Simulated time to the target", spent, shown.time_label)
        steps = [(n, k, math.inf if c.steps is None else c.steps) for n, k, c in paid]
        figures += _bars("tosteps", "Local steps to the target", steps, "local steps of a node", 0)
    sent = [(n, k, c.bytes / shown.unit) for n, k, c in paid]
    figures += _bars("tobytes", "Traffic to the target", sent, traffic)
    intro = f"Until {number(100 * shown.target.accuracy)} % accuracy ({escape(shown.target.source)}), reached by the mean over seeds; "
    if shown.clock:
        intro += (
            "simulated seconds are those of the experiment's clock, seconds of computing those of this simulation. The quickest tenth and"
            " nine tenths of the nodes: when so many had reached it with their own models, mean over seeds; a dash where a seed never came so"
            " far."
        )
    else:
        intro += "seconds are those of the simulation."
    intro += f" {escape(shown.about_rounds)}" if shown.about_rounds else ""
    content = f"<p>{intro}</p>{table(heads, rows)}<div class=grid2>{figures}</div>{_left_out(shown)}"
    return section("Time and bytes to target", content)


def _bars(name: str, title: str, rows: Sequence[tuple[str, LineStyle, float]], label: str, digits: int = 2) -> str:
    """A bar for each run; infinite ones never got there."""
    known = [(n, look, value if math.isfinite(value) else None) for n, look, value in rows]
    unit = label.partition("(")[2].rstrip(")") or label
    said = "; ".join(f"{n}: {'not reached' if v is None else f'{number(v, digits)} {unit}'}" for n, _, v in known)
    return figure(title, charts.bar_chart(name, title, said, known, label))


def _amount(value: float | None, digits: int = 1) -> str:
    return "-" if value is None or not math.isfinite(value) else number(value, digits)


def nodes(shown: ReportContents) -> str:
    """The section on the final models of all nodes."""
    rows = []
    for i in _foremost(shown):
        seed = _finished(shown.runs[i])
        values = [n.final_accuracy if shown.classes else n.final_loss for n in (seed.nodes or [])] if seed else []
        rows.append((shown.runs[i].label, shown.looks[i], [shown.main.factor * v for v in values if v is not None]))
    rows = [row for row in rows if row[2]]
    if not rows:
        return ""
    what = shown.main.label
    said = "; ".join(f"{n}: mean {sum(v) / len(v):.4g}, from {min(v):.4g} to {max(v):.4g}" for n, _, v in rows)
    chart = charts.strip_chart("strip", f"Final {what} of every node", said, rows, f"final {what}, all test samples")
    note = "First finished seed of each; a dot is a node, the bar their mean."
    content = f"<div class=grid1>{figure('Final models', chart)}</div><p>{note}</p>{_left_out(shown)}"
    return section("Every node at the end", content)


def classes(shown: ReportContents) -> str:
    """The section on the distribution of classes over nodes."""
    found: dict[str, tuple[list[str], list[list[int]], list[str]]] = {}
    for run in shown.runs:
        seed = _finished(run)
        counts = [n.classes for n in seed.nodes or [] if n.classes is not None] if seed is not None else []
        if seed is not None and counts:
            key = msgspec.json.encode(counts).decode()
            found.setdefault(key, ([], counts, _class_names(seed, len(counts[0]))))[0].append(run.label)
    figures = []
    for i, (runs, counts, names) in enumerate(list(found.values())[:4]):
        part = counts[:NODES_SHOWN]
        held = [sum(c > 0 for c in row) for row in counts]
        share = [max(row) / max(sum(row), 1) for row in counts]
        said = (
            f"{len(counts)} nodes hold {sum(map(sum, counts)):,} samples; on average {sum(held) / len(held):.1f} of {len(counts[0])}"
            f" classes, and {100 * sum(share) / len(share):.0f} % of a node's samples are of its largest class."
        )
        if len(part) < len(counts):
            said += f" The first {NODES_SHOWN} are shown."
        chart = charts.heat_chart(f"heat{i}", "Classes on the nodes", said, part, names)
        of = ", ".join(runs[:6]) + (f" and {len(runs) - 6} more" if len(runs) > 6 else "")
        figures.append(
            figure("Classes on the nodes" if len(found) == 1 else f"Classes on the nodes: {of}", chart, said)
        )
    more = f"<p>{len(found) - 4} more splits are not shown.</p>" if len(found) > 4 else ""
    return section("Data", f"<div class=grid2>{''.join(figures)}</div>{more}") if figures else ""


def _class_names(seed: SeedResult, number: int) -> list[str]:
    names = seed.info.classes
    return names if len(names) == number else [str(k) for k in range(number)]


def load(shown: ReportContents) -> str:
    """How many models nodes received, and what each sent."""
    degrees, loads, said_degrees, said_loads = [], [], [], []
    for run, look in zip(shown.runs, shown.looks, strict=True):
        seed = _finished(run)
        nodes = (seed.nodes or []) if seed is not None else []
        if not nodes or not any(n.in_degree for n in nodes):
            continue
        count: Counter[int] = Counter()
        for node in nodes:
            count.update({int(k): v for k, v in node.in_degree.items()})
        total = sum(count.values())
        ks = list(range(max(min(count) - 1, 0), max(count) + 2))
        degrees.append(Series(run.label, look, [float(k) for k in ks], [100 * count[k] / total for k in ks]))
        sent = sorted(_sent(n) / shown.unit for n in nodes)
        loads.append(Series(run.label, look, [100 * i / max(len(sent) - 1, 1) for i in range(len(sent))], sent))
        mean = sum(k * v for k, v in count.items()) / total
        said_degrees.append(f"{run.label}: mean {mean:.2f}, from {min(count)} to {max(count)}")
        said_loads.append(f"{run.label}: from {sent[0]:.3g} to {sent[-1]:.3g} {shown.unit_name}")
    if not degrees:
        return ""
    figures = figure(
        "Models received in a round",
        charts.line_chart("degree", "Models received in a round", "; ".join(said_degrees), degrees, "models received", "share of nodes and rounds (%)",
                          from_zero=True),
    ) + figure(
        "Load: what each node sent",
        charts.line_chart("load", "What each node sent", "; ".join(said_loads), loads, "nodes, from the least to the most (%)",
                          f"sent ({shown.unit_name})", from_zero=True),
    )  # fmt: skip
    return section("In-degree and load", f"{legend(shown.legend())}<div class=grid2>{figures}</div>")


def differences(shown: ReportContents) -> str:
    """The settings in which the experiments differ."""
    results = shown.results
    keys = results.differing
    if not keys:
        only = "Nothing but names and seeds." if len(shown.runs) > 1 else "There is one experiment."
        return section("What differs", f"<p>{only}</p>")
    rows = [
        [run_name(run, look), *(escape(value_text(results.setting(run, key))) for key in keys)]
        for run, look in zip(shown.all, shown.looks, strict=True)
    ]
    return section("What differs", table(["run", *keys], rows))


def environment(shown: ReportContents) -> str:
    """Versions, machines, and the settings that all share."""
    rows = []
    for whole, run, look in zip(shown.all, shown.runs, shown.looks, strict=True):
        info = run.seeds[0].info
        machine = f"{info.machine.get('system', '?')}, {info.machine.get('cores', '?')} cores"
        versions = ", ".join(f"{k} {v}" for k, v in info.versions.items())
        time = sum(max(s.seconds.values(), default=0.0) for s in run.seeds)
        cells = [escape(versions), escape(machine), escape(info.data) or "-", escape(info.strategy), number(time, 0)]
        rows.append([run_name(whole, look), *cells])
    heads = ["run", "versions", "machine", "note on the data", "strategy", "seconds of computing"]
    common = {k: v for k, v in shown.results.common().items() if k != "format"}
    settings = table(["setting", "value"], [[escape(k), escape(value_text(v))] for k, v in common.items()])
    details = f"<details><summary>Settings that all share</summary>{settings}</details>"
    return section("Environment", table(heads, rows) + details)


# -- parts ------------------------------------------------------------------------------------------------------------


def run_name(run: Result, look: LineStyle) -> str:
    """As HTML: what a run is called, and how it stands if it has not ended."""
    states = {seed.state.state for seed in run.seeds if seed.summary is None}
    word = "failed" if "failed" in states else "unfinished"
    return f"{swatch(look)}{escape(run.label)}{'' if run.finished else f' <em>({word})</em>'}"


def _seeds(whole: Result, kept: Result) -> str:
    """How many seeds the means are over, of how many that were asked for."""
    asked = max(len(whole.seeds), len(whole.experiment.get("seeds") or []))
    return str(asked) if len(kept.seeds) == asked else f"{len(kept.seeds)} of {asked}"


def rounds_of(run: Result) -> str:
    """The number of rounds, with the planned number if a run has not finished."""
    ends = [records[-1].round for records in run.by_seed]
    planned = rounds_planned(run.experiment)
    said = str(min(ends)) if min(ends) == max(ends) else f"{min(ends)} to {max(ends)}"
    return said if planned is None or min(ends) == planned else f"{said} of {planned}"


def _foremost(shown: ReportContents) -> list[int]:
    """The runs that are drawn one below the other: all in their order, or the best of many."""
    scores = shown.scores()
    if len(scores) <= ROWS_SHOWN:
        return list(range(len(scores)))
    worst = [-math.inf if math.isnan(s) else s if shown.classes else -s for s in scores]
    return sorted(range(len(scores)), key=lambda i: -worst[i])[:ROWS_SHOWN]


def _left_out(shown: ReportContents) -> str:
    more = len(shown.runs) - ROWS_SHOWN
    return f"<p>The chart shows the {ROWS_SHOWN} best of {len(shown.runs)} runs.</p>" if more > 0 else ""


def lines_figure(name: str, title: str, series: list[Series], x_label: str, y_label: str, **options: Any) -> str:
    """A line chart, with its data in words and numbers."""
    said = "; ".join(f"{s.name}: {s.y[0]:.4g} at the start, {s.y[-1]:.4g} at the end" for s in series if s.y)
    chart = charts.line_chart(name, title, f"{title}. {said}.", series, x_label, y_label, **options)
    some = [s for s in series if s.x]
    rows = [
        [escape(s.name), f"{s.x[i]:.6g}", f"{s.y[i]:.6g}", f"{s.half_width[i]:.3g}" if any(s.half_width) else "-"]
        for s in some
        for i in _some(len(s.x), max(1, min(12, 400 // len(some))))
    ]
    return figure(title, chart, numbers=table(["run", x_label, y_label, "±"], rows))


def _finished(run: Result) -> SeedResult | None:
    return next((seed for seed in run.seeds if seed.nodes), None)


def _sent(node: NodeResult) -> int:
    return sum(node.bytes.values())


def _some(count: int, most: int = 12) -> list[int]:
    """At most `most` of many positions, the last among them."""
    step = max(1, count // most)
    return sorted({*range(0, count, step), count - 1})


def _mean(values: Sequence[float], factor: float) -> str:
    return shown_interval(Interval.of(values), factor, 2) if values else "-"

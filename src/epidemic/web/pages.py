"""The pages for people: what there is, a run, several runs together. From what the catalogue knows to HTML; whatever comes from disk is escaped."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import msgspec

from epidemic.core.errors import plain
from epidemic.core.formatting import ABOUT_DISAGREEMENT, count, simulated, size
from epidemic.counting import TRAININGS, of_planned, round_label, rounds_planned, without_rounds
from epidemic.experiment import flat
from epidemic.record import Moment, Record
from epidemic.report import charts
from epidemic.report.charts import LineStyle, Series
from epidemic.report.settings import looks_of
from epidemic.report.statistics import along, curve
from epidemic.web.view import LivePage, badge, block, row, spark, table, tiles
from epidemic.web.watch import Catalogue, WatchedRun, WatchedSeed, key_of

MOST_LINES = 24
"""Runs that are drawn in one chart."""
FEWEST_FOR_BANDS = 3
"""Seeds from which on an interval is drawn; of two it covers everything."""

STATES = ("running", "failed", "gone", "stopped", "unfinished", "finished")


# -- what there is ----------------------------------------------------------------------------------------------------


def index(catalogue: Catalogue, clusters: Sequence[tuple[str, str, dict[str, int]]]) -> LivePage:
    """The index of all runs; `clusters` are keys, titles, and the number of nodes in each state."""
    groups = catalogue.groups
    runs = [run for found in groups.values() for run in found]
    counts = Counter(run.state.state for run in runs)
    pieces: list[tuple[str | None, str]] = [
        (None, f"<h1>{escape(', '.join(plain(given, 160) for given in catalogue.roots.values()))}</h1>"),
        block("counts", _counts(counts, len(runs))),
        block("notes", notes(catalogue.notes)),
    ]
    if clusters:
        pieces.append((None, "<section><h2>Clusters</h2>"))
        before, after = table(["cluster", "nodes", "how they are"], "")
        pieces.append((None, before))
        for key, title, states in clusters:
            how = "".join(f'<span class="count">{badge(s)} {n}</span>' for s, n in states.items())
            cells = [f'<a href="/cluster/{key}">{escape(title)}</a>', str(sum(states.values())), how]
            pieces.append(block(f"c-{key}", row(cells), "tr"))
        pieces.append((None, f"{after}</section>"))
    for path, found in groups.items():
        pieces += _group_table(catalogue, path, found)
    if not runs and not clusters:
        pieces.append((None, _nothing_yet(catalogue)))
    busy = f"{counts['running']} running, " if counts["running"] else ""
    return LivePage(f"{busy}{count(len(runs), 'run')} - epidemic", pieces)


def _nothing_yet(catalogue: Catalogue) -> str:
    where = escape(plain(next(iter(catalogue.roots.values())), 160))
    return (
        f'<div class="empty"><p>Nothing to see in <b>{where}</b> yet. This page fills as soon as a run begins there, for example with</p>'
        f"<pre>epidemic run experiment.toml --out {where}/first</pre></div>"
    )


def _counts(counts: Counter[str], total: int) -> str:
    shown = "".join(f'<span class="count">{badge(s)} {counts[s]}</span>' for s in STATES if counts[s])
    return f'<p class="counts">{shown or "no run yet"}</p>' if total else ""


def notes(lines: Sequence[str]) -> str:
    """What should be known, as a list."""
    shown = [*lines[:20], *([f"and {len(lines) - 20} more"] if len(lines) > 20 else [])]
    return (
        f'<ul class="notes">{"".join(f"<li>{escape(plain(line, 300))}</li>" for line in shown)}</ul>' if shown else ""
    )


def _group_table(catalogue: Catalogue, path: Path, runs: list[WatchedRun]) -> list[tuple[str | None, str]]:
    title = escape(catalogue.title(path))
    if len(runs) > 1:
        title = f'<a href="/group/{key_of(path)}">{title}</a> <small>{_kind(path, runs)} of {len(runs)} runs</small>'
    return [(None, f"<section><h2>{title}</h2>"), *runs_table(runs), (None, "</section>")]


def _kind(path: Path, runs: Sequence[WatchedRun]) -> str:
    if all("=" in run.path.name for run in runs):
        return "sweep"
    return "comparison" if (path / "comparison.json").is_file() else "directory"


def runs_table(runs: Sequence[WatchedRun]) -> list[tuple[str | None, str]]:
    """A row for each run, which can be exchanged alone."""
    what = "accuracy" if all(run.classes for run in runs if run.by_seed) else "accuracy or loss"
    timed = any(_seconds(run) is not None for run in runs)
    heads = ["run", "state", "round", *(["simulated"] if timed else []), "seeds", what, "", "sent"]
    before, after = table(heads, "", "runs")
    rows = [
        block(
            f"r-{run.key}", row(_cells(run, name, timed=timed)), "tr", "done" if run.state.state == "finished" else ""
        )
        for run, name in zip(runs, labels(runs), strict=True)
    ]
    return [(None, before), *rows, (None, after)]


def _seconds(run: WatchedRun) -> float | None:
    """The simulated time of the seed that is least far; None without a clock."""
    times = [records[-1].time for records in run.by_seed]
    return min((time.seconds for time in times if time is not None), default=None)


def _simulated(run: WatchedRun) -> str:
    seconds = _seconds(run)
    return "-" if seconds is None else simulated(seconds)


def _cells(run: WatchedRun, name: str, *, timed: bool) -> list[str]:
    state = run.state
    values = _values(run)
    seeds = f"{sum(seed.ended for seed in run.known)} / {run.wanted}"
    planned = rounds_planned(run.experiment)
    done = (
        ""
        if planned is None
        else f' <progress max="{max(planned, 1)}" value="{run.round}" aria-label="rounds"></progress>'
    )
    sent = size(_mean([r[-1].bytes.total.mean for r in run.by_seed])) if run.by_seed else "-"
    why = f'<small class="why">{escape(plain(state.why, 90))}</small>' if state.state == "failed" and state.why else ""
    return [
        f'<a href="/run/{run.key}">{escape(name)}</a>{why}',
        badge(state.state, plain(state.why)),
        f"{of_planned(run.round, run.experiment, ' / ')}{done}",
        *([_simulated(run)] if timed else []),
        seeds,
        f"<b>{_figure(run, values[-1])}</b>" if values else "-",
        spark(values, f"from {_figure(run, values[0])} to {_figure(run, values[-1])}" if values else "no record yet"),
        sent,
    ]


def labels(runs: Sequence[WatchedRun]) -> list[str]:
    """Names if they distinguish runs, otherwise with their directory."""
    names = Counter(run.name for run in runs)
    return [run.name if names[run.name] == 1 else f"{run.name} ({plain(run.path.name, 60)})" for run in runs]


def _values(run: WatchedRun) -> list[float]:
    """Accuracy or loss by round, the mean over the seeds that have it."""
    if not run.by_seed:
        return []
    return [v for v in curve(run.by_seed, _what(run), partial=True).mean if math.isfinite(v)]


def _what(run: WatchedRun) -> str:
    return "accuracy" if run.classes else "loss"


def _figure(run: WatchedRun, value: float) -> str:
    return f"{100 * value:.2f} %" if run.classes else f"{value:.4g}"


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


# -- a run ------------------------------------------------------------------------------------------------------------


def run_page(catalogue: Catalogue, run: WatchedRun) -> LivePage:
    """One experiment: a line for each seed."""
    state = run.state
    clock = ["simulated"] if _seconds(run) is not None else []
    before, after = table(["seed", "state", "round", *clock, _what(run), "least", "most", "loss", "D(X)", "sent per node"], "")  # fmt: skip
    looks = [LineStyle(run.kind, i) for i in range(len(run.known))]
    series = [(f"seed {seed.number}", look, seed.records) for seed, look in zip(run.known, looks, strict=True)]
    pieces: list[tuple[str | None, str]] = [
        (None, _crumbs(catalogue, run.group, run.path)),
        (None, f"<h1>{escape(run.name)}</h1>"),
        block("state", state_line(state.state, state.why)),
        block("tiles", _run_tiles(run)),
        block("notes", notes([s.problem for s in run.seeds.values() if s.problem])),
        *figures(series, classes=run.classes, rounds=round_label([run.experiment])),
        (None, f"<section><h2>Seeds</h2>{before}"),
        *(block(f"s-{seed.number}", row(_seed_cells(run, seed)), "tr") for seed in run.known),
        (None, f"{after}<p>{escape(ABOUT_DISAGREEMENT)}.</p></section>"),
        (None, _settings(run)),
    ]
    if run.by_seed:
        pieces.append(
            (None, f'<p><a href="/report/run/{run.key}">The whole report</a>, as of the moment it is opened.</p>')
        )
    return LivePage(f"{_progress(run)} {run.name} - epidemic", pieces)


def _progress(run: WatchedRun) -> str:
    state = run.state.state
    return of_planned(run.round, run.experiment) if state == "running" else f"{state}:"


def state_line(state: str, why: str) -> str:
    """Return the HTML of a state with its reason."""
    return f'<p class="state">{badge(state)} {escape(plain(why, 600))}</p>'


def _crumbs(catalogue: Catalogue, group: Path, path: Path) -> str:
    title = escape(catalogue.title(group))
    several = len(catalogue.groups.get(group, ())) > 1
    return f'<p class="crumbs"><a href="/">all</a> / {f"""<a href="/group/{key_of(group)}">{title}</a>""" if several else title} / {escape(plain(path.name, 80))}</p>'


def _run_tiles(run: WatchedRun) -> str:
    values = _values(run)
    free = TRAININGS if without_rounds(run.experiment) else "round"
    planned = rounds_planned(run.experiment)
    found = [(free, str(run.round), "" if planned is None else f"of {planned}"), ("seeds done", str(sum(s.ended for s in run.known)), f"of {run.wanted}")]  # fmt: skip
    if _seconds(run) is not None:
        found.insert(1, ("simulated", _simulated(run), ""))
    if values:
        top = max(values) if run.classes else min(values)
        found.append((_what(run), _figure(run, values[-1]), f"best {_figure(run, top)}"))
    if run.by_seed:
        last = [records[-1] for records in run.by_seed]
        found.append(("loss", f"{_mean([r.loss.mean for r in last]):.4g}", ""))
        apart = [r.disagreement for r in last if r.disagreement is not None]
        if apart:
            found.append(("disagreement", f"{_mean(apart):.3g}", "D(X)"))
        found.append(("sent", size(_mean([r.bytes.total.mean for r in last])), "per node"))
        nodes = run.experiment.get("nodes")
        found += _busy([r.time for r in last if r.time is not None])
        found.append(("nodes up", str(min(r.alive for r in last)), f"of {nodes}" if isinstance(nodes, int) else ""))
    return tiles(found)


def _busy(moments: Sequence[Moment]) -> list[tuple[str, str, str]]:
    """How busy processors and uplinks were, and how old messages are when they are used."""
    found = []
    if moments:
        uplinks = [m.uplink for m in moments if m.uplink is not None]
        more = f"uplinks {100 * _mean(uplinks):.0f} %" if uplinks else ""
        found.append(("processors busy", f"{100 * _mean([m.busy for m in moments]):.0f} %", more))
    ages = [m.staleness for m in moments if m.staleness is not None]
    return [*found, ("staleness", simulated(_mean(ages)), "mean")] if ages else found


def _seed_cells(run: WatchedRun, seed: WatchedSeed) -> list[str]:
    state = WatchedRun.unfinished(seed)
    cells = [str(seed.number), badge(state.state, plain(state.why)), of_planned(seed.round, run.experiment, " / ")]
    timed = _seconds(run) is not None
    if not seed.records:
        return [*cells, *["-"] * (6 + timed)]
    last = seed.records[-1]
    if timed:
        cells.append("-" if last.time is None else simulated(last.time.seconds))
    spread = last.accuracy if run.classes and last.accuracy is not None else last.loss
    apart = "-" if last.disagreement is None else f"{last.disagreement:.3g}"
    of = [_figure(run, v) for v in (spread.mean, spread.min, spread.max)]
    return [*cells, *of, f"{last.loss.mean:.4g}", apart, size(last.bytes.total.mean)]


def _settings(run: WatchedRun) -> str:
    def shown(value: Any) -> str:
        return plain(value if isinstance(value, str) else msgspec.json.encode(value).decode(), 200)

    rows = "".join(f"<tr>{row([escape(plain(k, 80)), escape(shown(v))])}</tr>" for k, v in flat(run.experiment).items())
    return (
        f"<section><details><summary>Settings</summary>{''.join(table(['setting', 'value'], rows))}</details></section>"
    )


# -- several runs -----------------------------------------------------------------------------------------------------


def group_page(catalogue: Catalogue, path: Path, runs: list[WatchedRun]) -> LivePage:
    """A page for a sweep, a comparison, or any runs in a directory: a line for each, the mean over seeds."""
    begun = [run for run in runs if run.by_seed]
    drawn = chosen(begun)
    looks = looks_of([run.experiment for run in drawn]) if drawn else []
    series = [(name, look, run.by_seed) for run, name, look in zip(drawn, labels(drawn), looks, strict=True)]
    counts = Counter(run.state.state for run in runs)
    few = (
        f"{len(drawn)} of {len(begun)} runs are drawn: the running ones, then the best."
        if len(drawn) < len(begun)
        else ""
    )
    pieces: list[tuple[str | None, str]] = [
        (None, f'<p class="crumbs"><a href="/">all</a> / {escape(catalogue.title(path))}</p>'),
        (None, f"<h1>{escape(catalogue.title(path))}</h1>"),
        block("counts", _counts(counts, len(runs))),
        block("few", f"<p>{few}</p>" if few else ""),
        *figures(
            series, classes=all(run.classes for run in drawn), rounds=round_label([run.experiment for run in drawn])
        ),
        (None, "<section><h2>Runs</h2>"),
        *runs_table(runs),
        (None, "</section>"),
    ]
    if begun:
        pieces.append((None, f'<p><a href="/report/group/{key_of(path)}">The whole report</a>, as of the moment it is opened.</p>'))  # fmt: skip
    ended = f"{counts['finished']}/{len(runs)}"
    return LivePage(f"{ended} {catalogue.title(path)} - epidemic", pieces)


def chosen(runs: Sequence[WatchedRun]) -> list[WatchedRun]:
    """The runs that are drawn: all, or the running ones and then the best, in their order."""
    if len(runs) <= MOST_LINES:
        return list(runs)
    sign = -1 if all(run.classes for run in runs) else 1
    ranked = sorted(runs, key=lambda run: (run.state.state != "running", sign * (_values(run) or [math.inf])[-1]))
    kept = {run.key for run in ranked[:MOST_LINES]}
    return [run for run in runs if run.key in kept]


Lines = Sequence[tuple[str, LineStyle, list[Record] | list[list[Record]]]]


def figures(lines: Lines, *, classes: bool, rounds: str = "round") -> list[tuple[str | None, str]]:
    """The charts of learning, each of which can be exchanged alone; `rounds` is what their axis is called."""
    by_seed: list[tuple[str, LineStyle, list[list[Record]]]] = []
    for name, look, records in lines:
        several = [r for r in records if isinstance(r, list)]
        single = [r for r in records if isinstance(r, Record)]
        if several or single:
            by_seed.append((name, look, several or [single]))
    if not by_seed:
        return [(None, '<p class="waiting">Curves appear with the first evaluation.</p>')]
    legend = "".join(f"<li>{_swatch(look)}{escape(name)}</li>" for name, look, _ in by_seed)
    plans: list[tuple[str, str, str, str, float, dict[str, Any]]] = [
        ("loss", "loss", "Loss", "loss over nodes", 1.0, {}),
        ("apart", "disagreement", "Disagreement", "D(X), log", 1.0, {"log_y": True}),
        ("sent", "bytes", "Traffic", "sent per node (MiB)", 1 / 2**20, {"from_zero": True}),
    ]
    if classes:
        plans.insert(0, ("accuracy", "accuracy", "Accuracy", "accuracy over nodes (%)", 100.0, {}))
    drawn = [
        block(f"f-{name}", _chart(name, title, label, by_seed, value, factor, options, ("rounds", rounds)), "figure")
        for name, value, title, label, factor, options in plans
    ]
    if all(r.time is not None for _, _, seeds in by_seed for records in seeds for r in records):
        _, value, title, label, factor, options = plans[0]
        chart = _chart(
            "time",
            f"{title} by simulated time",
            label,
            by_seed,
            value,
            factor,
            options,
            ("seconds", "simulated time (s)"),
        )
        drawn.insert(1, block("f-time", chart, "figure"))
    head = f'<section><h2>Learning</h2><ul class="legend">{legend}</ul><div class="grid2">' if len(by_seed) > 1 else '<section><h2>Learning</h2><div class="grid2">'  # fmt: skip
    return [(None, head), *drawn, (None, "</div></section>")]


def _chart(name: str, title: str, label: str, by_seed: list[tuple[str, LineStyle, list[list[Record]]]], value: str, factor: float,
           options: dict[str, Any], axis: tuple[str, str]) -> str:  # fmt: skip
    """A chart; `axis`: the name in `statistics.curve`, and the label."""
    series = [_series(line, look, records, value, factor, axis[0]) for line, look, records in by_seed]
    unit = ("round ", "") if axis[0] == "rounds" else ("", " s")
    said = "; ".join(f"{s.name}: {s.y[-1]:.4g} at {unit[0]}{s.x[-1]:.0f}{unit[1]}" for s in series if s.y)
    what = f"{title} against rounds" if axis[0] == "rounds" else title
    chart = charts.line_chart(name, what, f"{title}. {said}.", series, axis[1], label, **options)
    return f"{chart}<figcaption>{title}</figcaption>"


def _series(name: str, look: LineStyle, by_seed: list[list[Record]], value: str, factor: float, axis: str) -> Series:
    found = curve(by_seed, value, partial=True)
    wide = [factor * v for v in found.half_width] if len(by_seed) >= FEWEST_FOR_BANDS else []
    xs = found.rounds if axis == "rounds" else along(curve(by_seed, axis, partial=True), found)
    return Series(name, look, [float(t) for t in xs], [factor * v for v in found.mean], wide)


def _swatch(look: LineStyle) -> str:
    return f'<svg class="swatch" viewBox="0 0 28 10" aria-hidden="true"><line class="line" style="{look.style}"{look.dash} x1="1" x2="27" y1="5" y2="5"/></svg>'

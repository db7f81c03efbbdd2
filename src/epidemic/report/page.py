"""The report: one HTML page that holds everything and asks for nothing, made from results only."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from typing import Any

import msgspec

from epidemic import __version__
from epidemic.report import charts
from epidemic.report.charts import Look, Series
from epidemic.report.results import NodeResult, Result, Results, SeedResult
from epidemic.report.statistics import Curve, Interval, best, curve, disagreement_of, first_reaching, mean_reaching

GIB, MIB = 2**30, 2**20
NODES_SHOWN = 200
"""More nodes than these are not drawn one by one."""


class Target(msgspec.Struct, frozen=True):
    """The accuracy whose cost is compared."""

    accuracy: float
    source: str


def page(results: Results, title: str = "Epidemic Learning: results", target: float | None = None) -> str:
    """The whole page."""
    return _Page(results, title, target).text()


class _Page:
    def __init__(self, results: Results, title: str, target: float | None) -> None:
        settled = [run.settled() for run in results.runs]
        self.results, self.title = results, title
        self.notes = [*results.notes, *(note for _, left in settled for note in left)]
        self.runs = [run for run, _ in settled]
        self.notes += [_disconnected(run) for run in results.runs if run.disconnected]
        kinds = [charts.colour_name(run.kind) for run in self.runs]
        self.looks = [Look(run.kind, kinds[:i].count(kinds[i])) for i, run in enumerate(self.runs)]
        self.classes = all(r.accuracy is not None for run in self.runs for records in run.by_seed for r in records)
        self.target = self._target(target) if self.classes else None
        largest = max(max(curve(run.by_seed, "bytes").mean) for run in self.runs)
        self.unit, self.unit_name = (GIB, "GiB") if largest >= GIB else (MIB, "MiB")

    def _target(self, given: float | None) -> Target:
        if given is not None:
            return Target(given, "given")
        static = [run for run in self.runs if run.kind == "regular"] or self.runs[:1]
        tops = [(max(curve(run.by_seed, "accuracy").mean), run.label) for run in static]
        return Target(max(tops)[0], f"the best mean of {max(tops)[1]}")

    def text(self) -> str:
        sections = [
            self._summary(),
            self._learning(),
            self._cost() if self.target is not None else "",
            self._nodes(),
            self._classes(),
            self._load(),
            self._differences(),
            self._environment(),
        ]
        style = (files("epidemic.report") / "page.css").read_text(encoding="utf-8")
        notes = "".join(f"<li>{escape(note)}</li>" for note in self.notes)
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">"
            f'<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,"><title>{escape(self.title)}</title>'
            f"<style>\n{style}</style></head><body><header><h1>{escape(self.title)}</h1>"
            f"<p>{_count(len(self.runs), 'experiment')}, {_count(sum(len(r.seeds) for r in self.runs), 'run')} over all seeds."
            " Means over seeds; ± and bands are 95 % intervals (Student t).</p>"
            f"{f'<ul class=notes>{notes}</ul>' if notes else ''}</header><main>{''.join(sections)}</main>"
            f"<footer>Made by epidemic {__version__}. This page is one file and loads nothing.</footer></body></html>\n"
        )

    # -- sections -----------------------------------------------------------------------------------------------------

    def _summary(self) -> str:
        heads = ["run", "seeds", "rounds"]
        if self.classes:
            heads += ["best accuracy (%)", "at the end, all test samples (%)", "averaged model (%)"]
        heads += ["best loss", "disagreement", f"sent per node ({self.unit_name})"]
        rows = []
        for run, look in zip(self.runs, self.looks, strict=True):
            top, low = best(run.by_seed)
            done = [seed.summary for seed in run.seeds if seed.summary is not None]
            cells = [str(len(run.seeds)), str(min(r[-1].round for r in run.by_seed))]
            if self.classes:
                final = [s.final_accuracy.mean for s in done if s.final_accuracy is not None]
                mean = [s.final_mean_model_accuracy for s in done if s.final_mean_model_accuracy is not None]
                cells += [_interval(top, 100, 2), _mean(final, 100), _mean(mean, 100)]
            apart = Interval.of([disagreement_of(r[-1]) for r in run.by_seed])
            sent = Interval.of([r[-1].bytes.total.mean for r in run.by_seed])
            cells += [
                _interval(low, 1, 3),
                "-" if math.isnan(apart.mean) else f"{apart.mean:.3g}",
                f"{sent.mean / self.unit:.2f}",
            ]
            rows.append([self._name(run, look), *cells])
        note = "Accuracy and loss are those of the nodes' own models, averaged over nodes."
        return _section("Summary", f"{_table(heads, rows)}<p>{note}</p>")

    def _learning(self) -> str:
        what = "accuracy" if self.classes else "loss"
        factor, unit = (100, "%") if self.classes else (1, "")
        label = f"{what} over nodes ({unit})" if unit else f"{what} over nodes"
        found = [curve(run.by_seed, what) for run in self.runs]
        sent = [curve(run.by_seed, "bytes") for run in self.runs]
        level = None if self.target is None else 100 * self.target.accuracy
        by_round = self._series([[float(t) for t in c.rounds] for c in found], found, factor)
        by_bytes = self._series([[b / self.unit for b in s.mean] for s in sent], found, factor)
        apart = [curve(run.by_seed, "disagreement") for run in self.runs]
        spread = [curve(run.by_seed, f"{what}_sd") for run in self.runs]
        figures = [
            self._figure("rounds", f"{what.title()} against rounds", by_round, "round", label, target=level),
            self._figure("bytes", f"{what.title()} against traffic", by_bytes, f"sent per node ({self.unit_name}, log)", label,
                         log_x=True, target=level),
            self._figure("apart", "Disagreement D(X)", self._series([[float(t) for t in c.rounds] for c in apart], apart, 1), "round",
                         "D(X), log", log_y=True),
            self._figure("spread", f"Spread of {what} over nodes", self._series([[float(t) for t in c.rounds] for c in spread], spread, factor),
                         "round", f"standard deviation ({unit or what})", from_zero=True),
        ]  # fmt: skip
        legend = "The dotted line is the target of the next section." if level is not None else ""
        return _section("Learning", f"{self._legend()}<div class=grid2>{''.join(figures)}</div><p>{legend}</p>")

    def _cost(self) -> str:
        assert self.target is not None
        heads = [
            "run",
            "rounds",
            f"sent per node ({self.unit_name})",
            "seconds of computing",
            "seeds that reach it alone",
        ]
        rows, bars_rounds, bars_bytes = [], [], []
        for run, look in zip(self.runs, self.looks, strict=True):
            alone = sum(first_reaching(seed.records, self.target.accuracy) is not None for seed in run.seeds)
            found = mean_reaching(run.by_seed, self.target.accuracy)
            rounds, sent = (None, None) if found is None else (found[0], found[1] / self.unit)
            times = [seed.seconds.get(rounds) for seed in run.seeds] if rounds is not None else []
            known = [t for t in times if t is not None]
            cells = (
                ["-"] * 3
                if rounds is None
                else [str(rounds), f"{sent:.2f}", f"{sum(known) / len(known):.0f}" if known else "-"]
            )
            rows.append([self._name(run, look), *cells, f"{alone} of {len(run.seeds)}"])
            bars_rounds.append((run.label, look, rounds))
            bars_bytes.append((run.label, look, sent))
        said = "; ".join(f"{n}: {'not reached' if v is None else f'{v:.0f} rounds'}" for n, _, v in bars_rounds)
        paid = "; ".join(
            f"{n}: {'not reached' if v is None else f'{v:.2f} {self.unit_name}'}" for n, _, v in bars_bytes
        )
        figures = _plain_figure(
            "Rounds to the target", charts.bar_chart("torounds", "Rounds to the target", said, bars_rounds, "rounds")
        )
        figures += _plain_figure(
            "Traffic to the target",
            charts.bar_chart("tobytes", "Traffic to the target", paid, bars_bytes, f"sent per node ({self.unit_name})"),
        )
        intro = f"Until {100 * self.target.accuracy:.2f} % accuracy ({escape(self.target.source)}), reached by the mean over seeds; seconds are those of the simulation."
        return _section(
            "Time and bytes to target", f"<p>{intro}</p>{_table(heads, rows)}<div class=grid2>{figures}</div>"
        )

    def _nodes(self) -> str:
        rows = []
        for run, look in zip(self.runs, self.looks, strict=True):
            seed = _finished(run)
            if seed is not None:
                values = [n.final_accuracy if self.classes else n.final_loss for n in seed.nodes or []]
                rows.append((run.label, look, [(100 if self.classes else 1) * v for v in values if v is not None]))
        rows = [row for row in rows if row[2]]
        if not rows:
            return ""
        what = "accuracy (%)" if self.classes else "loss"
        said = "; ".join(f"{n}: mean {sum(v) / len(v):.4g}, from {min(v):.4g} to {max(v):.4g}" for n, _, v in rows)
        chart = charts.strip_chart(
            "strip", f"Final {what} of every node", said, rows, f"final {what}, all test samples"
        )
        note = "First finished seed of each; a dot is a node, the bar their mean."
        return _section(
            "Every node at the end", f"<div class=grid1>{_plain_figure('Final models', chart)}</div><p>{note}</p>"
        )

    def _classes(self) -> str:
        shown: dict[str, tuple[str, list[list[int]], list[str]]] = {}
        for run in self.runs:
            seed = _finished(run)
            counts = [n.classes for n in seed.nodes or [] if n.classes is not None] if seed is not None else []
            if counts:
                called = run.seeds[0].info.classes
                classes = called if len(called) == len(counts[0]) else [str(k) for k in range(len(counts[0]))]
                key = msgspec.json.encode([classes, counts]).decode()
                names = f"{shown[key][0]}, {run.label}" if key in shown else run.label
                shown[key] = names, counts, classes
        figures = []
        for i, (names, counts, classes) in enumerate(list(shown.values())[:4]):
            part = counts[:NODES_SHOWN]
            held = [sum(c > 0 for c in row) for row in counts]
            share = [max(row) / max(sum(row), 1) for row in counts]
            said = (
                f"{len(counts)} nodes hold {sum(map(sum, counts)):,} samples; on average {sum(held) / len(held):.1f} of {len(counts[0])}"
                f" classes, and {100 * sum(share) / len(share):.0f} % of a node's samples are of its largest class."
            )
            if len(part) < len(counts):
                said += f" The first {NODES_SHOWN} are shown."
            chart = charts.heat_chart(f"heat{i}", "Classes on the nodes", said, part, classes)
            caption = "Classes on the nodes" if len(shown) == 1 else f"Classes on the nodes: {names}"
            figures.append(_plain_figure(caption, chart, said))
        more = f"<p>{len(shown) - 4} more splits are not shown.</p>" if len(shown) > 4 else ""
        return _section("Data", f"<div class=grid2>{''.join(figures)}</div>{more}") if figures else ""

    def _load(self) -> str:
        degrees, loads, said_degrees, said_loads = [], [], [], []
        for run, look in zip(self.runs, self.looks, strict=True):
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
            sent = sorted(_sent(n) / self.unit for n in nodes)
            loads.append(Series(run.label, look, [100 * i / max(len(sent) - 1, 1) for i in range(len(sent))], sent))
            mean = sum(k * v for k, v in count.items()) / total
            said_degrees.append(f"{run.label}: mean {mean:.2f}, from {min(count)} to {max(count)}")
            said_loads.append(f"{run.label}: from {sent[0]:.3g} to {sent[-1]:.3g} {self.unit_name}")
        if not degrees:
            return ""
        figures = _plain_figure(
            "Models received in a round",
            charts.line_chart("degree", "Models received in a round", "; ".join(said_degrees), degrees, "models received", "share of nodes and rounds (%)",
                              from_zero=True),
        ) + _plain_figure(
            "Load: what each node sent",
            charts.line_chart("load", "What each node sent", "; ".join(said_loads), loads, "nodes, from the least to the most (%)",
                              f"sent ({self.unit_name})", from_zero=True),
        )  # fmt: skip
        return _section("In-degree and load", f"{self._legend()}<div class=grid2>{figures}</div>")

    def _differences(self) -> str:
        keys = self.results.differing
        if not keys:
            return _section(
                "What differs",
                "<p>Nothing but names and seeds.</p>" if len(self.runs) > 1 else "<p>There is one experiment.</p>",
            )
        rows = [
            [self._name(run, look), *(_setting(self.results.setting(run, key)) for key in keys)]
            for run, look in zip(self.runs, self.looks, strict=True)
        ]
        return _section("What differs", _table(["run", *keys], rows))

    def _environment(self) -> str:
        rows = []
        for run, look in zip(self.runs, self.looks, strict=True):
            info = run.seeds[0].info
            machine = f"{info.machine.get('system', '?')}, {info.machine.get('cores', '?')} cores"
            versions = ", ".join(f"{k} {v}" for k, v in info.versions.items())
            time = sum(max(s.seconds.values(), default=0.0) for s in run.seeds)
            rows.append(
                [
                    self._name(run, look),
                    escape(versions),
                    escape(machine),
                    escape(info.data) or "-",
                    escape(info.strategy),
                    f"{time:.0f}",
                ]
            )
        heads = ["run", "versions", "machine", "note on the data", "strategy", "seconds of computing"]
        common = {k: v for k, v in self.results.common().items() if k != "format"}
        settings = _table(["setting", "value"], [[escape(k), _setting(v)] for k, v in common.items()])
        details = f"<details><summary>Settings that all share</summary>{settings}</details>"
        return _section("Environment", _table(heads, rows) + details)

    # -- parts --------------------------------------------------------------------------------------------------------

    def _name(self, run: Result, look: Look) -> str:
        unfinished = "" if run.finished else " <em>(unfinished)</em>"
        return f"{_swatch(look)}{escape(run.label)}{unfinished}"

    def _legend(self) -> str:
        entries = "".join(
            f"<li>{_swatch(look)}{escape(run.label)}</li>" for run, look in zip(self.runs, self.looks, strict=True)
        )
        return f"<ul class=legend>{entries}</ul>"

    def _series(self, xs: Sequence[list[float]], found: Sequence[Curve], factor: float) -> list[Series]:
        return [
            Series(run.label, look, x, [factor * v for v in c.mean], [factor * h for h in c.half_width])
            for run, look, x, c in zip(self.runs, self.looks, xs, found, strict=True)
        ]

    def _figure(self, name: str, title: str, series: list[Series], x_label: str, y_label: str, **options: Any) -> str:
        said = "; ".join(f"{s.name}: {s.y[0]:.4g} at the start, {s.y[-1]:.4g} at the end" for s in series if s.y)
        chart = charts.line_chart(name, title, f"{title}. {said}.", series, x_label, y_label, **options)
        shown = [s for s in series if s.x]
        data = _table(
            ["run", x_label, y_label, "±"],
            [
                [
                    escape(s.name),
                    f"{s.x[i]:.6g}",
                    f"{s.y[i]:.6g}",
                    f"{s.half_width[i]:.3g}" if any(s.half_width) else "-",
                ]
                for s in shown
                for i in _some(len(s.x))
            ],
        )
        return f"<figure>{chart}<figcaption>{escape(title)}</figcaption><details><summary>Numbers</summary>{data}</details></figure>"


def _disconnected(run: Result) -> str:
    seeds = ", ".join(map(str, run.disconnected))
    return (
        f"the static graph of {run.label} is disconnected (seed{'s' if len(run.disconnected) > 1 else ''} {seeds}):"
        " models of some nodes never reach all others"
    )


def _finished(run: Result) -> SeedResult | None:
    return next((seed for seed in run.seeds if seed.nodes), None)


def _sent(node: NodeResult) -> int:
    return sum(node.bytes.values())


def _some(count: int, most: int = 12) -> list[int]:
    """Some of many places, the last among them."""
    step = max(1, count // most)
    return sorted({*range(0, count, step), count - 1})


def _section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{content}</section>"


def _plain_figure(title: str, chart: str, text: str = "") -> str:
    return f"<figure>{chart}<figcaption>{escape(title)}{'. ' + escape(text) if text else ''}</figcaption></figure>"


def _swatch(look: Look) -> str:
    return f'<svg class=swatch viewBox="0 0 28 10" aria-hidden="true"><line class="line" style="{look.style}"{look.dash} x1="1" x2="27" y1="5" y2="5"/></svg>'


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Cells are HTML; the heads are text."""
    top = "".join(f"<th scope=col>{escape(head)}</th>" for head in heads)
    body = "".join(
        f"<tr><th scope=row>{row[0]}</th>{''.join(f'<td>{cell}</td>' for cell in row[1:])}</tr>" for row in rows
    )
    return f"<div class=scroll tabindex=0><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"


def _setting(value: Any) -> str:
    if value is None:
        return "-"
    return escape(value if isinstance(value, str) else msgspec.json.encode(value).decode())


def _interval(value: Interval, factor: float, digits: int) -> str:
    mean = f"{factor * value.mean:.{digits}f}"
    return mean if value.half_width is None else f"{mean} ± {factor * value.half_width:.{digits}f}"


def _mean(values: Sequence[float], factor: float) -> str:
    return _interval(Interval.of(values), factor, 2) if values else "-"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"

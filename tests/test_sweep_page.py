"""Runs of a sweep are drawn by what differs between them, and the report says what the settings do."""

import json
import math
import re
import subprocess
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epidemic.cli import main
from epidemic.cli.experiments import _print_run
from epidemic.core.formatting import interval, percent
from epidemic.record import MeanMax, OwnSpread, Record, Spread, Summary, Traffic, encode
from epidemic.report import style
from epidemic.report.charts import Axis, ChartPoint, LineStyle, value_chart
from epidemic.report.curves import learning_figure, lines_of
from epidemic.report.page import page
from epidemic.report.parts import shown, shown_interval
from epidemic.report.results import read_results
from epidemic.report.settings import ComparedSettings, differing, looks_of, settings_of
from epidemic.report.statistics import Interval
from epidemic.study.sweep import grid_jobs, parse_grid
from test_page import BROWSER, Reader, needs_browser

TABLE = {"nodes": 8, "rounds": 100, "topology": {"kind": "el-local", "s": 3}, "data": {"kind": "digits"}}
NAMES = ["T-shirt", "<i>pullover</i>", "a dress with a very long name"]


# -- runs as they lie in directories, without training ----------------------------------------------------------------


def jobs(out, *grid, seeds=3):
    return grid_jobs(TABLE, parse_grid(grid), Path(out), seeds=seeds)


def write(job, value, *, seeds=None, ends=None, every=20, metrics=(), state=None):
    """All seeds of a run, whose accuracy goes from 0.1 to about `value`; it ends at round `ends` of 100."""
    for seed in seeds or job.experiment.seeds:
        end = ends(seed) if ends else 100
        records = [
            _record(seed, t, 0.1 + (value + 0.01 * seed - 0.1) * t / 100, metrics) for t in range(0, end + 1, every)
        ]
        directory = job.path / f"seed-{seed}"
        directory.mkdir(parents=True)
        (directory / "records.jsonl").write_bytes(b"".join(map(encode, records)))
        info = {"experiment": job.experiment.table(), "seed": seed, "strategy": "stacked", "versions": {}, "machine": {}, "classes": NAMES}  # fmt: skip
        (directory / "run.json").write_bytes(msgspec.json.encode(info))
        if state is not None:
            (directory / "state.json").write_text(json.dumps(state))
            continue
        last = records[-1]
        summary = Summary(
            name=job.experiment.name, seed=seed, rounds=end, best_accuracy=last.accuracy.mean, best_accuracy_round=end,
            best_loss=last.loss.mean, best_loss_round=end, final_accuracy=last.accuracy, final_loss=last.loss,
            final_mean_model_accuracy=last.accuracy.mean, final_mean_model_loss=last.loss.mean, final_disagreement=1e-3,
            final_metrics=last.metrics, test_samples=100, bytes=last.bytes,
        )  # fmt: skip
        (directory / "summary.json").write_bytes(encode(summary))
        nodes = [{"node": 0, "samples": 6, "classes": [1, 2, 3], "bytes": {"model": 9}, "in_degree": {"3": 9}, "final_loss": 1.0, "final_accuracy": value}]  # fmt: skip
        (directory / "nodes.json").write_text(json.dumps(nodes))


def _record(seed, t, accuracy, metrics):
    sent, none = MeanMax(1000.0 * t, 1100 * t), MeanMax(0.0, 0)
    own = {name: OwnSpread(found, 0.0, found, found) for name, found in dict(metrics).items()}
    return Record(
        round=t, seed=seed, alive=8, accuracy=Spread(accuracy, 0.02, accuracy, accuracy), loss=Spread(2.3 - accuracy, 0.1, 0, 1),
        disagreement=1e-3, bytes=Traffic(sent, none, none, sent), metrics=own,
    )  # fmt: skip


def swept(out, *grid, seeds=3, **more):
    """The page of a sweep whose runs are the better, the later they come."""
    for i, job in enumerate(jobs(out, *grid, seeds=seeds)):
        write(job, 0.3 + 0.05 * i, **more)
    return page(read_results(out))


def section(text, title):
    return next(part for part in re.findall(r"<section>.*?</section>", text, re.S) if f"<h2>{title}</h2>" in part)


def figure(text, caption):
    return next(f for f in re.findall(r"<figure>.*?</figure>", text, re.S) if f"<figcaption>{caption}" in f)


def lines(svg):
    return re.findall(r'<polyline class="line" style="([^"]*)"( stroke-dasharray="[^"]*")?', svg)


# -- what differs -----------------------------------------------------------------------------------------------------


def tables(*changes):
    return [
        {**TABLE, "name": str(i), "algorithm": {"lr": 0.1}, **change} if "topology" in change
        else {**TABLE, "name": str(i), "algorithm": change} for i, change in enumerate(changes)
    ]  # fmt: skip


def test_numbers_are_ordered_by_size_and_words_as_they_come():
    design = ComparedSettings.of(tables({"lr": 0.3}, {"lr": 0.01}, {"lr": 0.1}))
    assert [(s.key, s.name, s.values, s.ordered) for s in design.settings] == [
        ("algorithm.lr", "lr", [0.01, 0.1, 0.3], True)
    ]
    words = ComparedSettings.of(tables({"sampling": "replacement"}, {"sampling": "epoch"}, {"sampling": True}))
    assert words.settings[0].values == ["replacement", "epoch", "true"]
    assert not words.settings[0].ordered


@pytest.mark.parametrize(("values", "log"), [
    ([0.01, 0.1, 1], True), ([0.003, 0.01, 0.03], True), ([0.01, 1], True), ([1, 2, 4, 8], False), (list(range(1, 13)), False), ([0, 1, 100], False),
])  # fmt: skip
def test_a_logarithm_is_for_values_that_span_decades(values, log):
    assert ComparedSettings.of(tables(*({"lr": v} for v in values))).settings[0].log is log


def test_settings_that_change_together_are_one():
    design = ComparedSettings.of(tables({"lr": 0.1, "local_steps": 1}, {"lr": 0.05, "local_steps": 2}, {"lr": 0.01, "local_steps": 10}))  # fmt: skip
    assert [(s.key, s.together) for s in design.settings] == [("algorithm.lr", ["algorithm.local_steps"])]
    search = ComparedSettings.of(tables({"lr": 0.1, "local_steps": 1}, {"lr": 0.05, "local_steps": 9}, {"lr": 0.01, "local_steps": 5}))  # fmt: skip
    assert len(search.settings) == 2, "values drawn at random do not change in step"
    assert not search.grid


def test_methods_side_by_side_keep_their_colours():
    kinds = [{"kind": "el-local", "s": 3}, {"kind": "regular", "s": 3}, {"kind": "u-equistatic", "m": 4}, {"kind": "complete"}]  # fmt: skip
    experiments = tables(*({"topology": kind} for kind in kinds))
    assert ComparedSettings.of(experiments).comparison
    assert looks_of(experiments) == [
        LineStyle("el-local"),
        LineStyle("regular"),
        LineStyle("u-equistatic"),
        LineStyle("complete"),
    ]
    more = tables(*({"topology": kind} for kind in [*kinds, {"kind": "el-local", "s": 5}]))
    assert looks_of(more)[-1] == LineStyle("el-local", 1), "one more of a kind has other dashes"


def test_kinds_in_a_grid_are_coloured_as_methods_and_dashed_by_the_other_setting():
    experiments = tables(*({"topology": {"kind": k, "s": s}} for k in ("el-local", "regular") for s in (2, 4)))
    assert not ComparedSettings.of(experiments).comparison
    assert looks_of(experiments) == [
        LineStyle("el-local", 0),
        LineStyle("el-local", 1),
        LineStyle("regular", 0),
        LineStyle("regular", 1),
    ]


def test_colours_of_a_sweep_are_distinct_and_in_order():
    found = looks_of(tables(*({"lr": 0.1 * 2**i} for i in range(9))))
    assert [look.place for look in found] == [i / 8 for i in range(9)]
    assert len({look.style for look in found}) == 9
    colours = [style.line_of(look)["color"] for look in found]
    assert len(set(colours)) == 9
    light = [_luminance(colour) for colour in colours]
    assert all(a < b for a, b in pairwise(light)), "each is lighter than the one before, to any eye"
    words = looks_of(tables(*({"sampling": f"w{i}"} for i in range(12))))
    assert len({(look.style, look.dash) for look in words}) == 12


def test_page_and_figures_have_the_same_colours():
    css = (files("epidemic.report") / "page.css").read_text()
    assert tuple(re.findall(r"--q\d: (#\w+)", css))[:5] == style.ORDERED
    assert len(re.findall(r"--q\d:", css)) == 10, "light and dark"
    assert len(re.findall(r"--w\d:", css)) == 2 * len(style.WORDS)


def _luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(a, b):
    high, low = sorted((_luminance(a), _luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_lines_and_cells_can_be_told_from_their_ground_in_light_and_dark():
    css = (files("epidemic.report") / "page.css").read_text()
    themes = css.split("@media (prefers-color-scheme: dark)")
    for theme in (themes[0], themes[1].split("* {")[0]):
        named = dict(re.findall(r"--([\w-]+): (#\w{6})", theme))
        for i in range(5):
            assert _contrast(named[f"q{i}"], named["card"]) > 2.4, i
        for depth in (0, 1):
            cell = style._mixed(named["card"], named["m-el-oracle"], 0.04 + 0.46 * depth)
            assert _contrast(named["text"], cell) > 4.5, "small text in a cell"
    assert "calc(4% + 0.46 * var(--d))" in css


def test_figures_of_a_sweep_have_one_colour_for_each_value():
    runs = [(str(lr), tables({"lr": lr}, {"lr": 9.0})[0], [[_record(1, t, 0.5, ()) for t in (0, 10)]]) for lr in (0.1, 0.2, 0.4)]  # fmt: skip
    drawn = lines_of(runs)
    axes = learning_figure(drawn, "a sweep").axes[0]
    assert len({line.get_color() for line in axes.get_lines()}) == 3
    assert {line.get_linestyle() for line in axes.get_lines()} == {"-"}


# -- one setting ------------------------------------------------------------------------------------------------------


def test_one_setting_is_a_curve_of_what_came_out_with_intervals(tmp_path):
    text = swept(tmp_path / "s", "algorithm.lr=0.003,0.01,0.03,0.1,0.3")
    part = figure(text, "Final accuracy against algorithm.lr")
    assert part.count('<circle class="dot"') == 5
    assert part.count('<line class="line"') == 5, "an interval each"
    assert "algorithm.lr, log" in part
    assert "lr=0.003: 32.0 ± 2.5" in part
    assert [t for t in re.findall(r'text-anchor="middle">([^<]*)<', part) if t in ("0.003", "0.01", "0.03", "0.1", "0.3")] == ["0.003", "0.01", "0.03", "0.1", "0.3"]  # fmt: skip
    drawn = lines(figure(text, "Loss against rounds"))
    assert len(set(drawn)) == 5
    assert not any(dash for _, dash in drawn), "one setting needs no dashes"
    Reader(text)


def test_dots_of_one_seed_have_no_interval_and_words_have_rows(tmp_path):
    text = swept(tmp_path / "s", "partition.kind=iid,shards,dirichlet", seeds=1)
    part = figure(text, "Final accuracy against partition.kind")
    assert part.count('<circle class="dot"') == 3
    assert '<line class="line"' not in part
    assert ">dirichlet</text>" in part


def test_wide_intervals_do_not_squeeze_the_means():
    look = LineStyle(place=0.0)
    points = [ChartPoint("a", look, 1.0, 50.0, 500.0), ChartPoint("b", look, 2.0, 60.0, 1.0)]
    heights = [float(y) for y in re.findall(r'cy="([\d.]+)"', value_chart("c", "t", "d", points, "x", "y"))]
    assert heights[0] - heights[1] > 60


# -- two settings -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    return swept(tmp_path_factory.mktemp("grid") / "s", "algorithm.lr=0.01,0.1,1.0", "topology.s=2,4,6")


def test_a_grid_is_a_heat_map_with_its_numbers(grid):
    table = figure(grid, "Final accuracy")
    rows = [re.findall(r"<td style[^>]*>([\d.]+)<small>±\xa0([\d.]+)</small>", row) for row in table.split("<tr>")[3:]]
    assert [[mean for mean, _ in row] for row in rows] == [
        [f"{32 + 5 * (3 * lr + s):.2f}" for lr in range(3)] for s in range(3)
    ]
    assert {half for row in rows for _, half in row} == {"2.48"}
    depths = [int(d) for d in re.findall(r"--d:(\d+)%", table)]
    assert (min(depths), max(depths)) == (0, 100)
    assert 'title="s = 6, lr = 1.0: 72.00 ± 2.48, 3 seeds"' in table


def test_a_low_loss_is_strong_and_a_high_one_weak(grid):
    table = figure(grid, "Final loss")
    cells = re.findall(r"--d:(\d+)%[^>]*>([\d.]+)<", table)
    assert min(cells, key=lambda c: float(c[1]))[0] == "100"


def test_each_value_of_the_first_setting_has_a_panel_with_the_same_axes(grid):
    part = section(grid, "What the settings do")
    panels = [figure(part, f"s = {s}") for s in (2, 4, 6)]
    assert part.count('class="panel"') == 6, "accuracy and loss"
    colours = [lines(panel) for panel in panels]
    assert all(len(set(found)) == 3 for found in colours)
    assert colours[0] == colours[1] == colours[2]
    ticks = [re.findall(r'text-anchor="end">([^<]*)<', panel) for panel in panels]
    assert ticks[0] == ticks[1] == ticks[2]


def test_where_all_are_in_one_chart_no_two_look_alike(grid):
    assert len(set(lines(figure(grid, "Accuracy against rounds")))) == 9
    legend = re.search(r"<h2>Learning</h2>(.*?)<div", grid, re.S)[1]
    assert re.findall(r"</svg>([^<]*)</li>", legend) == ["0.01", "0.1", "1.0", "2", "4", "6"]


def test_a_comparison_has_no_such_section(tmp_path):
    for i, kind in enumerate(("el-local", "regular")):
        job = grid_jobs({**TABLE, "topology": {"kind": kind, "s": 3}}, {"rounds": [100]}, tmp_path / kind)[0]
        write(job, 0.5 + 0.1 * i)
    text = page(read_results(tmp_path))
    assert "What the settings do" not in text
    assert "--c:var(--m-el-local)" in text
    assert "--q" not in text.split("</style>")[1]


# -- more settings ----------------------------------------------------------------------------------------------------


def test_of_three_settings_the_two_that_matter_most_are_shown(tmp_path):
    for job in jobs(tmp_path / "s", "algorithm.lr=0.01,0.1", "topology.s=2,4", "algorithm.local_steps=1,5", seeds=1):
        e = job.experiment
        write(job, 0.3 + 2 * e.algorithm.lr + 0.001 * e.topology.s + 0.01 * e.algorithm.local_steps)
    text = page(read_results(tmp_path))
    part = section(text, "What the settings do")
    assert "the two with the greatest: algorithm.lr and algorithm.local_steps" in part
    rows = re.findall(r"<tr><th scope=row>([\w.]+)</th><td>2</td><td>([\d.]+)</td>", part)
    assert rows == [("algorithm.lr", "18.00"), ("algorithm.local_steps", "4.00"), ("topology.s", "0.20")]
    assert [len(set(lines(figure(part, f"local_steps = {n}")))) for n in (1, 5)] == [4, 4]
    assert "differ in topology.s" in part


def test_a_random_search_has_dots_instead_of_panels(tmp_path):
    for i, (lr, steps) in enumerate([(0.1, 3), (0.02, 9), (0.5, 4), (0.33, 1), (0.05, 8), (0.07, 2)]):
        write(jobs(tmp_path / "s", f"algorithm.lr={lr}", f"algorithm.local_steps={steps}", seeds=1)[0], 0.3 + 0.1 * i)
    part = section(page(read_results(tmp_path)), "What the settings do")
    assert figure(part, "Final accuracy against algorithm.lr").count('class="dot"') == 6
    assert "joint" not in part
    assert "heatmap" not in part


# -- honest -----------------------------------------------------------------------------------------------------------


def test_what_failed_is_missing_or_unfinished_is_said_in_its_cell(tmp_path):
    first, second, third, _ = jobs(tmp_path / "s", "algorithm.lr=0.01,0.1", "topology.s=2,4")
    write(first, 0.5)
    write(second, 0.6, seeds=[1, 2])
    write(second, 0.6, seeds=[3], ends=lambda _: 40, state={"state": "stopped", "why": "Ctrl-C"})
    write(third, 0.1, ends=lambda _: 20, state={"state": "failed", "why": "the loss is not a number"})
    text = page(read_results(tmp_path))
    table = figure(text, "Final accuracy")
    assert "<small>round 20 of 100, failed</small>" in table
    assert '<td title="s = 4, lr = 0.1: no result">-</td>' in table
    assert "at the last evaluation of each, because not all have ended" in text
    assert "<td>2 of 3</td>" in section(text, "Summary")
    assert "<td>20 of 100</td>" in section(text, "Summary")
    assert "<em>(failed)</em>" in text
    assert "failed: the loss is not a number" in text


def test_seeds_that_ended_early_count_with_their_own_end(tmp_path):
    write(jobs(tmp_path / "s", "algorithm.lr=0.01,0.1")[0], 0.6, ends=lambda seed: 20 + 20 * seed)
    results = read_results(tmp_path)
    settled, notes = results.runs[0].settled()
    assert [seed.seed for seed in settled.seeds] == [1, 2, 3]
    assert "ended after 40, 60, 80 rounds" in notes[0]
    text = page(results)
    assert "<td>40 to 80 of 100</td>" in text
    ends = [0.1 + (0.6 + 0.01 * seed - 0.1) * (20 + 20 * seed) / 100 for seed in (1, 2, 3)]
    assert f"<td>{shown_interval(Interval.of(ends), 100)}</td>" in text


@pytest.mark.parametrize(
    "values", [(1e308, 1.7e308), (1e308, -1e308), (2e155, 3e155), (5e-324, 1e-323), (1e308, 5e-324)]
)
@pytest.mark.parametrize("grid", [["algorithm.lr=0.1,1.7e308"], ['algorithm.sampling="replacement","epoch"']])
def test_numbers_at_the_edge_of_what_is_one_are_shown(tmp_path, values, grid):
    for job, value in zip(jobs(tmp_path, *grid, seeds=2), values, strict=True):
        write(job, 0.5, metrics={"odd": value})
    text = page(read_results(tmp_path))
    assert f"{values[0]:.3g}" in text
    assert not re.search(r"[^a-z](nan|inf)[^a-z]", text)


def test_the_interval_of_huge_numbers_is_that_of_small_ones():
    small, huge = [1.0, 1.25, 1.75], [math.ldexp(v, 1000) for v in (1.0, 1.25, 1.75)]
    expected = Interval.of(small)
    found = Interval.of(huge)
    assert found == Interval(math.ldexp(expected.mean, 1000), math.ldexp(expected.half_width, 1000), 3)
    assert math.isfinite(Interval.of([1.7e308, -1.7e308]).half_width)


def test_metrics_of_ones_own_are_in_tables_and_charts_and_tiny_ones_are_not_zero(tmp_path, capsys):
    metrics = {"macro <f1>": 0.25, "tiny": 1.25e-7, "unknown": None}
    for job in jobs(tmp_path / "s", "algorithm.lr=0.01,0.1", seeds=1):
        write(job, 0.5, metrics=metrics)
    text = page(read_results(tmp_path))
    Reader(text)
    summary = section(text, "Summary")
    assert "macro &lt;f1&gt;" in summary
    assert "<td>0.2500</td>" in summary
    assert "<td>1.25e-07</td>" in summary
    assert "<td>-</td>" in summary
    assert len(lines(figure(text, "tiny against rounds"))) == 2
    assert "nothing to show" in figure(text, "unknown against rounds")
    assert main(["report", str(tmp_path / "s")]) == 0
    assert "1.25e-07" in capsys.readouterr().out


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(0, 6))
def test_nothing_is_shown_as_zero_that_is_not(value, digits):
    assert (float(shown(value, digits)) == 0) == (value == 0)


def test_what_is_unknown_is_a_dash():
    assert shown(None) == shown(math.nan) == shown_interval(None) == "-"
    assert shown_interval(Interval.of([0.1, 0.1, 0.1])) == "0.10 ± 0.00", "what rounding leaves is nothing"


def test_the_terminal_follows_the_same_rule():
    assert interval(Interval.of([1e-6, 2e-6]), digits=4) == "1.5e-06±6.35e-06"
    assert interval(Interval.of([0.5, 0.5]), 100) == "50.00±0.00"
    assert interval(Interval.of([0.25, 0.75]), 100, 1, signed=True).startswith("+50.0±")
    assert interval(Interval.of([math.nan, math.nan])) == "-"
    assert (percent(1e-6), percent(0.0), percent(1e-17), percent(0.5)) == ("0.0001%", "0.00%", "0.00%", "50.00%")


def test_a_terminal_of_any_width_shows_all_digits_and_names(tmp_path, capsys, monkeypatch):
    metrics = dict.fromkeys(["first-metric", "second-metric", "third-metric"], 11.2829)
    for job in jobs(tmp_path / "s", "algorithm.lr=0.01,0.1", seeds=2):
        write(job, 0.5, metrics=metrics)
    for columns in ("30", "80"):
        monkeypatch.setenv("COLUMNS", columns)
        assert main(["report", str(tmp_path / "s")]) == 0
        out = capsys.readouterr().out
        assert out.count("11.2829±0.0000") == 6
        assert "run " in out
        assert "third-metric" in out
        assert "lr=0.01 " in out
        assert main(["watch", "--once", str(tmp_path / "s")]) == 0
        out = capsys.readouterr().out
        assert out.count("100/100") == 2
        assert out.count("1.00e-03") == 2
        assert out.count("finished") == 2


def test_what_the_page_notes_is_said_in_the_terminal_with_the_rounds(tmp_path, capsys):
    first, second = jobs(tmp_path / "s", "algorithm.lr=0.01,0.1")
    write(first, 0.6, ends=lambda seed: 20 + 20 * seed)
    write(second, 0.6)
    assert main(["report", str(tmp_path / "s")]) == 0
    said = capsys.readouterr()
    assert "ended after 40, 60, 80 rounds" in said.err
    assert "40 to 80 of 100" in said.out
    assert "rounds" in said.out.splitlines()[1]
    assert main(["report", str(second.path)]) == 0
    assert "rounds" not in capsys.readouterr().out.splitlines()[1]


def test_a_default_that_files_may_leave_out_has_its_name(tmp_path):
    for job in jobs(tmp_path, "algorithm.kind=local-sgd,push-sum", "algorithm.sampling=replacement,epoch", seeds=1):
        write(job, 0.5)
    results = read_results(tmp_path)
    assert {(row["algorithm.kind"], row["algorithm.sampling"]) for row in results.rows()} == {
        (kind, sampling) for kind in ("local-sgd", "push-sum") for sampling in ("replacement", "epoch")
    }
    assert "<td>local-sgd</td>" in section(page(results), "What differs")
    old, new, own = ({"algorithm": {"lr": 0.1, **more}} for more in ({}, {"kind": "local-sgd"}, {"kind": "python"}))
    assert differing([settings_of(old), settings_of(new)]) == []
    assert "algorithm.sampling" not in settings_of(own), "its code decides"


def test_classes_have_their_names(grid):
    chart = figure(grid, "Classes on the nodes")
    assert ">T-shirt</text>" in chart
    assert ">&lt;i&gt;pullover&lt;/i&gt;</text>" in chart
    assert ">a dress …long name</text>" in chart


def test_two_hundred_runs_are_a_page_of_sensible_size(tmp_path):
    grid = ["algorithm.lr=" + ",".join(f"{0.01 * 1.3**i:.4g}" for i in range(10)), "topology.s=1,2,3,4", "algorithm.local_steps=1,2,3,4,5"]  # fmt: skip
    text = swept(tmp_path / "s", *grid, seeds=1, every=10)
    assert len(text) < 2_000_000
    assert "The chart shows the 40 best of 200 runs." in text
    assert text.count('class="scroll long"') >= 3
    Reader(text)


def test_the_terminal_has_the_same_colours(tmp_path, capsys):
    for i, job in enumerate(jobs(tmp_path / "s", "algorithm.lr=0.01,0.1,1.0", seeds=1)):
        write(job, 0.3 + 0.1 * i)
    from epidemic.cli.plot import _colours

    assert len(set(_colours(read_results(tmp_path)).values())) == 3
    assert main(["watch", str(tmp_path / "s"), "--once"]) == 0
    assert "lr=0.01" in capsys.readouterr().out


def test_ticks_of_a_narrow_logarithm():
    assert len(Axis(0.41, 0.44, 0, 1, log=True).ticks()) >= 2


@needs_browser
def test_nothing_is_cut_off_on_a_phone(grid, tmp_path):
    """No sideways scrolling, and every text of every chart lies inside its chart."""
    (tmp_path / "report.html").write_text(grid)
    measure = """
        const page = this.contentDocument, root = page.documentElement, out = [];
        for (const svg of page.querySelectorAll('svg[role=img]')) {
          const box = svg.getBoundingClientRect();
          for (const text of svg.querySelectorAll('text')) {
            const own = text.getBoundingClientRect();
            if (own.left < box.left - 1 || own.right > box.right + 1 || own.bottom > box.bottom + 1) out.push(text.textContent);
          }
        }
        document.title = JSON.stringify([root.scrollWidth - root.clientWidth, out]);
    """
    probe = tmp_path / "probe.html"
    probe.write_text(
        f'<!doctype html><body><iframe src="report.html" width="390" height="4000" style="border:0" onload="{measure}"></iframe></body>'
    )
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files", "--disable-background-networking",
               f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=3000", "--dump-dom", probe.as_uri()]  # fmt: skip
    dom = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True).stdout
    assert json.loads(re.search(r"<title>(.*?)</title>", dom)[1]) == [0, []]


def test_the_table_of_a_run_says_the_rounds_that_there_were(tmp_path, capsys):
    job = jobs(tmp_path, "algorithm.lr=0.01", seeds=2)[0]
    write(job, 0.6, ends=lambda seed: 20 * seed)
    seeds = read_results(tmp_path).runs[0].seeds
    _print_run(SimpleNamespace(experiment=job.experiment, seeds=seeds), tmp_path)
    out = capsys.readouterr().out
    assert "20 to 40 of 100 rounds" in " ".join(out.split())
    assert out.splitlines()[1].split()[:2] == ["seed", "rounds"]
    _print_run(SimpleNamespace(experiment=job.experiment, seeds=seeds[:1]), tmp_path)
    assert "20 of 100 rounds" in " ".join(capsys.readouterr().out.split())

"""The report is one page that asks for nothing, says everything in words too, and works in a real browser."""

import json
import os
import re
import shutil
import subprocess
from html.parser import HTMLParser

import numpy as np
import pytest
from torch import nn

import epidemic as ep
from epidemic.cli import main
from epidemic.report.charts import Axis, LineStyle, Series, line_chart
from epidemic.report.page import page
from epidemic.report.palette import DASHES
from epidemic.report.results import read_results
from written import finished

HOSTILE = '<script>alert("x")</script><img src=http://example.org/a>'
BROWSER = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs")
    common = {
        "nodes": 10, "rounds": 12, "seeds": [1, 2], "data": ep.Digits(), "model": ep.Logistic(), "partition": ep.Shards(),
        "algorithm": ep.LocalSGD(lr=0.1, local_steps=2), "eval": ep.Eval(every=3, samples=60),
        "runtime": ep.Runtime(strategy="per-node"),
    }  # fmt: skip
    methods = {
        "7-regular static": ep.Regular(4),
        "EL-Local": ep.ELLocal(4),
        HOSTILE: ep.ELLocal(3),
        "complete": ep.Complete(),
    }
    for i, (name, topology) in enumerate(methods.items()):
        ep.simulate(ep.Experiment(**common, name=name, topology=topology), directory / str(i))
    return page(read_results(directory))


class Reader(HTMLParser):
    """Collects what a page refers to and what its figures say."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.references, self.open, self.headings, self.figures = [], [], [], [], []
        self.data = ""
        self.feed(text)
        self.close()
        assert not [t for t in self.open if t not in ("meta", "link", "br")], "every element is closed"

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        found = dict(attributes)
        self.references += [
            v for k, v in found.items() if k in ("src", "href", "xlink:href", "data", "action", "srcset", "poster")
        ]
        if tag not in ("meta", "link", "br", "img"):
            self.open.append(tag)
        if tag == "svg" and found.get("role") == "img":
            self.figures.append(found["aria-labelledby"].split())
        if found.get("id"):
            self.headings.append(found["id"])

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)
        self.references += [v for k, v in attributes if k in ("src", "href", "xlink:href")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.data += data


def test_nothing_outside_is_referenced(text):
    found = Reader(text)
    assert set(found.references) == {"data:,"}, "only the empty icon"
    assert not {"script", "iframe", "object", "embed", "img", "form"} & set(found.tags)
    style = re.search(r"<style>(.*?)</style>", text, re.S)[1]
    assert "url(" not in style
    assert "@import" not in style
    assert "default-src 'none'" in text
    assert not re.search(r'\son\w+="', text), "no handlers"
    outside = re.findall(r"https?://[^\s\"'<>&]+", text.replace("http://example.org/a", ""))
    assert outside == []


def test_names_are_shown_and_not_executed(text):
    assert HOSTILE not in text
    assert HOSTILE in Reader(text).data


def test_every_figure_says_in_words_what_it_shows(text):
    found = Reader(text)
    assert len(found.figures) >= 9
    for title, description in found.figures:
        assert title in found.headings
        words = re.search(rf'<desc id="{description}">(.*?)</desc>', text, re.S)[1]
        assert len(words) > 40, f"{description} says {words!r}"
    assert len(set(found.headings)) == len(found.headings), "no name occurs twice"


def test_all_sections_are_there(text):
    titles = re.findall(r"<h2>(.*?)</h2>", text)
    assert titles == ["Summary", "Learning", "Time and bytes to target", "Every node at the end", "Data", "In-degree and load",
                      "What differs", "Environment"]  # fmt: skip


def test_runs_of_one_kind_have_one_colour_and_other_dashes(text):
    looks = re.findall(r'<svg class=swatch[^>]*><line class="line" style="([^"]*)"( stroke-dasharray="[^"]*")?', text)
    local = {look for look in looks if "el-local" in look[0]}
    assert len({style for style, _ in local}) == 1
    assert len(local) == 2
    many = {(LineStyle("ring", i).style, LineStyle("ring", i).dash) for i in range(15)}
    assert len(many) == 15
    assert len(DASHES) == 5


def test_every_method_has_a_colour_in_light_and_dark():
    from importlib.resources import files

    from epidemic.report.palette import LOOKS
    from epidemic.topology import TOPOLOGIES

    style = (files("epidemic.report") / "page.css").read_text()
    for kind in LOOKS:
        assert style.count(f"--m-{kind}:") == 2
    assert set(LOOKS) <= set(TOPOLOGIES)


def test_numbers_of_the_summary_are_those_of_the_records(tmp_path):
    experiment = ep.Experiment(
        nodes=8, rounds=4, seeds=[1], data=ep.Digits(), model=ep.Logistic(), eval=ep.Eval(every=2, samples=60), partition=ep.IID(),
        topology=ep.ELLocal(3),
    )  # fmt: skip
    run = ep.simulate(experiment, tmp_path / "run")
    text = page(read_results(tmp_path))
    best = max(r.accuracy.mean for r in run.records)
    cells = re.findall(r"<td>(.*?)</td>", text)
    assert f"{100 * best:.2f}" in cells
    assert f"{100 * run.seeds[0].summary.final_accuracy.mean:.2f}" in cells
    assert f"{run.records[-1].bytes.total.mean / 2**20:.2f}" in cells


def test_data_without_classes_is_shown_by_its_loss(tmp_path):
    experiment = _regression()
    ep.simulate(experiment, tmp_path / "run")
    text = page(read_results(tmp_path))
    assert "Loss against rounds" in text
    assert "Time and bytes to target" not in text
    Reader(text)


def test_classes_beside_quantities_keep_their_accuracy(tmp_path, capsys):
    ep.simulate(_regression("amounts"), tmp_path / "amounts")
    finished(tmp_path / "kinds", rounds=4)
    text = page(read_results(tmp_path))
    Reader(text)
    assert "Accuracy against rounds" in text
    assert "Time and bytes to target" in text
    assert "the best mean of kinds" in text
    assert "amounts predicts quantities" in text
    assert "nan" not in re.sub("<style>.*?</style>", "", text, flags=re.S).lower()
    assert main(["report", str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert "note: amounts predicts quantities" in said.err
    assert "90.00" in said.out


def _regression(name="experiment"):
    x = np.random.default_rng(1).normal(size=(200, 4)).astype(np.float32)
    y = x @ np.ones((4, 1), dtype=np.float32)
    return ep.Experiment(
        name=name, nodes=6, rounds=4, data=((x, y), (x[:50], y[:50])), model=lambda: nn.Linear(4, 1), topology=ep.ELLocal(2),
        partition=ep.IID(), eval=ep.Eval(every=2), algorithm=ep.LocalSGD(lr=0.01),
    )  # fmt: skip


def test_axes_have_round_ticks_inside():
    for low, high in ((0, 1), (0.1, 0.97), (3, 3), (-5, 12_000), (0, 1e-6)):
        ticks = Axis(low, high, 0, 100).ticks()
        assert 2 <= len(ticks) <= 12
        assert all(-1e-6 <= Axis(low, high, 0, 100)(v) <= 100 + 1e-6 for v, _ in ticks)
    assert [t for _, t in Axis(1, 1000, 0, 1, log=True).ticks()] == ["1", "10", "100", "1000"]
    assert len(Axis(2, 7, 0, 1, log=True).ticks()) >= 2


def test_a_chart_leaves_out_what_it_has_no_place_for():
    nothing = [Series("a", LineStyle("ring"), [0.0, 1.0], [0.0, float("nan")])]
    assert "nothing to show" in line_chart("c", "t", "d", nothing, "x", "y", log_x=True, log_y=True)
    long = [Series("a", LineStyle("ring"), [float(i) for i in range(5000)], [1.0] * 5000)]
    points = re.search(r'points="([^"]*)"', line_chart("c", "t", "d", long, "x", "y"))[1].split()
    assert len(points) <= 241
    assert points[-1].startswith("618.0"), "the last point stays"


# -- in a real browser ------------------------------------------------------------------------------------------------


FROM_PAGES = (
    101_845_102,
    63_171_670,
)  # Chromium's numbers for what a page loads and where it goes; its own requests have others


def visit(path, tmp_path, *, width=1280, extra=()):
    """What the console says, which addresses are asked for, and the picture."""
    log, picture = tmp_path / "net.json", tmp_path / "page.png"
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
        "--disable-component-update", "--disable-sync", f"--user-data-dir={tmp_path / 'profile'}", "--hide-scrollbars",
        f"--window-size={width},1800", "--enable-logging=stderr", f"--log-net-log={log}", f"--screenshot={picture}", *extra, path.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=240, env={**os.environ, "HOME": str(tmp_path)}
    )
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    asked = [url for kind, url in re.findall(r'"traffic_annotation":(\d+),"url":"(\w+:[^"]*)"', log.read_text())
             if int(kind) in FROM_PAGES and not url.startswith(("file:", "data:"))]  # fmt: skip
    return console, asked, picture


needs_browser = pytest.mark.skipif(BROWSER is None, reason="NO BROWSER: install chromium to test the report in one")


@needs_browser
def test_the_page_loads_without_an_error_or_a_request(text, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(text)
    for extra in ((), ("--blink-settings=preferredColorScheme=0",)):
        console, asked, picture = visit(path, tmp_path, extra=extra)
        assert console == []
        assert asked == []
        assert picture.stat().st_size > 20_000


@needs_browser
def test_dark_and_light_differ_and_a_phone_needs_no_sideways_scrolling(text, tmp_path):
    pil = pytest.importorskip("PIL.Image")
    path = tmp_path / "report.html"
    path.write_text(text)
    shades = []
    for extra in ((), ("--blink-settings=preferredColorScheme=0",)):
        with pil.open(visit(path, tmp_path, extra=extra)[2]) as picture:
            shades.append(picture.convert("L").resize((1, 1)).getpixel((0, 0)))
    assert shades[0] > 200
    assert shades[1] < 80
    probe = tmp_path / "probe.html"
    frame = '<iframe src="report.html" width="390" height="4000" style="border:0" onload="{}"></iframe>'
    root = "this.contentDocument.documentElement"
    measure = f"document.title={root}.scrollWidth-{root}.clientWidth"
    probe.write_text(f"<!doctype html><body>{frame.format(measure)}</body>")
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files", "--disable-background-networking",
               f"--user-data-dir={tmp_path / 'p2'}", "--virtual-time-budget=3000", "--dump-dom", probe.as_uri()]  # fmt: skip
    dom = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True).stdout
    assert re.search(r"<title>(-?\d+)</title>", dom)[1] == "0"


@needs_browser
def test_an_error_or_a_request_would_be_noticed(tmp_path):
    path = tmp_path / "bad.html"
    path.write_text('<script>console.error("broken")</script><img src="http://127.0.0.1:9/x.png">')
    console, asked, _ = visit(path, tmp_path)
    assert any("broken" in line for line in console)
    assert asked
    assert json.dumps(asked).count("127.0.0.1:9") >= 1

"""The picture of a run under the clock: a lane for each node, drawn from what the clock wrote down."""

import json
import re
import xml.etree.ElementTree as ET

import pytest

from epidemic.cli import main
from epidemic.report.style import save
from epidemic.report.timeline import KINDS, MANY_LINES, TimelineChart, enough, timeline_figure
from epidemic.simulator.trace import Span, Trip

FILE = """
name = "lanes"
nodes = 6
rounds = 12
seeds = [1, 2]
data = {kind = "digits"}
model = {kind = "logistic"}
partition = {kind = "iid"}
topology = {kind = "el-local", s = 2}
algorithm = {local_steps = 2}

[clock]
compute = {kind = "constant", seconds = 0.5}
links = {uplink = 0.1, latency = 0.05}
"""

SPANS = [
    Span(0, "training", 0.0, 4.0),
    Span(0, "sending", 4.0, 6.0),
    Span(0, "training", 5.0, 9.0),
    Span(1, "offline", 0.0, 5.0),
    Span(1, "training", 5.0, 20.0),
    Span(2, "training", 0.0, 1.0),
]
TRIPS = [Trip(0, 1, 4.0, 5.5, "arrived"), Trip(0, 2, 5.0, 12.0, "lost"), Trip(1, 0, 11.0, 12.0, "arrived")]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "experiment.toml"
    path.write_text(FILE)
    return path


def test_only_the_first_nodes_and_seconds_are_kept():
    line = TimelineChart.of(SPANS, TRIPS, nodes=2, seconds=10.0)
    assert [(s.node, s.start, s.end) for s in line.spans] == [(0, 0, 4), (0, 4, 6), (0, 5, 9), (1, 0, 5), (1, 5, 10)]
    assert line.trips == TRIPS[:1]
    assert TimelineChart.of(SPANS, TRIPS, nodes=3, seconds=10.0).trips == TRIPS[:2]


def test_training_offline_and_waiting_add_up_to_the_nodes_time():
    shares = TimelineChart.of(SPANS, TRIPS, nodes=2, seconds=10.0).shares()
    assert shares == pytest.approx({"training": 13 / 20, "offline": 5 / 20, "waiting": 2 / 20, "sending": 2 / 20})


def test_enough_is_when_the_median_node_has_trained_eight_times():
    spans = [Span(node, "training", k, k + speed) for node, speed in enumerate((0.5, 0.6, 0.7)) for k in range(8)]
    assert enough(spans, 3) == 7.6
    assert enough(spans[:-2], 3) == 7.6
    assert enough(spans[:10], 3) is None


def test_every_node_has_a_lane_and_every_message_a_line():
    line = TimelineChart.of(SPANS, TRIPS, nodes=3, seconds=10.0)
    axes = timeline_figure(line, "title").axes[0]
    bars, messages = axes.collections, [c for c in axes.collections if type(c).__name__ == "LineCollection"]
    assert sum(len(c.get_paths()) for c in bars if type(c).__name__ == "PolyCollection") == 3 + len(line.spans)
    assert [[s.tolist() for s in c.get_segments()] for c in messages] == [
        [[[4.0, 0.72], [5.5, 1.31]]],
        [[[5.0, 0.72], [12.0, 2.31]]],
    ]
    assert axes.get_xlim() == (0, 10)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0", "1", "2"]
    said = [text.get_text() for text in axes.figure.legends[0].get_texts()]
    assert said == ["training 47 %", "waiting 37 %", "sending 7 %", "offline 17 %", "message (1)", "message lost (1)"]


def test_of_too_many_messages_some_are_drawn_and_it_is_said():
    trips = [Trip(0, 1, k / 1000, k / 1000 + 0.1, "arrived") for k in range(2 * MANY_LINES + 1)]
    figure = timeline_figure(TimelineChart.of([], trips, nodes=2, seconds=10.0), "title")
    lines = [c for c in figure.axes[0].collections if type(c).__name__ == "LineCollection"]
    assert len(lines[0].get_segments()) == 2667
    assert figure.legends[0].get_texts()[-1].get_text() == "messages (8,001, one of 3 drawn)"


@pytest.mark.parametrize("nodes", [1, 8, 60, 300])
def test_pictures_of_few_and_many_nodes_can_be_drawn(nodes, tmp_path):
    spans = [Span(i, kind, 0.1 * i, 0.1 * i + 1) for i in range(nodes) for kind in KINDS if kind != "waiting"]
    save(timeline_figure(TimelineChart.of(spans, [], nodes=nodes, seconds=3.0), "title"), tmp_path / "t.svg")
    assert ET.parse(tmp_path / "t.svg").getroot().tag.endswith("svg")


def test_the_command_draws_an_experiment_by_a_dry_run(file, tmp_path, capsys):
    """Two steps of 0.5 s. A message of 650 float32 and 256 bytes takes 0.22848 s of the uplink and comes at 1.27848 s at the earliest."""
    picture = tmp_path / "t.svg"
    command = ["timeline", str(file), "-o", str(picture), "--seconds", "1.2", "--nodes", "3", "--json"]
    assert main(command) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["nodes"], found["seconds"]) == (3, 1.2)
    assert found["shares"]["training"] == pytest.approx(1.0 / 1.2, abs=1e-6)
    assert found["shares"]["sending"] == pytest.approx(0.2 / 1.2, abs=1e-6)
    before = picture.read_bytes()
    assert main(command) == 0
    assert picture.read_bytes() == before, "the same picture, the same bytes"
    assert main([*command[:-5], "--seconds", "1.3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    begun = round((found["shares"]["training"] * 1.3 * 6 - 6) / (1.3 - 1.27848), 6)
    assert begun in range(1, 6), "those whose messages were all sent first train again, the others wait"
    assert main([*command, "--seed", "2"]) == 0


def test_without_seconds_it_ends_after_eight_trainings_or_with_the_run(file, tmp_path, capsys):
    command = ["timeline", str(file), "-o", str(tmp_path / "t.png"), "--json"]
    assert main(command) == 0
    found = json.loads(capsys.readouterr().out)
    rounds = 1.0 + 2 * 0.22848 + 0.05
    assert 8 <= found["seconds"] <= 8 * rounds
    file.write_text(FILE.replace("rounds = 12", "rounds = 2"))
    assert main(command) == 0
    assert 2 * 1.0 < json.loads(capsys.readouterr().out)["seconds"] <= 2 * rounds + 1e-6
    file.write_text(FILE.replace("seconds = 0.5", "seconds = 500"))
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out)["seconds"] > 8000


def test_of_a_directory_it_draws_the_run_that_is_there(file, tmp_path, capsys):
    run = tmp_path / "run"
    settings = ["--set", "rounds=1", "--set", "eval.samples=20", "--seeds", "1", "--quiet"]
    assert main(["run", str(file), "--out", str(run), *settings]) == 0
    for path in (run, run / "seed-1"):
        assert main(["timeline", str(path), "-o", str(tmp_path / "t.pdf")]) == 0
    assert re.search(r"6 nodes, the\s+first\s+1\.\d\s+s", capsys.readouterr().out)
    assert main(["timeline", str(run / "seed-1"), "-o", str(tmp_path / "t.pdf"), "--seed", "3"]) == 2
    assert "is the directory of seed 1; leave it out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--seconds", "0"], "--seconds = 0.0 must be greater than 0"),
        (["--seconds", "nan"], "--seconds = nan must be"),
        (["--nodes", "7"], "--nodes = 7 must be at most 6"),
        (["--nodes", "0"], "--nodes = 0 must be at least 1"),
        (["--seed", "5"], "--seed 5 is not a seed of this experiment; its seeds are 1, 2"),
    ],
)
def test_bad_options(file, tmp_path, options, message, capsys):
    assert main(["timeline", str(file), "-o", str(tmp_path / "t.svg"), *options]) == 2
    assert message in capsys.readouterr().err


def test_what_has_no_timeline(file, tmp_path, capsys):
    picture = str(tmp_path / "t.svg")
    assert main(["timeline", str(tmp_path / "nothing"), "-o", picture]) == 2
    assert "does not exist; give an experiment file or the directory of a run" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert main(["timeline", str(tmp_path / "empty"), "-o", picture]) == 2
    assert "is not the directory of a run: it has no experiment.toml" in capsys.readouterr().err
    assert main(["timeline", str(file), "-o", str(tmp_path / "t.txt")]) == 2
    assert "must end in .png, .pdf, .svg" in capsys.readouterr().err
    file.write_text(FILE.partition("[clock]")[0])
    assert main(["timeline", str(file), "-o", picture]) == 2
    assert "has no [clock], so nothing in it has a time; add one" in capsys.readouterr().err
    several = tmp_path / "several" / "one"
    several.mkdir(parents=True)
    (several / "experiment.toml").write_text(FILE)
    assert main(["timeline", str(several.parent), "-o", picture]) == 2
    assert "it holds several; name one, for example" in capsys.readouterr().err

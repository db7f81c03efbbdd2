"""Methods of a user's own beside others: in figures and in the report they are methods, each with a name and a colour of its own."""

import itertools
import re

import numpy as np
import pytest

import epidemic as ep
from epidemic.report.page import page
from epidemic.report.palette import LOOKS, WORDS, LineStyle, colour_name, look_of, looks_of_methods
from epidemic.report.results import read_results
from epidemic.report.settings import METHOD, settings_of
from epidemic.report.style import WORDS as WORD_COLOURS
from epidemic.report.style import line, line_of


class Shift:
    """Everybody sends to the one that is `by` further on."""

    def __init__(self, by):
        self.by = by

    def graph(self, n, round, streams):
        return ep.Graph.from_edges(n, np.arange(n), (np.arange(n) + self.by) % n)


class Back(Shift):
    pass


BASE = {
    "nodes": 6, "rounds": 4, "seeds": (1, 2, 3), "data": ep.Digits(), "model": ep.Logistic(), "partition": ep.IID(), "eval": ep.Eval(every=2),
    "algorithm": ep.LocalSGD(lr=0.5, local_steps=10, batch_size=16), "metrics": {"f1": "macro-f1"},
}  # fmt: skip


def experiment(topology, **changes):
    return ep.Experiment(topology=topology, **{**BASE, **changes})


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    out = tmp_path_factory.mktemp("compared")
    methods = {"one": Shift(1), "two": Shift(2), "back": Back(5), "ring": ep.Ring(), "EL": ep.ELLocal(s=1)}
    return ep.compare({name: experiment(topology) for name, topology in methods.items()}, out / "five"), out


# -- the report -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "topologies",
    [
        [Shift(1), Shift(2)],
        [Shift(1), Back(1)],
        [Shift(1), ep.Ring()],
        [Shift(1), Shift(2), ep.ELLocal(s=1), ep.Ring()],
    ],
    ids=["one class", "two classes", "beside another", "beside several"],
)
def test_own_topologies_are_methods_in_the_report(topologies, tmp_path):
    names = [f"method {i}" for i in range(len(topologies))]
    ep.compare({n: experiment(t, seeds=(1,), rounds=1) for n, t in zip(names, topologies, strict=True)}, tmp_path)
    results = read_results(tmp_path)
    design = results.design
    assert design.comparison
    assert [run.label for run in results.runs] == names
    for run in results.runs:
        assert settings_of(run.experiment)[METHOD] in ("Shift", "Back", "ring", "el-local")
    text = page(results)
    assert ">-<" not in text.partition("<h2>Learning")[0]
    assert "What the settings do" not in text


def test_own_topologies_at_several_settings_are_a_sweep(tmp_path):
    grid = {"topology": [Shift(1), ep.Ring()], "algorithm.lr": [0.1, 0.5]}
    ep.sweep(experiment(Shift(1), seeds=(1,), rounds=1), grid, tmp_path)
    design = read_results(tmp_path).design
    assert not design.comparison
    method = next(setting for setting in design.settings if setting.key == METHOD)
    assert set(method.values) == {"Shift", "ring"}


# -- colours ----------------------------------------------------------------------------------------------------------


def test_methods_that_are_not_of_the_paper_have_colours_that_nobody_else_has():
    for known in itertools.chain([()], itertools.combinations(LOOKS, 1), itertools.combinations(LOOKS, 2)):
        kinds = [*known, "own", "own", "another", "own"]
        lines = [line_of(look) for look in looks_of_methods(kinds)]
        theirs = {line["color"] for line in lines[: len(known)]}
        own = [line["color"] for line in lines[len(known) :]]
        assert len(set(own)) == 4
        assert not theirs & set(own)
        assert [look.style for look in looks_of_methods(known)] == [LineStyle(kind).style for kind in known]


def test_many_methods_of_ones_own_differ_in_dashes_too():
    looks = looks_of_methods(["own"] * 30)
    assert len({(line["color"], str(line["linestyle"])) for line in map(line_of, looks)}) == 30
    crowded = looks_of_methods(
        [*("el-oracle", "el-local", "regular", "unlucky", "u-equistatic", "od-equidyn", "complete", "ring"), "own"]
    )
    lines = [(line["color"], str(line["linestyle"])) for line in map(line_of, crowded)]
    assert len(set(lines)) == 9


def test_every_kind_has_a_look_also_one_that_nobody_has_chosen_a_colour_for():
    assert len(WORD_COLOURS) == WORDS
    for kind in (*LOOKS, "star", "complete (all-reduce)"):
        word, dashes, width = look_of(kind)
        assert line(kind) == {"color": WORD_COLOURS[word], "linestyle": dashes, "linewidth": width}
    assert colour_name("ring") == "m-ring"
    assert re.fullmatch("w[0-7]", colour_name("star"))  # the same in every process: from the name
    assert look_of("complete (all-reduce)")[0] == look_of("complete")[0]


# -- figures ----------------------------------------------------------------------------------------------------------


def drawn(figure, panel=0):
    """The lines of a panel by name, without the target."""
    return {line.get_label(): line for line in figure.axes[panel].get_lines() if not line.get_label().startswith("_")}


def test_own_methods_can_be_told_apart(compared):
    lines = drawn(compared[0].plot())
    assert list(lines) == ["one", "two", "back", "ring", "EL"]
    assert len({line.get_color() for line in lines.values()}) == 5


def test_colours_and_order_are_the_users(compared):
    figure = compared[0].plot(colours={"two": "gold"}, order=["EL", "back"])
    for panel in range(3):
        lines = drawn(figure, panel)
        assert list(lines) == ["EL", "back", "one", "two", "ring"]
        assert lines["two"].get_color() == "gold"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["EL", "back", "one", "two", "ring"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"colours": {"tow": "red"}}, "colours: the name = 'tow' is not known; did you mean 'two'?"),
        ({"colours": {"two": "reddish"}}, "'reddish' is not a colour"),
        ({"order": ["one", "tow"]}, "order: the name = 'tow' is not known; did you mean 'two'?"),
        ({"order": ["one", "one"]}, "twice"),
        ({"metric": "f2"}, "metric = 'f2' is not known; did you mean 'f1'?"),
    ],
)
def test_what_cannot_be_drawn_is_refused(compared, arguments, said):
    with pytest.raises(ep.BadInput) as problem:
        compared[0].plot(**arguments)
    assert said in str(problem.value)


def test_a_recorded_metric_is_drawn(compared, tmp_path):
    run = compared[0]["two"]
    figure = run.plot(metric="f1", path=tmp_path / "f1.png")
    assert (tmp_path / "f1.png").stat().st_size > 1000
    assert figure.axes[0].get_ylabel() == "f1 over nodes"
    (line,) = drawn(figure).values()
    last = np.mean([seed.records[-1].metrics["f1"].mean for seed in run.seeds])
    assert line.get_ydata()[-1] == pytest.approx(last)
    assert list(drawn(compared[0].plot(metric="f1", x="bytes"))) == ["one", "two", "back", "ring", "EL"]
    found = ep.sweep(experiment(Shift(1), seeds=(1,), rounds=1), {"nodes": [4, 6]})
    assert len(drawn(found.plot(metric="f1", order=["nodes=6"]))) == 2


def test_bands_of_accuracy_stay_between_0_and_100(tmp_path):
    """Seeds that differ much, near the top: the interval of the mean goes beyond 100 %."""
    run = ep.simulate(experiment(ep.Complete(), rounds=40, algorithm=ep.LocalSGD(lr=0.5, local_steps=40)))
    spread = [record for seed in run.seeds for record in seed.records]
    assert max(record.accuracy.mean for record in spread) > 0.9
    for panel in run.plot().axes[:2]:
        paths = [path for collection in panel.collections for path in collection.get_paths()]
        assert paths
        for path in paths:
            assert path.vertices[:, 1].min() >= 0
            assert path.vertices[:, 1].max() <= 100
        assert panel.get_ylim()[1] <= 101

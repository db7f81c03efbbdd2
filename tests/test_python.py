"""What Python and notebooks use: progress for who looks, results to look at."""

import ast
import dataclasses
import inspect
import subprocess
import sys
from html import escape
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

import epidemic as ep
from epidemic.api import views as showing
from epidemic.cli import main
from epidemic.core import progress
from epidemic.core.errors import BadInput, RunFailed
from epidemic.core.formatting import html_table
from epidemic.runtime.saved_models import load_models
from epidemic.study.sweep import experiment_jobs

EXPERIMENT = ep.Experiment(
    name="<b>", nodes=6, rounds=4, seeds=[1, 2], topology=ep.ELLocal(2), data=ep.Digits(), partition=ep.IID(), model=ep.Logistic(),
    algorithm=ep.LocalSGD(lr=0.1, batch_size=4), eval=ep.Eval(every=2, samples=60), runtime=ep.Runtime(strategy="per-node", threads=1),
)  # fmt: skip


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    directory = tmp_path_factory.mktemp("kept") / "run"
    return ep.simulate(EXPERIMENT, directory), directory


@pytest.fixture(scope="module")
def comparison():
    return ep.compare({"EL": EXPERIMENT, "ring": msgspec.structs.replace(EXPERIMENT, topology=ep.Ring())})


# -- progress ---------------------------------------------------------------------------------------------------------


def test_nobody_looks_and_nothing_is_said(capsys):
    ep.simulate(EXPERIMENT)
    assert capsys.readouterr() == ("", "")


def test_progress_is_shown_where_it_is_wanted_or_somebody_looks(capsys, monkeypatch):
    short = msgspec.structs.replace(EXPERIMENT, rounds=1, seeds=(1,))
    ep.simulate(short, progress=True)
    assert "seed 1: round 1/1  accuracy" in capsys.readouterr().err
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    ep.simulate(short)
    assert "1/1" in capsys.readouterr().err
    ep.simulate(short, progress=False)
    assert capsys.readouterr().err == ""
    with pytest.raises(BadInput, match="progress = 'yes' must be True, False, or None"):
        ep.simulate(short, progress="yes")


def test_a_notebook_is_shown_one_table_that_is_rewritten(monkeypatch):
    shown = []
    monkeypatch.setattr(progress.NotebookCell, "show", lambda self, html: shown.append(html))
    monkeypatch.setattr(showing, "in_notebook", lambda: True)
    ep.simulate(EXPERIMENT, callbacks=ep.callbacks.EarlyStopping(target=0.0))
    assert "&lt;b&gt;, seed 1" in shown[-1]
    assert shown[-1].count("<progress") == 2
    assert "ended early after round 0: accuracy" in shown[-1]
    shown.clear()
    ep.sweep(msgspec.structs.replace(EXPERIMENT, seeds=(1,)), {"rounds": [0, 1], "topology.s": [1, 2]})
    assert "4 of 4 runs" in shown[-1]


def test_a_notebook_and_a_terminal_make_the_same_remarks(monkeypatch, capsys):
    shown = []
    monkeypatch.setattr(progress.NotebookCell, "show", lambda self, html: shown.append(html))
    data = ep.Digits().load()
    data = dataclasses.replace(data, note="3 pictures were left out")
    parts = ep.UEquiStatic(3)
    apart = next(s for s in range(1, 100) if not parts.graph(40, 0, ep.Streams(s)).connected)
    alone = ep.Experiment(
        name="alone", nodes=40, rounds=0, seeds=[apart, apart + 1], topology=parts, data=data, model=ep.Logistic(),
        algorithm=ep.LocalSGD(batch_size=900), eval=ep.Eval(samples=20),
        runtime=ep.Runtime(device="auto", strategy="per-node", threads=1),
    )  # fmt: skip
    ep.simulate(alone, progress=True)
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith(("warning: ", "note: "))]
    for part in ("warning: data: 3 pictures were left out", "900 (the fewest", "alone is computed on ", "disconnected"):
        assert any(part in line for line in said), part
    assert sum("the fewest" in line for line in said) == 1
    assert sum("pictures" in line for line in said) == 1
    monkeypatch.setattr(showing, "in_notebook", lambda: True)
    ep.simulate(alone)
    for line in said:
        assert shown[-1].count(f"<div>{escape(line)}</div>") == 1


# -- results ----------------------------------------------------------------------------------------------------------


def test_a_data_frame_has_the_columns_and_values_of_the_reports_table(kept, tmp_path):
    pandas = pytest.importorskip("pandas")
    run, directory = kept
    frame = run.dataframe()
    main(["report", str(directory), "-o", str(tmp_path / "table.csv")])
    table = pandas.read_csv(tmp_path / "table.csv")
    assert list(frame.columns) == list(table.columns)
    pandas.testing.assert_frame_equal(frame, table, check_dtype=False)
    assert set(ep.simulate(EXPERIMENT).dataframe()["directory"]) == {""}


def test_a_summary_is_the_mean_over_seeds_with_its_interval(kept):
    run, _ = kept
    finals = [seed.summary.final_accuracy.mean for seed in run.seeds]
    assert run.summary.accuracy.mean == pytest.approx(np.mean(finals))
    assert run.summary.accuracy.half_width > 0
    assert run.summary.rounds == (4, 4)
    assert ep.simulate(msgspec.structs.replace(EXPERIMENT, seeds=(1,))).summary.loss.half_width is None


def test_a_figure_is_returned_and_saved(kept, tmp_path):
    run, _ = kept
    figure = run.plot(path=tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 1000
    assert [axes.get_ylabel() for axes in figure.axes] == ["accuracy over nodes (%)"] * 2 + ["D(X)"]
    assert run.plot(metric="loss").axes[0].get_ylabel() == "loss over nodes"
    with pytest.raises(BadInput, match="metric = 'f1' is not known"):
        run.plot(metric="f1")
    with pytest.raises(BadInput, match="must end in"):
        run.plot(path=tmp_path / "curves.txt")


def test_targets_that_are_no_classes_are_drawn_by_their_loss():
    problem = ep.Experiment(
        nodes=4, rounds=2, topology=ep.Ring(), data=ep.Synthetic(problem="quadratic"), partition=ep.IID(), model=ep.Point(),
        runtime=ep.Runtime(strategy="per-node", threads=1),
    )  # fmt: skip
    run = ep.simulate(problem)
    assert run.plot().axes[0].get_ylabel() == "loss over nodes"
    assert run.summary.accuracy is None
    assert "accuracy" not in repr(run) + run._repr_html_().split("<tbody>")[1]
    with pytest.raises(BadInput, match="not classes; use 'loss'"):
        run.plot(metric="accuracy")


def test_models_of_a_finished_run_are_read_back_bit_by_bit(kept):
    run, directory = kept
    again = ep.simulate(EXPERIMENT, directory, resume=True)
    for a, b in zip(run.seeds, again.seeds, strict=True):
        assert torch.equal(a.models.rows, b.models.rows)
    assert len(again.models) == 6
    for one, other in ((run.models[3], again.models[3]), (run.models.mean, again.models.mean)):
        assert list(one) == list(other)
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_models_are_asked_for_by_the_number_of_a_node(kept):
    models = kept[0].models
    for node, message in [
        (99, r"node 99: there are 6, from 0 to 5"),
        (-1, r"node -1: there are 6, from 0 to 5"),
        ("a", r"node 'a' must be the number of a node: there are 6, from 0 to 5"),
    ]:
        with pytest.raises(BadInput, match=message):
            models[node]
    assert torch.equal(models[np.int64(5)]["1.weight"], [*models][5]["1.weight"])
    assert len([*models]) == 6


def test_models_with_tied_frozen_and_forgotten_parts_are_read_back_too(tmp_path):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(64, 64)
            self.b = nn.Linear(64, 64)
            self.b.weight = self.a.weight
            self.out = nn.Linear(64, 10)
            self.out.bias.requires_grad = False
            self.register_buffer("count", torch.tensor(3))
            self.register_buffer("scale", torch.ones(64), persistent=False)

        def forward(self, x):
            return self.out(self.scale * self.b(self.a(x.flatten(1)).relu()).relu())

    experiment = msgspec.structs.replace(EXPERIMENT, model=Odd, seeds=(1,), rounds=1)
    run = ep.simulate(experiment, tmp_path / "run")
    again = ep.simulate(experiment, tmp_path / "run", resume=True)
    assert torch.equal(run.models.rows, again.models.rows)
    Odd().load_state_dict(again.models[2])


def test_models_that_are_damaged_missing_or_others_are_refused(tmp_path):
    with pytest.raises(BadInput, match=r"models.safetensors is missing; delete .* to run this seed again"):
        load_models(tmp_path, nn.Linear(2, 2))
    (tmp_path / "models.safetensors").write_bytes(b"nothing of the kind")
    with pytest.raises(BadInput, match="is damaged or of another model"):
        load_models(tmp_path, nn.Linear(2, 2))


# -- comparisons and sweeps -------------------------------------------------------------------------------------------


def test_methods_are_compared_in_memory_as_in_a_directory(comparison, tmp_path):
    assert list(comparison) == ["EL", "ring"]
    assert comparison.table.baseline == "ring"
    assert [t.get_text() for t in comparison.plot().legends[0].get_texts()] == ["EL", "ring"]
    assert set(comparison.dataframe()["run"]) == {"EL", "ring"}
    methods = {name: run.experiment for name, run in comparison.items()}
    there = ep.compare(methods, tmp_path / "out")
    assert there.table == comparison.table
    again = ep.compare(methods, tmp_path / "out", resume=True)
    assert again.table == comparison.table
    assert torch.equal(again["ring"].models.rows, comparison["ring"].models.rows)
    with pytest.raises(BadInput, match="earlier comparison"):
        ep.compare(methods, tmp_path / "out")


@pytest.mark.parametrize(
    ("methods", "options", "message"),
    [
        ({}, {}, "compare needs experiments by name"),
        ([EXPERIMENT], {}, "compare needs experiments by name"),
        ({"a": ep.Ring()}, {}, r"compare: 'a': Ring\(\) must be an Experiment"),
        ({"a": EXPERIMENT, "b": msgspec.structs.replace(EXPERIMENT, seeds=(3,))}, {}, "'b' has other data or seeds"),
        ({"a": EXPERIMENT, "b\x1b[2J": EXPERIMENT}, {}, r"method 'b\\x1b\[2J' has a line break or a control character"),
        ({"a": EXPERIMENT}, {"target": 2}, "target = 2 must be at most 1"),
    ],
)
def test_what_cannot_be_compared_is_refused(methods, options, message):
    with pytest.raises(BadInput, match=message):
        ep.compare(methods, **options)


def test_a_sweep_gives_a_run_for_every_point():
    found = ep.sweep(EXPERIMENT, {"topology.s": [1, 2], "algorithm.lr": np.array([0.01, 0.1])}, seeds=1)
    assert list(found) == ["s=1,lr=0.01", "s=1,lr=0.1", "s=2,lr=0.01", "s=2,lr=0.1"]
    assert found["s=2,lr=0.1"].records == ep.simulate(msgspec.structs.replace(EXPERIMENT, seeds=(1,))).records
    frame = found.dataframe()
    assert set(frame["topology.s"]) == {1, 2}
    assert set(frame["algorithm.lr"]) == {0.01, 0.1}
    assert set(frame["directory"]) == {""}
    looks = {(line.get_color(), str(line.get_linestyle())) for line in found.plot().axes[0].lines}
    assert len(looks) == 4
    assert len(found["s=1,lr=0.1"].models) == 6
    place = found["s=1,lr=0.1"].seeds[0].path
    assert place.is_dir()
    del found
    assert not place.exists()


def test_models_of_a_sweep_can_be_read_as_long_as_anybody_holds_a_run():
    run = ep.sweep(EXPERIMENT, {"topology.s": [1, 2]}, seeds=1)["s=1"]
    seed, place = run.seeds[0], run.seeds[0].path
    assert len(run.models) == 6
    del run
    assert place.is_dir()
    del seed
    assert not place.parent.exists()


def test_a_sweep_leaves_the_metrics_as_they_are(tmp_path):
    def own(outputs, targets):
        return outputs.argmax(1).eq(targets).float()

    both = msgspec.structs.replace(EXPERIMENT, metrics={"f1": "macro-f1", "own": own})
    jobs = experiment_jobs(both, {"algorithm.lr": [0.2, 0.3]}, tmp_path)
    assert [job.experiment.metrics for job in jobs] == [{"f1": "macro-f1", "own": own}] * 2


def test_a_sweep_takes_objects_and_goes_on_in_its_directory(tmp_path):
    own = msgspec.structs.replace(EXPERIMENT, model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), seeds=(1,))
    told = []

    class Seen(ep.Callback):
        def finished(self, summary):
            told.append(summary.name)

    grid = {"topology": [ep.Ring(), ep.ELLocal(2)], "algorithm.lr": [0.1]}
    found = ep.sweep(own, grid, tmp_path / "out", callbacks=Seen())
    assert list(found) == ["topology=Ring(),lr=0.1", "topology=ELLocal(s=2),lr=0.1"]
    assert len(told) == 2
    again = ep.sweep(own, {**grid, "algorithm.lr": [0.1, 0.2]}, tmp_path / "out", callbacks=Seen())
    assert len(told) == 4
    assert again["topology=Ring(),lr=0.1"].records == found["topology=Ring(),lr=0.1"].records


def test_a_point_that_fails_does_not_stop_the_others():
    one = msgspec.structs.replace(EXPERIMENT, seeds=(1,))
    found = ep.sweep(one, {"algorithm.lr": [0.1, 1e39]})
    assert list(found) == ["lr=0.1"]
    assert "round 0: training failed" in found.failed["lr=1e39"]
    assert "1 failed" in repr(found)
    assert "lr=1e39" in found._repr_html_()
    with pytest.raises(RunFailed, match="all 1 runs of the sweep failed; the first, lr=1e"):
        ep.sweep(one, {"algorithm.lr": [1e39]})


@pytest.mark.parametrize(
    ("grid", "options", "message"),
    [
        ({}, {}, "at least one setting"),
        ({"seeds": [1]}, {}, "grid: seeds cannot be used in a grid: .*; use seeds="),
        ({"metrics": [{"f1": "auc"}]}, {}, "grid: metrics cannot be used in a grid"),
        ({"callbacks": [(), ("EarlyStopping",)]}, {}, "grid: callbacks cannot be used in a grid"),
        ({"nodes": 5}, {}, "grid: nodes = 5 must be a list of values"),
        ({"nodes": []}, {}, "grid: nodes has no value"),
        ({"topologie.s": [1]}, {}, "topologie.s is not a known key; did you mean 'topology'"),
        ({"topology.t": [1]}, {}, "topology.t is not a known key"),
        ({"topology.s": [9]}, {}, "grid point s=9: topology.s = 9 must be at most nodes - 1 = 5"),
        ({"topology": [ep.Ring()], "topology.s": [1]}, {}, "contradict each other"),
        ({"nodes": [4, 4]}, {}, "is given twice"),
        ({"nodes": [4]}, {"seeds": 10_001}, "seeds = 10001 must be at most 10000"),
        ({"nodes": [4]}, {"seeds": 2.5}, "seeds = 2.5 must be a whole number, or a list of whole numbers"),
        ({"nodes": [4]}, {"seeds": [2.5]}, "seeds = 2.5 must be a whole number"),
        ({"nodes": [4]}, {"jobs": 0}, "jobs = 0 must be at least 1"),
        ({"nodes": [4]}, {"jobs": 2, "callbacks": ep.Callback()}, "callbacks work in one process only"),
    ],
)
def test_a_grid_that_makes_no_sense_is_refused(grid, options, message):
    with pytest.raises(BadInput, match=message):
        ep.sweep(EXPERIMENT, grid, **options)


def test_settings_of_objects_of_ones_own_cannot_be_swept():
    class Own:
        def graph(self, n, round, streams):
            return ep.Ring().graph(n, round, streams)

    own = msgspec.structs.replace(EXPERIMENT, topology=Own(), seeds=(1,), rounds=1)
    with pytest.raises(BadInput, match=r"topology.s cannot be set in an object of your own; list whole ones"):
        ep.sweep(own, {"topology.s": [1]})
    assert len(ep.sweep(own, {"algorithm.lr": [0.1, 0.2]})) == 2


# -- how things look --------------------------------------------------------------------------------------------------


def test_everything_is_one_line_and_a_small_table(kept, comparison):
    run, _ = kept
    graph = ep.ELLocal(2).graph(6, 0, ep.Streams(1))
    things = [
        run,
        run.seeds[0],
        run.summary,
        run.records[-1],
        EXPERIMENT,
        graph,
        comparison,
        ep.Ring(),
        ep.Every(ep.Ring(), period=2),
    ]
    for thing in things:
        assert "\n" not in repr(thing)
        assert len(repr(thing)) < 200
        html = thing._repr_html_()
        assert "<b>" not in html
        assert html.count("<table>") == 1
        assert len(html) < 4000
    assert repr(run).startswith("Run('<b>': 6 nodes, 4 rounds, 2 seeds; accuracy ")
    assert repr(graph) == "Graph(6 nodes, 12 messages, received by each: 1 to 3)"
    assert (
        repr(ep.Complete().graph(4, 0, ep.Streams(1))) == "Graph(complete, 4 nodes, 12 messages, received by each: 3)"
    )
    assert (
        repr(EXPERIMENT)
        == "Experiment('<b>': 6 nodes, 4 rounds, 2 seeds; ELLocal(s=2), LocalSGD, Digits, IID, Logistic)"
    )
    assert repr(run.models) == "Models(6 nodes, 650 numbers each)"


def test_nothing_in_a_table_is_markup():
    assert "<script>" not in html_table("<script>", [("<script>", "<script>")], ["<script>", "&"])


def test_every_public_name_is_explained():
    for name in ep.__all__:
        if name != "__version__":
            text = inspect.getdoc(getattr(ep, name)) or ""
            assert len(text) > 20, name
            assert text != inspect.getdoc(getattr(ep, name).__base__ if inspect.isclass(getattr(ep, name)) else object)
    for name in (
        "simulate",
        "compare",
        "sweep",
        "Experiment",
        "Run",
        "Callback",
        "Comparison",
        "Sweep",
        "Graph",
        "load",
    ):
        assert "Example:" in (inspect.getdoc(getattr(ep, name)) or ""), name
    for name in ("simulate", "compare", "sweep"):
        function = getattr(ep, name)
        for argument in inspect.signature(function).parameters:
            assert f"{argument}: " in inspect.getdoc(function), (name, argument)


def test_names_are_where_the_package_says_and_type_checkers_agree():
    tree = ast.parse(Path(ep.__file__).read_text())
    typed = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("epidemic")
        for alias in node.names
    }
    assert typed == set(ep.__all__) - {"__version__"}


def test_names_of_functions_are_not_taken_by_modules():
    """A module called like a function would take its name the moment that it is imported."""
    code = (
        "import sys, epidemic as ep\n"
        "heavy = {'torch', 'pandas', 'matplotlib', 'starlette', 'tensorboard', 'wandb', 'IPython'}\n"
        "assert not heavy & set(sys.modules)\n"
        "import epidemic.cli.experiments, epidemic.cli.studies, epidemic.api\n"
        "assert all(callable(getattr(ep, name)) for name in ('simulate', 'compare', 'sweep', 'load'))\n"
        "ep.callbacks.EarlyStopping(patience=1)\n"
        "assert not heavy - {'torch'} & set(sys.modules), heavy & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


class _Lit(torch.nn.Linear):
    """As PyTorch Lightning has its users write them."""

    def training_step(self, batch, _):
        raise AssertionError("nobody calls this")

    def configure_optimizers(self):
        raise AssertionError("nobody calls this")


class _Base(torch.nn.Linear):
    """As Lightning's own class has them."""

    __module__ = "lightning.pytorch.core.module"
    training_step = configure_optimizers = lambda *_: None


class _HalfLit(_Base):
    def training_step(self, *_):
        raise AssertionError("nobody calls this")


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (_Lit, "warning: the model's training_step and configure_optimizers are not used"),
        (_HalfLit, "warning: the model's training_step is not used"),
        (_Base, None),
        (torch.nn.Linear, None),
    ],
)
def test_methods_of_lightning_are_said_to_be_unused(kind, said, capsys):
    x, y = np.zeros((8, 3), np.float32), np.arange(8) % 2
    ep.simulate(
        ep.Experiment(
            nodes=2, rounds=1, topology=ep.Ring(), data=((x, y), (x, y)), partition=ep.IID(), model=kind(3, 2)
        ),
        progress=True,
    )
    lines = [line for line in capsys.readouterr().err.splitlines() if "not used" in line]
    assert len(lines) == (said is not None)
    assert all(line.startswith(said) for line in lines)

"""Metrics, losses and callbacks named in a file: they work wherever the built-in ones do, and their mistakes are one line."""

import json
import sys
from pathlib import Path

import msgspec
import pytest

import epidemic as ep
from epidemic.callbacks.base import listeners
from epidemic.cli import main
from epidemic.experiment import load, node_agreement, same_experiment, to_toml
from epidemic.report.results import read_results

MODULE = """
import epidemic as ep

def top3(outputs, targets):
    return (outputs.topk(3).indices == targets[:, None]).any(1).float()

@ep.metrics.whole
def share(outputs, targets):
    return (outputs.argmax(1) == 0).float().mean()

@ep.metrics.whole
def undefined(outputs, targets):
    return None

def scores(outputs, targets):
    return outputs

def hinge(outputs, targets):
    right = outputs.gather(-1, targets[:, None])
    return (1 - right + outputs).clamp(min=0).mean()

def sums(outputs, targets):
    return outputs.sum(-1)

class Log(ep.Callback):
    def __init__(self, path="log.txt", fails=""):
        self.path, self.fails = path, fails

    def write(self, what):
        if what.startswith(self.fails or "never"):
            raise ValueError("disk\\nfull")
        with open(self.path, "a") as file:
            file.write(what + "\\n")

    def started(self, setup, learner, rounds_done):
        self.write(f"started {rounds_done}")

    def recorded(self, record):
        self.write(f"recorded {record.round}")

    def evaluating(self, what):
        self.write(f"evaluating {what}")

    def finished(self, summary):
        self.write(f"finished {summary.rounds}")

def make():
    return Log("made.txt")

ready = Log("ready.txt")

def nothing():
    return object()

number = 1
"""
SMALL = """
nodes = 4
rounds = 2
data = {kind = "digits"}
partition = {kind = "iid"}
model = {kind = "logistic"}
eval = {every = 1, samples = 50}
topology = {kind = "ring"}
runtime = {strategy = "per-node"}
"""
NAMES = """
loss = "my_names:hinge"
callbacks = ["my_names:Log", {use = "my_names:Log", options = {path = "other.txt"}}, "my_names:make", "my_names:ready"]
metrics = {f1 = "macro-f1", top3 = "my_names:top3", share = "my_names:share", no = "my_names:undefined"}
"""
TOLD = ["started 0", "recorded 0", "recorded 1", "recorded 2", "evaluating the full test set", "finished 2"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with an experiment file and a module beside it, and a current directory that is another."""
    folder, here = tmp_path / "mine", tmp_path / "here"
    folder.mkdir()
    here.mkdir()
    (folder / "my_names.py").write_text(MODULE)
    (folder / "e.toml").write_text(SMALL + NAMES)
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield folder
    sys.modules.pop("my_names", None)


def _records(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def test_a_file_holds_them(folder):
    experiment = load(folder / "e.toml")
    assert experiment.portable
    (folder / "again.toml").write_text(to_toml(experiment))
    assert load(folder / "again.toml") == experiment
    assert list(experiment.own_metrics()) == ["f1", "top3", "share", "no"]
    (folder / "list.toml").write_text(SMALL + 'metrics = ["macro-f1", "my_names:top3"]\n')
    assert load(folder / "list.toml").metrics == {"macro-f1": "macro-f1", "top3": "my_names:top3"}
    assert load(folder / "list.toml", ['metrics=["auc"]']).metrics == {"auc": "auc"}
    assert load(folder / "e.toml", ["metrics.auc=auc"]).metrics["auc"] == "auc"
    assert list(load(folder / "list.toml", ["metrics.a=auc"]).metrics) == ["macro-f1", "top3", "a"]


def test_they_run_and_a_report_has_their_columns(folder, capsys):
    assert main(["run", str(folder / "e.toml"), "--out", "run", "--quiet", "--json"]) == 0
    final = json.loads(capsys.readouterr().out)["seeds"][0]["final_metrics"]
    assert list(final) == ["f1", "top3", "share", "no"]
    assert final["f1"]["mean"] <= final["top3"]["mean"] <= 1
    assert final["no"] == dict.fromkeys(("mean", "sd", "min", "max"))
    for name in ("log.txt", "other.txt", "made.txt", "ready.txt"):
        assert Path(name).read_text().splitlines() == TOLD
    row = read_results(Path("run")).rows()[-1]
    assert row["metric.share_mean"] == pytest.approx(0.1, abs=0.1)
    assert row["metric.no_mean"] is None
    assert main(["report", "run", "-o", "table.csv"]) == 0
    assert "metric.top3_mean" in Path("table.csv").read_text()


def test_a_loss_is_that_of_its_name(folder):
    named = ep.simulate(load(folder / "e.toml", ["callbacks=[]"]))
    import my_names

    given = ep.simulate(msgspec.structs.replace(load(folder / "e.toml", ["callbacks=[]"]), loss=my_names.hinge))
    assert named.records == given.records
    assert (
        named.records[-1].loss != ep.simulate(load(folder / "e.toml", ["callbacks=[]", "loss=auto"])).records[-1].loss
    )


def test_a_run_shows_metrics_and_a_dash_where_there_is_none(folder, capsys):
    assert main(["run", str(folder / "e.toml"), "--out", "run", "--quiet"]) == 0
    out = capsys.readouterr().out
    shown = {words[1]: words[2:] for line in out.splitlines() if len(words := line.split()) == 6 and words[0] == "1"}
    assert list(shown) == ["f1", "top3", "share", "no"]
    assert shown["no"] == ["-"] * 4
    assert 0 < float(shown["f1"][0]) < 1


def test_they_go_on_with_other_callbacks_but_not_with_other_metrics(folder, capsys):
    run = ["run", str(folder / "e.toml"), "--out", "run", "--quiet"]
    assert main([*run, "--set", 'callbacks=[{use="my_names:Log",options={fails="recorded 1"}}]']) == 1
    err = capsys.readouterr().err
    assert "callback Log failed in recorded(): ValueError: disk full" in err
    assert [line for line in err.splitlines() if not line.startswith(("error:", "executing the code of"))] == []
    state = json.loads(Path("run/seed-1/state.json").read_text())
    assert state["state"] == "failed"
    assert "callback Log failed in recorded()" in state["why"]
    assert main([*run, "--set", "metrics.f1=auc"]) == 2
    assert "holds a different experiment (in metrics.f1)" in capsys.readouterr().err
    assert main(["run", "--resume", "run", "--quiet", "--set", "callbacks=[]"]) == 0
    assert main(["run", str(folder / "e.toml"), "--out", "whole", "--quiet", "--set", "callbacks=[]"]) == 0
    assert _records("run/seed-1/records.jsonl") == _records("whole/seed-1/records.jsonl")


def test_callbacks_may_differ_between_runs_and_nodes_and_metrics_may_not(folder):
    experiment = load(folder / "e.toml")
    without, other = load(folder / "e.toml", ["callbacks=[]"]), load(folder / "e.toml", ["metrics.f1=auc"])
    assert not same_experiment(experiment.table(), without.table())
    assert node_agreement(experiment) == node_agreement(without)
    assert same_experiment(experiment.table(), other.table()) == ["metrics.f1"]
    assert node_agreement(experiment) != node_agreement(other)


@pytest.mark.parametrize("name", ["EarlyStopping", "epidemic.callbacks:EarlyStopping"])
def test_one_that_comes_with_it_ends_a_run_by_ones_own_metric(folder, name):
    options = {"metric": "share", "mode": "max", "target": 0.0}
    use = [{"use": name, "options": options}]
    run = ep.simulate(msgspec.structs.replace(load(folder / "e.toml"), callbacks=use))
    assert run.seeds[0].summary.rounds == 0


def test_one_that_ends_runs_is_not_deployed(folder):
    use = [{"use": "EarlyStopping", "options": {"patience": 3}}]
    assert len(listeners(load(folder / "e.toml"))) == 4
    with pytest.raises(ep.BadInput, match="'EarlyStopping' ends runs early, which a deployed node cannot do alone"):
        listeners(msgspec.structs.replace(load(folder / "e.toml"), callbacks=use))


def test_they_are_compared(folder):
    (folder / "m.toml").write_text(
        SMALL + NAMES + '[[methods]]\nname = "a"\n[[methods]]\nname = "b"\nmetrics = {f1 = "balanced-accuracy"}\n'
    )
    assert main(["compare", str(folder / "m.toml"), "--out", "compared", "--quiet", "--json"]) == 0
    assert Path("log.txt").read_text().splitlines() == 2 * TOLD
    assert "share" in _records("compared/b/seed-1/records.jsonl")[-1]["metrics"]


def test_they_are_swept_in_processes(folder, capsys):
    grid = ["--grid", "algorithm.lr=0.1,0.2", "--jobs", "2"]
    assert main(["sweep", str(folder / "e.toml"), *grid, "--out", "swept", "--quiet", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["runs"]) == 2
    assert sorted(Path("log.txt").read_text().splitlines()) == sorted(2 * TOLD)
    assert main(["report", "swept", "-o", "table.csv"]) == 0
    assert "metric.f1_mean" in Path("table.csv").read_text()


def test_another_process_goes_on_from_the_directory(folder, monkeypatch, capsys):
    """The module lies beside the file that was run, not beside the one in the run's directory."""
    before = [node_id for node_id in sys.path if node_id != str(folder)]
    setting = ["--set", 'callbacks=[{use="my_names:Log",options={fails="recorded 1"}}]']
    assert main(["run", str(folder / "e.toml"), "--out", "run", "--quiet", *setting]) == 1
    monkeypatch.setattr(sys, "path", [*before])
    del sys.modules["my_names"]
    capsys.readouterr()
    assert main(["run", "--resume", "run", "--quiet", "--set", 'callbacks=["my_names:Log"]']) == 0
    (folder / "my_names.py").rename(folder / "elsewhere.py")
    del sys.modules["my_names"]
    assert main(["run", "--resume", "run", "--quiet"]) == 2
    err = capsys.readouterr().err
    assert "there is no module my_names here, beside the experiment file, or installed" in err
    assert sum(not line.startswith("executing the code of") for line in err.splitlines()) == 1


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('loss = "my_names:hinges"', "loss = 'my_names:hinges': my_names has no hinges"),
        ('loss = "my_names:number"', "loss = 'my_names:number' must name a function of (outputs, targets), not int"),
        ('loss = "my_names:Log"', "loss = 'my_names:Log' must name a function of (outputs, targets), not Log"),
        ('loss = "my_names:sums"', "the loss 'my_names:sums' must be the mean over the batch, a single number, not shape (2,)"),
        ('loss = "my_names:make"', "the loss 'my_names:make' cannot take the model's outputs: make() takes 0"),
        ('loss = "nowhere_at_all:f"', "loss = 'nowhere_at_all:f' cannot be imported: there is no module nowhere_at_all"),
        ('loss = "hinge"', "loss = 'hinge' is not known"),
        ('metrics = {m = "my_names:nope"}', "metrics.m = 'my_names:nope': my_names has no nope"),
        ('metrics = ["my_names:scores"]', "metric 'scores' must give a tensor of one number per sample, not (2, 10)"),
        ('metrics = {m = "my_names:number"}', "metrics.m = 'my_names:number' must name a function"),
        ('metrics = {m = "nowhere_at_all:f"}', "metrics.m = 'nowhere_at_all:f' cannot be imported: there is no module"),
        ('metrics = ["macro-f2"]', "metrics.macro-f2 = 'macro-f2' is neither known"),
        ('callbacks = ["nowhere_at_all:f"]', "callbacks = 'nowhere_at_all:f' cannot be imported: there is no module"),
        ('callbacks = ["my_names:nope"]', "callbacks = 'my_names:nope': my_names has no nope"),
        ('callbacks = ["my_names:number"]', "callbacks: 'my_names:number' must name a function, not int"),
        ('callbacks = ["my_names:nothing"]', "'my_names:nothing' must be or give an epidemic.Callback, not object"),
        ('callbacks = [{use = "my_names:ready", options = {a = 1}}]', "is an object already and takes no options"),
        ('callbacks = [{use = "my_names:Log", options = {a = 1}}]', "callbacks: 'my_names:Log' failed: TypeError"),
        ('callbacks = ["Nobody"]', "callbacks: 'Nobody' is neither known nor of the form"),
        ('callbacks = ["EarlyStoping"]', "did you mean 'EarlyStopping'?"),
        ('callbacks = ["EarlyStopping"]', "error: EarlyStopping needs patience=N"),
    ],
)  # fmt: skip
def test_their_mistakes_are_one_line(folder, capsys, line, said):
    file = folder / "wrong.toml"
    file.write_text(f"{SMALL}{line}\n")
    assert main(["run", str(file), "--out", "run", "--quiet"]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert sum(not line.startswith("executing the code of") for line in err.splitlines()) == 1
    assert not list(Path("run").glob("seed-*/run.json"))


def test_one_that_ends_runs_is_refused_before_a_cluster_is_made(tmp_path):
    from epidemic.deploy.agreement import check_deployable

    with pytest.raises(ep.BadInput, match="'EarlyStopping' ends runs early"):
        check_deployable(
            ep.Experiment(
                nodes=4, topology=ep.ELLocal(2), callbacks=[{"use": "EarlyStopping", "options": {"patience": 3}}]
            )
        )

"""An algorithm of a user's own, named in a file: it works wherever the built-in ones do, and its mistakes are one line."""

import json
import re
import sys
from pathlib import Path

import msgspec
import pytest
import torch

import epidemic as ep
from epidemic.algorithms import cautions
from epidemic.callbacks import Callback
from epidemic.cli import main
from epidemic.core.errors import Interrupted
from epidemic.deploy.agreement import check_deployable
from epidemic.experiment import load, to_toml

GUIDE = (Path(__file__).parents[1] / "docs/guide.md").read_text()
MODULE = """
import epidemic as ep
import torch

class Gossip(ep.Defaults):
    '''Moves by its lr in every round, and keeps what it was told about rounds.'''
    local_steps = 2
    batch_size = 3
    sampling = "epoch"

    def __init__(self, lr=0.5, exact=False, refuse=False):
        self.lr, self.refuse = lr, refuse
        self.exact_exchange = exact

    def check(self, topology, mixing):
        if self.refuse:
            raise ep.BadInput("algorithm.options.refuse = true: not today")

    def cautions(self, topology):
        return [f"gossip over {type(topology).__name__}"]

    def init(self, x):
        return {"x": x, "told": torch.zeros(len(x), 6)}

    def local_update(self, state, learner, context):
        told = torch.tensor([[context.round, d, *context.index.shape, len(context.seeds)] for d in context.out_degree.tolist()])
        x = state["x"] + self.lr
        return {"x": x, "told": told.reshape(len(x), 6).float()}, {"x": x}, torch.zeros(len(x))

    def aggregate(self, state, inbox):
        return {**state, "x": inbox.mean("x")}

class Poor:
    local_steps = batch_size = 1

    def init(self, x):
        return {"x": x}

def fails(lr=1):
    raise ValueError("no\\nidea")

def nothing():
    return object()

def kind():
    return Gossip

number = 1
"""
SMALL = """
nodes = 6
rounds = 4
data = {kind = "digits"}
partition = {kind = "iid"}
model = {kind = "logistic"}
eval = {every = 2, samples = 50}
topology = {kind = "el-local", s = 3}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with an experiment file and modules beside it, and a current directory that is another."""
    folder, here = tmp_path / "mine", tmp_path / "here"
    folder.mkdir()
    here.mkdir()
    (folder / "my_algorithm.py").write_text(MODULE)
    (folder / "e.toml").write_text(
        SMALL + '[algorithm]\nkind = "python"\nfactory = "my_algorithm:Gossip"\noptions = {lr = 0.25}\n'
    )
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield folder
    for name in ("my_algorithm", "my_module"):
        sys.modules.pop(name, None)


def test_all_that_the_object_has_is_taken_over_and_a_file_holds_it(folder):
    experiment = load(folder / "e.toml")
    algorithm = experiment.algorithm
    assert algorithm == ep.PythonAlgorithm("my_algorithm:Gossip", options={"lr": 0.25})
    assert (algorithm.local_steps, algorithm.batch_size, algorithm.sampling) == (2, 3, "epoch")
    assert cautions(algorithm, experiment.topology) == ["gossip over ELLocal"]
    assert experiment.portable
    (folder / "again.toml").write_text(to_toml(experiment))
    assert load(folder / "again.toml") == experiment


def test_it_runs_is_warned_of_and_goes_on(folder, capsys):
    assert main(["run", str(folder / "e.toml"), "--out", "run", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["seeds"][0]["rounds"] == 4
    assert "warning: gossip over ELLocal" in err
    assert main(["run", "--resume", "run", "--quiet"]) == 0


def test_what_it_does_is_what_it_says(folder):
    """Everybody moves alike, so averages change nothing."""
    experiment = load(folder / "e.toml")
    first = ep.simulate(msgspec.structs.replace(experiment, rounds=0)).models.rows
    last = ep.simulate(experiment).models.rows
    torch.testing.assert_close(last, first + 4 * 0.25, rtol=0, atol=1e-5)


def test_local_update_knows_the_round_and_to_how_many_each_sends(folder):
    """Where messages are lost, the out degrees are those that arrive."""

    class Told(Callback):
        def __init__(self):
            self.plans, self.told = [], []

        def planned(self, plan, index):
            self.plans.append(plan)

        def advanced(self, rounds_done, x):
            self.told.append(x.clone())

    told = Told()
    experiment = load(folder / "e.toml", ["faults.loss=0.5"])
    made = experiment.algorithm.made
    made.model = lambda state: torch.cat([state["told"], state["x"]], 1)[:, :650]
    ep.simulate(msgspec.structs.replace(experiment, algorithm=made), callbacks=told)
    for t, (plan, x) in enumerate(zip(told.plans, told.told, strict=True)):
        degree = plan.delivery.graph.out_degree
        assert x[:, 0].tolist() == [t] * 6
        assert x[:, 1].tolist() == degree.tolist()
        assert x[:, 2:6].tolist() == [[6, 2, 3, 6]] * 6
    assert len({tuple(plan.delivery.graph.out_degree) for plan in told.plans}) > 1


def test_it_is_compared(folder):
    methods = '[[methods]]\nname = "mine"\n[methods.algorithm]\nkind = "python"\nfactory = "my_algorithm:Gossip"\n'
    (folder / "m.toml").write_text(SMALL + methods + '[[methods]]\nname = "plain"\n')
    assert main(["compare", str(folder / "m.toml"), "--out", "compared", "--quiet", "--json"]) == 0


def test_it_is_swept_in_processes(folder, capsys):
    grid = ["--grid", "algorithm.options.lr=0.1,0.2", "--jobs", "2"]
    assert main(["sweep", str(folder / "e.toml"), *grid, "--out", "swept", "--quiet", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["runs"]) == 2


def test_a_sweep_goes_from_a_built_in_kind_to_ones_own(folder, capsys):
    (folder / "plain.toml").write_text(SMALL)
    grid = ["--grid", 'algorithm={kind="python",factory="my_algorithm:Gossip"},{lr=0.1}']
    assert main(["sweep", str(folder / "plain.toml"), *grid, "--out", "swept", "--quiet", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["runs"]) == 2


def test_a_module_of_the_current_directory_is_found(folder, monkeypatch):
    monkeypatch.chdir(folder)
    algorithm = ep.PythonAlgorithm("my_algorithm:Gossip")
    assert ep.Experiment(algorithm=algorithm).algorithm.local_steps == 2


def test_it_is_deployed_as_it_says(folder):
    check_deployable(load(folder / "e.toml"))
    with pytest.raises(
        ep.BadInput, match=r'"python" needs every message to arrive; use network.close.kind = "barrier"'
    ):
        check_deployable(load(folder / "e.toml", ["algorithm.options.exact=true"]))


@pytest.mark.parametrize(
    ("factory", "options", "message"),
    [
        ("nowhere_at_all:X", "{}", "algorithm.factory = 'nowhere_at_all:X' cannot be imported: there is no module nowhere_at_all"),
        ("my_algorithm:Gosip", "{}", "algorithm.factory = 'my_algorithm:Gosip': my_algorithm has no Gosip"),
        ("my_algorithm", "{}", 'must have the form "module:name"'),
        ("my_algorithm:number", "{}", "must name a function, not int"),
        ("my_algorithm:Gossip", "{rate = 1}", "algorithm.factory = 'my_algorithm:Gossip' failed: TypeError"),
        ("my_algorithm:fails", "{}", "algorithm.factory = 'my_algorithm:fails' failed: ValueError: no idea"),
        ("my_algorithm:nothing", "{}", "must return an algorithm, not object: it needs local_steps, batch_size, init, local_update and aggregate"),
        ("my_algorithm:Poor", "{}", "must return an algorithm, not Poor"),
        ("my_algorithm:kind", "{}", "must return an algorithm, not Gossip"),
        ("my_algorithm:Gossip", "{refuse = true}", "algorithm.options.refuse = true: not today"),
    ],
)  # fmt: skip
def test_its_mistakes_are_one_line(folder, capsys, factory, options, message):
    table = f'[algorithm]\nkind = "python"\nfactory = "{factory}"\noptions = {options}\n'
    (folder / "e.toml").write_text(SMALL + table)
    assert main(["run", str(folder / "e.toml"), "--out", "run", "--quiet"]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert sum(not line.startswith("executing the code of") for line in err.splitlines()) == 1
    assert not Path("run").exists()


# -- files from before there were kinds -------------------------------------------------------------------------------


def test_a_file_without_a_kind_means_local_sgd(tmp_path):
    file = tmp_path / "e.toml"
    file.write_text(SMALL + "[algorithm]\nlr = 0.2\nmomentum = 0.5\n")
    assert load(file).algorithm == ep.LocalSGD(lr=0.2, momentum=0.5)
    assert load(file, ["algorithm.kind=local-sgd"]) == load(file)
    assert load(file, ["algorithm.kind=push-sum"]).algorithm == ep.PushSum()


class InterruptedAfterTwo(Callback):
    def advanced(self, rounds_done, x):
        if rounds_done == 2:
            raise KeyboardInterrupt


def test_a_run_directory_from_before_there_were_kinds_is_gone_on_with(tmp_path):
    file = tmp_path / "e.toml"
    file.write_text(SMALL + "[algorithm]\nlr = 0.2\n")
    experiment = load(file)
    ep.simulate(experiment, tmp_path / "whole")
    with pytest.raises(Interrupted):
        ep.simulate(experiment, tmp_path / "old", callbacks=InterruptedAfterTwo())
    path = tmp_path / "old/seed-1/run.json"
    info = json.loads(path.read_text())
    for key in ("kind", "sampling"):
        del info["experiment"]["algorithm"][key]
    path.write_text(json.dumps(info))
    described = tmp_path / "old/experiment.toml"
    lines = described.read_text().splitlines(keepends=True)
    old = [line for line in lines if not re.match(r'kind = "local-sgd"|sampling = ', line)]
    assert len(old) == len(lines) - 2
    described.write_text("".join(old))
    assert main(["run", "--resume", str(tmp_path / "old"), "--quiet"]) == 0
    for name in ("records.jsonl", "models.safetensors", "summary.json", "nodes.json"):
        assert (tmp_path / "old/seed-1" / name).read_bytes() == (tmp_path / "whole/seed-1" / name).read_bytes()


# -- the guide --------------------------------------------------------------------------------------------------------


def test_the_guides_algorithm_runs_as_it_stands(folder):
    section = GUIDE[GUIDE.index("### Your own algorithm") :]
    module = re.search(r"```python\n(.*?)```", section, re.S)[1]
    table = re.search(r"```toml\n(.*?)```", section, re.S)[1]
    (folder / "my_module.py").write_text(module)
    (folder / "g.toml").write_text(SMALL + table)
    settings = ["rounds=12", "faults.crashes=[{node = 1, at = 2, returns = 4}]", "faults.loss=0.1"]
    run = ep.simulate(load(folder / "g.toml", settings))
    assert run.records[-1].accuracy.mean > run.records[0].accuracy.mean + 0.2
    plain = ep.simulate(load(folder / "g.toml", ["rounds=1"]))
    assert plain.records[-1].bytes.model.mean == 3 * 2 * 4 * 650

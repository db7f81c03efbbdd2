"""A topology of a user's own, named in a file: it works wherever the built-in ones do, and its mistakes are one line."""

import json
import sys

import pytest

import epidemic as ep
from epidemic.cli import main
from epidemic.core.rng import Streams
from epidemic.experiment import load, to_toml
from epidemic.topology import Expected, expected, is_random, is_static, natural_mixing

MODULE = """
import numpy as np
import epidemic as ep
from epidemic.topology import Expected

class Star:
    natural_mixing = "metropolis-hastings"
    static = True

    def __init__(self, hub=0):
        self.hub = hub

    def check(self, n):
        if n <= self.hub:
            raise ep.BadInput(f"topology.options.hub = {self.hub} must be at most nodes - 1 = {n - 1}")

    def graph(self, n, round, streams):
        others = np.setdiff1d(np.arange(n), [self.hub])
        hub = np.full(n - 1, self.hub)
        return ep.Graph.from_edges(n, np.concatenate([others, hub]), np.concatenate([hub, others]))

    def expected(self, n, streams):
        return Expected(sigma2=0.25)

class Says:
    def __init__(self, what):
        self.what = what

    def graph(self, n, round, streams):
        if self.what == "raise":
            raise ValueError("no\\nidea")
        if self.what == "list":
            return []
        return ep.Graph.empty(n - 1) if self.what == "small" else ep.Graph.from_edges(n, np.array([0]), np.array([0]))

class Drawn:
    random = True

    def __init__(self, how):
        self.how = how
        self.kept = np.random.default_rng(1)

    def graph(self, n, round, streams):
        rng = {
            "global": np.random, "fresh": np.random.default_rng(), "kept": self.kept, "keyed": streams.generator("topology", round)
        }[self.how]
        return ep.Graph.from_edges(n, np.arange(n), (np.arange(n) + 1 + rng.permutation(n) % (n - 1)) % n)

def nothing():
    return object()

def kind():
    return Star

number = 1
"""
SMALL = """
nodes = 6
rounds = 2
data = {kind = "digits"}
partition = {kind = "iid"}
model = {kind = "logistic"}
eval = {every = 1, samples = 50}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with an experiment file and a module beside it, and a current directory that is another."""
    folder, here = tmp_path / "mine", tmp_path / "here"
    folder.mkdir()
    here.mkdir()
    (folder / "my_topology.py").write_text(MODULE)
    (folder / "e.toml").write_text(
        SMALL + '[topology]\nkind = "python"\nfactory = "my_topology:Star"\noptions = {hub = 2}\n'
    )
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield folder
    sys.modules.pop("my_topology", None)


def test_all_that_the_object_has_is_taken_over_and_a_file_holds_it(folder):
    experiment = load(folder / "e.toml")
    topology = experiment.topology
    assert topology == ep.PythonTopology("my_topology:Star", options={"hub": 2})
    assert (natural_mixing(topology), is_static(topology), is_random(topology)) == ("metropolis-hastings", True, False)
    assert expected(topology, 6, Streams(1)) == Expected(sigma2=0.25)
    assert topology.graph(6, 0, Streams(1)).into(2).tolist() == [0, 1, 3, 4, 5]
    assert experiment.portable
    (folder / "again.toml").write_text(to_toml(experiment))
    assert load(folder / "again.toml") == experiment


def test_it_runs_and_goes_on(folder, capsys):
    assert main(["run", str(folder / "e.toml"), "--out", "run", "--quiet", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["seeds"][0]["rounds"] == 2
    assert main(["run", "--resume", "run", "--quiet"]) == 0


def test_it_is_compared(folder):
    methods = '[[methods]]\nname = "mine"\n[methods.topology]\nkind = "python"\nfactory = "my_topology:Star"\n'
    (folder / "m.toml").write_text(SMALL + methods + '[[methods]]\nname = "ring"\n[methods.topology]\nkind = "ring"\n')
    assert main(["compare", str(folder / "m.toml"), "--out", "compared", "--quiet", "--json"]) == 0


def test_it_is_swept_in_processes(folder, capsys):
    grid = ["--grid", "topology.options.hub=0,1", "--jobs", "2"]
    assert main(["sweep", str(folder / "e.toml"), *grid, "--out", "swept", "--quiet", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["runs"]) == 2


def test_it_is_looked_at(folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    assert main(["topology", "python", "-n", "9", "--set", "factory=my_topology:Star", "--json", "--rounds", "3"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["kind"], found["in_degree_max"], found["expected_sigma2"]) == ("python", 8, 0.25)


@pytest.mark.parametrize(
    ("factory", "options", "said"),
    [
        ("nowhere_at_all:Star", {}, "there is no module nowhere_at_all here, beside the experiment file, or installed"),
        ("my_topology:Stern", {}, "my_topology has no Stern"),
        ("my_topology", {}, 'must have the form "module:name"'),
        ("my_topology:number", {}, "must name a function, not int"),
        ("my_topology:Star", {"centre": 1}, "failed: TypeError"),
        ("my_topology:Star", {"hub": 6}, "topology.options.hub = 6 must be at most nodes - 1 = 5"),
        ("my_topology:nothing", {}, "an object with a method graph(n, round, streams), not object"),
        ("my_topology:kind", {}, "an object with a method graph(n, round, streams), not Star"),
        ("my_topology:Says", {"what": "raise"}, "graph(6, 0, streams) failed: ValueError: no idea"),
        ("my_topology:Says", {"what": "list"}, "must return an epidemic.Graph of 6 nodes, not list"),
        ("my_topology:Says", {"what": "small"}, "must return an epidemic.Graph of 6 nodes, not one of 5"),
        ("my_topology:Says", {"what": "loop"}, "not one in which a node sends to itself"),
    ],
)
def test_its_mistakes_are_one_line(folder, capsys, factory, options, said):
    given = ", ".join(f"{key} = {value!r}" for key, value in options.items())
    file = folder / "wrong.toml"
    file.write_text(f"{SMALL}[topology]\nkind = 'python'\nfactory = '{factory}'\noptions = {{{given}}}\n")
    assert main(["run", str(file), "--out", "run", "--quiet"]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert sum(not line.startswith("executing the code of") for line in err.splitlines()) == 1


def test_a_module_beside_a_file_hides_nothing_that_is_installed(folder):
    load(folder / "e.toml")
    assert sys.path[-1] == str(folder)


@pytest.mark.parametrize("how", ["global", "fresh", "kept"])
def test_randomness_that_is_not_keyed_is_refused(folder, capsys, how):
    (folder / "e.toml").write_text(
        SMALL + f'[topology]\nkind = "python"\nfactory = "my_topology:Drawn"\noptions = {{how = "{how}"}}\n'
    )
    out = folder / "out"
    looked = [
        "topology",
        "python",
        "--nodes",
        "20",
        "--set",
        "factory=my_topology:Drawn",
        "--set",
        f'options={{how="{how}"}}',
    ]
    sys.path.insert(0, str(folder))
    for words in (
        ["run", str(folder / "e.toml"), "--out", str(out)],
        ["cluster", "init", str(folder / "e.toml"), "--hosts", "10.0.0.1:7447", "--out", str(out)],
        looked,
    ):
        assert main(words) == 2
        err = capsys.readouterr().err
        assert sum(not line.startswith("executing the code of") for line in err.splitlines()) == 1
        assert "'my_topology:Drawn' gave two different graphs" in err
        assert "streams.generator('topology', round)" in err
        assert not (out / "seed-1" / "run.json").exists()
        assert not (out / "node-0").exists()
    from my_topology import Drawn

    for topology in (Drawn(how), ep.Every(inner=Drawn(how), period=2)):
        with pytest.raises(ep.BadInput, match="topology Drawn gave two different graphs"):
            ep.simulate(ep.Experiment(nodes=20, rounds=1, data=ep.Digits(), model=ep.Logistic(), topology=topology))


def test_numpys_generator_gives_the_same_graphs_to_everybody(folder):
    from concurrent.futures import ThreadPoolExecutor

    sys.path.insert(0, str(folder))
    from my_topology import Drawn

    def digests(order):
        return {t: Drawn("keyed").graph(30, t, Streams(5)).digest() for t in order}

    alone = digests(range(20))
    assert len(set(alone.values())) == 20
    with ThreadPoolExecutor(4) as pool:
        assert all(found == alone for found in pool.map(digests, [range(19, -1, -1)] * 8))

"""What a run's network is, is written down; one that falls apart is warned of."""

import json

import numpy as np
import pytest

import epidemic as ep
from epidemic.cli import main
from epidemic.experiment import to_toml
from epidemic.report.page import page
from epidemic.report.results import read_results
from epidemic.runtime.describe import describe_network, disconnection
from epidemic.topology import Isolated, Ring

WHOLE = next(s for s in range(1, 100) if ep.UEquiStatic(3).graph(40, 0, ep.Streams(s)).connected)
APART = next(s for s in range(1, 100) if not ep.UEquiStatic(3).graph(40, 0, ep.Streams(s)).connected)


def experiment(**fields):
    return ep.Experiment(
        **{
            "name": "apart", "nodes": 40, "rounds": 1, "seeds": [APART], "topology": ep.UEquiStatic(3), "data": ep.Digits(),
            "partition": ep.IID(), "model": ep.Logistic(), "eval": ep.Eval(every=1, samples=50), **fields,
        }
    )  # fmt: skip


def test_static_graphs_are_described_with_their_weights():
    assert describe_network(experiment(topology=ep.ELLocal(3)), 1) == {"static": False}
    whole = describe_network(experiment(), WHOLE)
    assert whole["connected"]
    assert whole["sigma"] < 1
    assert describe_network(experiment(), APART) == {"static": True, "connected": False, "sigma": 1.0}
    ring = describe_network(experiment(topology=Ring()), 1)["sigma"]
    assert ring == pytest.approx((1 + 2 * np.cos(2 * np.pi / 40)) / 3)
    held = describe_network(experiment(topology=ep.Every(Ring(), period=2)), 1)
    assert held["sigma"] == ring


def test_a_large_network_is_not_waited_for():
    assert describe_network(experiment(nodes=20_000, topology=Ring()), 1) == {
        "static": True, "connected": True, "sigma": None,
    }  # fmt: skip


def test_the_warning_names_nodes_that_are_cut_off():
    said = disconnection(experiment(), APART)
    assert said.startswith(f"the static graph of seed {APART} is disconnected: models of nodes 0, ")
    assert disconnection(experiment(), WHOLE) is None
    assert disconnection(experiment(topology=Isolated()), 1) is None  # as it is meant
    assert disconnection(experiment(topology=ep.ELLocal(1)), 1) is None  # another graph every round


class OneWay:
    """0 -> 1 -> 2 -> ...: the last node hears, but is never heard."""

    static = True

    def graph(self, n, round, streams):
        return ep.Graph.from_edges(n, np.arange(n - 1), np.arange(1, n))


def test_of_a_graph_with_a_direction_those_are_named_who_are_not_heard():
    assert "the model of node 39 never reaches the other 39" in disconnection(experiment(topology=OneWay()), 1)
    assert ep.Graph.complete(4, np.array([0, 2, 3])).closed_part().tolist() == [1]
    assert ep.Graph.complete(3).closed_part().tolist() == [0, 1, 2]


def test_it_is_in_run_json_on_the_screen_and_on_the_page(tmp_path, capsys):
    file = tmp_path / "e.toml"
    file.write_text(to_toml(experiment(seeds=[WHOLE, APART])))
    assert main(["run", str(file), "--out", str(tmp_path / "run")]) == 0
    said = capsys.readouterr().err
    assert said.count("is disconnected") == 1
    assert f"warning: the static graph of seed {APART} is disconnected" in said
    info = tmp_path / "run" / f"seed-{APART}" / "run.json"
    assert json.loads(info.read_bytes())["network"] == {"static": True, "connected": False, "sigma": 1.0}
    line = f"the static graph of apart is disconnected (seed {APART})"
    assert line in page(read_results(tmp_path))
    older = {key: value for key, value in json.loads(info.read_bytes()).items() if key != "network"}
    info.write_text(json.dumps(older))
    assert "is disconnected" not in page(read_results(tmp_path))

"""The same file and seed give the same result on real processes as in the simulator."""

import json
import shutil
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

import epidemic as ep
from conftest import experiment, furthest
from epidemic.clock import CloseBarrier
from epidemic.core.rng import Streams
from epidemic.deploy.processes import blocks
from epidemic.runtime.plan import intended_graph

BARRIER = ep.Network(close=CloseBarrier())


@pytest.mark.parametrize("topology", [ep.ELLocal(4), ep.ELOracle(4)], ids=["el-local", "el-oracle"])
def test_sixteen_processes_and_the_simulator_agree(deploy, topology):
    what = experiment(topology=topology, network=BARRIER)
    there = deploy(what).start().finish()
    simulated = ep.simulate(what)
    assert there.cluster.problems() == {}
    assert furthest(there, simulated) < 1e-5
    seed = simulated.seeds[0]
    measured = [there.node(i)["bytes"] for i in range(16)]
    for part in ("model", "header", "control"):
        accounted = getattr(seed.summary.bytes, part)
        assert np.mean([m[part] for m in measured]) == accounted.mean
        assert max(m[part] for m in measured) == accounted.max
    assert sum(m["control"] for m in measured) == 0  # not a single control message
    for i in range(16):
        assert there.node(i)["messages"]["counted"] == sum(int(k) * v for k, v in there.node(i)["in_degree"].items())
        assert set(there.node(i)["messages"]) == {"counted"}
        assert there.node(i)["refusals"] == {}
    final = [there.summary(i)["final_accuracy"]["mean"] for i in range(16)]
    assert np.mean(final) == pytest.approx(seed.summary.final_accuracy.mean, abs=1e-6)


def test_gathered_results_are_those_of_a_simulation(deploy, tmp_path):
    from epidemic.deploy.gather import gather

    what = experiment(nodes=6, topology=ep.ELOracle(4), network=BARRIER)
    there = deploy(what).start().finish()
    summary = gather(there.folders, tmp_path / "together")
    simulated = ep.simulate(what, tmp_path / "simulated")
    here = simulated.seeds[0].summary
    assert summary.final_accuracy == here.final_accuracy
    assert summary.final_mean_model_accuracy == here.final_mean_model_accuracy
    assert summary.final_disagreement == pytest.approx(here.final_disagreement, rel=1e-4)
    assert summary.bytes == here.bytes
    results = ep.read_results(tmp_path / "together", tmp_path / "simulated")
    a, b = ([(r.round, r.accuracy, r.bytes) for r in run.by_seed[0]] for run in results.runs)
    assert a == b


def test_stopped_at_any_moment_and_started_again_it_is_still_the_same(deploy):
    what = experiment(nodes=8, rounds=60, network=BARRIER)
    there = deploy(what).start()
    for at in (5, 20):
        there.until_round(at)
        there.cluster.stop()
        assert all(child.process.exitcode in (0, 130) for child in there.cluster.children)
        there.start()
    there.finish()
    assert furthest(there, ep.simulate(what)) < 1e-5


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda e: msgspec.structs.replace(e, algorithm=ep.LocalSGD(lr=0.2)), "algorithm.lr = 0.2 here, 0.05 there"),
        (lambda e: msgspec.structs.replace(e, seeds=(2,)), "seed = 2 here, 1 there"),
        (lambda e: msgspec.structs.replace(e, model=ep.MLP(hidden=(5,))), "model.hidden"),
    ],
    ids=["file", "seed", "model"],
)
def test_who_has_another_experiment_finds_out_and_the_others_go_on(deploy, change, said):
    from epidemic.experiment import to_toml

    what = experiment(nodes=4, topology=ep.ELLocal(2), network=ep.Network(patience=15))
    there = deploy(what)
    (there.folders[3] / "experiment.toml").write_text(to_toml(change(what)))
    there.start().finish()
    assert [child.process.exitcode for child in there.cluster.children] == [0, 0, 0, 2]
    assert said in there.cluster.problems()[3]
    assert any("refused node 3" in line for line in there.log(0))
    assert there.node(0)["refusals"]["wrong-run"] >= 1


@pytest.mark.parametrize("what", ["graphs", "model"])
def test_libraries_that_draw_differently_find_out_at_the_handshake(what):
    """Terms as another version of the library would compute them."""
    from epidemic.deploy import agreement
    from epidemic.runtime.setup import prepare

    ours = agreement.agreement_of(prepare(experiment(nodes=4, topology=ep.ELLocal(2)), 1, None, [0]))
    theirs = msgspec.structs.replace(ours, **{what: "0123456789abcdef"}, version="9.9")
    assert theirs.run != ours.run
    (said,) = agreement.differences(ours, theirs)
    assert {"graphs": "draw different graphs", "model": "initial models differ"}[what] in said


def test_an_interrupt_before_the_first_round_leaves_a_node_that_can_be_started(deploy):
    what = experiment(nodes=3, rounds=5, topology=ep.ELLocal(1), network=BARRIER)
    there = deploy(what)
    there.start(there.folders[:2])
    there.until(lambda found: len(found) == 2)
    there.cluster.stop()
    codes = [child.process.exitcode for child in there.cluster.children]
    assert codes == [130, 130], [there.log(0), there.log(1)]
    there.start().finish()
    assert furthest(there, ep.simulate(what)) < 1e-5


def test_a_barrier_that_can_never_be_passed_exactly_is_a_failure_and_no_other_result(deploy):
    """A node is killed and comes back from the beginning: the others no longer have their first messages."""
    what = experiment(
        nodes=3, rounds=100_000, topology=ep.ELLocal(2), network=BARRIER, checkpoint=ep.Checkpoint(seconds=0)
    )
    there = deploy(what).start()
    there.until_round(60, range(3))
    there.cluster.kill(1)
    there.cluster.restart(1)
    there.cluster.children[1].process.join(60)
    assert there.cluster.children[1].process.exitcode == 1
    assert "no longer has its message for this node" in there.cluster.problems()[1]


def check_accounts(there, simulated):
    """Bytes as in the simulator, to the last one; nothing was asked for, lost, late or refused."""
    nodes = there.experiment.nodes
    measured = [there.node(i)["bytes"] for i in range(nodes)]
    for part in ("model", "header", "control"):
        accounted = getattr(simulated.seeds[0].summary.bytes, part)
        assert np.mean([m[part] for m in measured]) == accounted.mean
        assert max(m[part] for m in measured) == accounted.max
    for i in range(nodes):
        assert set(there.node(i)["messages"]) == {"counted"}
        assert there.node(i)["refusals"] == {}


def local_messages(what, processes):
    """How many messages of each node go to nodes of its own process."""
    home = {node_id: block for block in blocks(what.nodes, processes) for node_id in block}
    streams = Streams(what.seeds[0])
    sent = dict.fromkeys(home, 0)
    for t in range(what.rounds):
        graph = intended_graph(what, streams, t)
        for node_id in sent:
            sent[node_id] += sum(int(other) in home[node_id] for other in graph.out_of(node_id))
    return [sent[node_id] for node_id in range(what.nodes)]


@pytest.mark.parametrize("processes", [2, 3])
def test_several_nodes_of_a_process_are_the_same_as_one_each(deploy, processes):
    what = experiment(nodes=6, topology=ep.ELLocal(3), network=BARRIER)
    there = deploy(what).start(processes=processes).finish()
    assert there.cluster.problems() == {}
    simulated = ep.simulate(what)
    assert furthest(there, simulated) < 1e-5
    check_accounts(there, simulated)
    assert [there.node(i)["local"] for i in range(6)] == local_messages(what, processes)


def test_all_nodes_in_one_process_are_the_same_as_the_simulator(deploy):
    what = experiment(nodes=6, topology=ep.ELLocal(3), network=BARRIER)
    there = deploy(what).start(processes=1).finish()
    assert there.cluster.problems() == {}
    simulated = ep.simulate(what)
    assert furthest(there, simulated) < 1e-5
    check_accounts(there, simulated)
    assert [there.node(i)["local"] for i in range(6)] == [3 * what.rounds] * 6


ADAM = ep.LocalSGD(lr=0.002, optimizer="adam", clip=1.0, schedule=ep.CosineDecay(rounds=30, warmup=3))


@pytest.mark.parametrize(
    ("algorithm", "topology", "processes"),
    [
        (ep.PushSum(lr=0.05), ep.ELLocal(4), 8),
        (ep.PushSum(lr=0.05), ep.ELLocal(4), 3),
        (ep.GradientTracking(lr=0.05, local_steps=2), ep.ELOracle(4), 8),
        (ep.GradientTracking(lr=0.05), ep.ELOracle(4), 3),
        (ep.PushPull(lr=0.05), ep.ELLocal(4), 3),
        (ep.ExactDiffusion(lr=0.05), ep.ELOracle(4), 3),
        (ep.QGMomentum(lr=0.02, nesterov=True), ep.ELLocal(4), 3),
        (ADAM, ep.ELLocal(4), 3),
        (ep.LocalSGD(lr=0.05, order="combine-then-adapt"), ep.ELLocal(4), 3),
    ],
    ids=["push-sum", "push-sum, shared", "tracking", "tracking, shared", "push-pull", "diffusion", "quasi-global", "adam", "combine first"],
)  # fmt: skip
def test_every_algorithm_with_a_barrier_is_that_of_the_simulator(deploy, algorithm, topology, processes):
    what = experiment(nodes=8, rounds=20, topology=topology, algorithm=algorithm, network=BARRIER)
    there = deploy(what).start(processes=processes).finish()
    assert there.cluster.problems() == {}
    simulated = ep.simulate(what)
    assert furthest(there, simulated) < 1e-5
    check_accounts(there, simulated)


@pytest.mark.parametrize(
    ("topology", "processes"),
    [(ep.Base(2), 7), (ep.Periodic(ep.Matcha(ep.Ring(), budget=0.6), period=4), 3)],
    ids=["base", "periodic over matcha, shared"],
)
def test_weights_that_a_topology_brings_along_are_those_of_the_simulator(deploy, topology, processes):
    """Rounds in which a node hears nobody, in which all hear all, and in which its own model counts less than nothing."""
    what = experiment(nodes=7, rounds=16, topology=topology, network=BARRIER)
    there = deploy(what).start(processes=processes).finish()
    assert there.cluster.problems() == {}
    simulated = ep.simulate(what)
    assert furthest(there, simulated) < 1e-5
    check_accounts(there, simulated)


COMPRESSED = {
    "random-k": {"compression": ep.compression.RandomK(0.25)},
    "choco": {"topology": ep.Ring(), "algorithm": ep.Choco(lr=0.05)},
}


@pytest.mark.parametrize("kind", COMPRESSED)
def test_compressed_messages_are_those_of_the_simulator(deploy, kind):
    """Models and bytes, over real connections and inside processes."""
    what = experiment(**{"nodes": 6, "rounds": 12, "network": BARRIER, **COMPRESSED[kind]})
    there = deploy(what).start(processes=4).finish()
    assert there.cluster.problems() == {}
    simulated = ep.simulate(what)
    assert furthest(there, simulated) < 1e-5
    check_accounts(there, simulated)


@pytest.mark.parametrize("kind", ["top-k", "choco"])
def test_what_compression_remembers_outlives_a_process(deploy, kind):
    changes = {"top-k": {"compression": ep.compression.TopK(0.1)}, **COMPRESSED}[kind]
    what = experiment(**{"nodes": 4, "rounds": 40, "topology": ep.ELLocal(2), "network": BARRIER, **changes})
    there = deploy(what).start(processes=2)
    there.until_round(8)
    there.cluster.stop()
    there.start(processes=4).finish()
    assert there.cluster.problems() == {}
    assert furthest(there, ep.simulate(what)) < 1e-5


@pytest.mark.parametrize(
    ("topology", "processes"), [(ep.ELLocal(2), 4), (ep.Complete(), 2)], ids=["apart", "complete, shared"]
)
def test_voices_by_their_samples_are_those_of_the_simulator(deploy, topology, processes):
    unequal = ep.Dirichlet(alpha=0.2, min_samples=5)
    what = experiment(nodes=4, rounds=12, topology=topology, partition=unequal, mixing="samples", network=BARRIER)
    there = deploy(what).start(processes=processes).finish()
    assert there.cluster.problems() == {}
    simulated = ep.simulate(what)
    told = [json.loads((there.run(i) / "run.json").read_text())["samples"] for i in range(4)]
    assert len(set(told)) == 4
    assert furthest(there, simulated) == 0
    uniform = ep.simulate(msgspec.structs.replace(what, mixing="uniform"))
    assert furthest(there, uniform) > 1e-3
    check_accounts(there, simulated)
    assert all(there.node(i)["refusals"] == {} for i in range(4))


OWN = """
import torch

from epidemic.algorithms import Column, Defaults
from epidemic.learner import SGDUpdate


class Median(Defaults):
    '''Local SGD, then the median of what was heard, coordinate by coordinate; a counter travels along.'''

    def __init__(self, lr):
        self.lr, self.local_steps, self.batch_size = lr, 2, 4

    def columns(self, size, dtype):
        return Column("x", (size,), dtype), Column("age", (), "float64")

    def init(self, x):
        return {"x": x, "age": torch.zeros(len(x), dtype=torch.float64)}

    def local_update(self, state, learner, context):
        loss = learner.sgd(state["x"], context.index, SGDUpdate(self.lr), list(context.seeds), None)
        return state, {"x": state["x"], "age": state["age"] + 1}, loss

    def aggregate(self, state, inbox):
        rows = [torch.cat([heard.own[None], heard.received]).median(0).values for heard in inbox.each("x")]
        return {**state, "x": torch.stack(rows), "age": inbox.mean("age")}

    def give(self, state):
        return dict(state)
"""


@pytest.mark.parametrize("processes", [4, 2])
def test_a_users_own_algorithm_is_deployed_by_its_name(deploy, tmp_path, monkeypatch, processes):
    (tmp_path / "my_median.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_median", raising=False)
    own = ep.PythonAlgorithm(factory="my_median:Median", options={"lr": 0.05})
    what = experiment(nodes=4, topology=ep.ELLocal(2), algorithm=own, network=BARRIER)
    there = deploy(what)
    (tmp_path / "my_median.py").unlink()  # every node has a copy in its folder
    there.start(processes=processes).finish()
    assert there.cluster.problems() == {}
    simulated = ep.simulate(what)
    assert furthest(there, simulated) < 1e-5
    check_accounts(there, simulated)


def test_several_nodes_of_a_process_are_stopped_and_started_again_with_the_same_result(deploy):
    what = experiment(nodes=6, rounds=60, topology=ep.ELLocal(3), network=BARRIER)
    there = deploy(what).start(processes=2)
    for at, processes in ((5, 3), (20, 2)):  # and other nodes share a process afterwards
        there.until_round(at)
        there.cluster.stop()
        assert all(child.process.exitcode in (0, 130) for child in there.cluster.children)
        state = json.loads((there.run(1) / "state.json").read_text())
        assert state["state"] in ("stopped", "finished")
        there.start(processes=processes)
    there.finish()
    assert there.cluster.problems() == {}
    assert furthest(there, ep.simulate(what)) < 1e-5


AGGREGATED = {
    "trimmed mean, apart": ({"aggregation": ep.TrimmedMean(f=1), "topology": ep.ELOracle(4)}, 6),
    "trimmed mean of all, shared": ({"aggregation": ep.TrimmedMean(f=2), "topology": ep.Complete()}, 2),
    "median of int8, shared": (
        {"aggregation": ep.Median(), "compression": ep.compression.Int8(), "topology": ep.ELLocal(4)},
        3,
    ),
    "nearest, apart": ({"aggregation": ep.Nearest(f=1), "topology": ep.ELOracle(4)}, 6),
    "mixed before, of int8, shared": (
        {
            "aggregation": ep.TrimmedMean(f=1, before="nnm"),
            "compression": ep.compression.Int8(),
            "topology": ep.ELOracle(4),
        },
        3,
    ),
}


@pytest.mark.parametrize("kind", AGGREGATED)
def test_aggregates_are_those_of_the_simulator_to_the_bit(deploy, kind):
    changes, processes = AGGREGATED[kind]
    what = experiment(nodes=6, rounds=12, network=BARRIER, **changes)
    there = deploy(what).start(processes=processes).finish()
    assert there.cluster.problems() == {}
    simulated = ep.simulate(what)
    assert furthest(there, simulated) == 0
    check_accounts(there, simulated)
    assert furthest(there, ep.simulate(msgspec.structs.replace(what, aggregation=ep.Mean()))) > 1e-3


OWN_RULE = """
import epidemic as ep


class Last(ep.Aggregator):
    weighted, fewest = True, 2

    def __call__(self, heard):
        share = float(heard.weights[-1]) / (1 + int(heard.senders[-1]))
        return heard.own + share * (heard.received[-1] - heard.own)
"""


def test_a_users_own_aggregator_is_deployed_by_its_name(deploy, tmp_path, monkeypatch):
    (tmp_path / "my_rule.py").write_text(OWN_RULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_rule", raising=False)
    what = experiment(
        nodes=4,
        rounds=12,
        topology=ep.ELLocal(2),
        aggregation=ep.PythonAggregator(factory="my_rule:Last"),
        network=BARRIER,
    )
    there = deploy(what)
    (tmp_path / "my_rule.py").unlink()  # every node has a copy in its folder
    there.start(processes=2).finish()
    assert there.cluster.problems() == {}
    assert furthest(there, ep.simulate(what)) == 0


def test_the_examples_of_a_topology_and_an_aggregator_are_deployed_by_their_names(deploy, tmp_path, monkeypatch):
    for name in ("own_topology", "own_aggregator"):
        shutil.copy(Path(__file__).parents[2] / f"examples/{name}.py", tmp_path)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    what = experiment(
        nodes=6,
        rounds=8,
        topology=ep.PythonTopology("own_topology:Remembering", options={"k": 4}),
        aggregation=ep.PythonAggregator("own_aggregator:NearestHalf"),
        network=BARRIER,
    )
    there = deploy(what).start(processes=3).finish()
    assert there.cluster.problems() == {}
    assert furthest(there, ep.simulate(what)) == 0

"""What was made apart works together, or is refused with what to do instead: participation, views, fragments, ways of exchanging, compression."""

import pytest

import epidemic as ep
from epidemic.core.errors import BadInput
from epidemic.core.rng import Streams
from epidemic.faults import Split
from epidemic.runtime.plan import plan_round

VIEW = {"kind": "el-local", "s": 2, "view": {"kind": "cyclon", "size": 6, "shuffle": 3}}


def small(**tables):
    table = {
        "nodes": 16,
        "rounds": 20,
        "partition": {"kind": "iid"},
        "data": {"kind": "digits"},
        "model": {"kind": "logistic"},
        "eval": {"samples": 50},
    }
    return {**table, **tables}


def run(**tables):
    return ep.simulate(small(**tables))


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"topology": VIEW, "participation": {"kind": "uniform", "m": 8}}, "views are drawn among all nodes"),
        ({"topology": VIEW, "participation": {"kind": "teleportation", "m": 8}}, "views are drawn among all nodes"),
        ({"topology": VIEW, "participation": {"kind": "bernoulli", "p": 0.5}}, "views are drawn among all nodes"),
        ({"topology": {"kind": "fragments", "inner": VIEW}}, "leave topology.inner.view out"),
        (
            {"topology": {"kind": "pull", "s": 2}, "participation": {"kind": "uniform", "m": 8, "links": "blind"}},
            'use links = "aware"',
        ),
        (
            {"topology": {"kind": "peer-swap", "s": 4}, "participation": {"kind": "uniform", "m": 8}},
            "this topology has graphs that stay",
        ),
        (
            {
                "topology": {"kind": "periodic", "inner": {"kind": "peer-swap", "s": 4}, "period": 2},
                "participation": {"kind": "uniform", "m": 8},
            },
            "this topology has graphs that stay",
        ),
        (
            {
                "topology": {"kind": "periodic", "inner": {"kind": "ring"}, "period": 3},
                "participation": {"kind": "uniform", "m": 8},
            },
            "this topology has graphs that stay",
        ),
        (
            {
                "algorithm": {"kind": "choco"},
                "topology": {"kind": "complete"},
                "participation": {"kind": "uniform", "m": 8},
            },
            "a node that misses one stays out of sync",
        ),
        (
            {"topology": {"kind": "fragments", "inner": {"kind": "ring"}}, "compression": {"kind": "int8"}},
            "leave one of them out",
        ),
        (
            {"algorithm": {"kind": "gradient-tracking"}, "topology": {"kind": "el-oracle", "s": 2}, "compression": {"kind": "int8"}},
            'use algorithm.kind = "local-sgd"',
        ),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused_with_what_to_do_instead(tables, words):
    with pytest.raises(BadInput) as refused:
        run(**tables)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    "tables",
    [
        {"topology": VIEW, "participation": {"kind": "uniform", "m": 8, "links": "blind"}},
        {"topology": {"kind": "periodic", "inner": VIEW, "period": 2}},
        {"topology": {"kind": "fragments", "inner": {"kind": "el-local", "s": 2}, "k": 3}, "participation": {"kind": "bernoulli", "p": 0.5}},
        {"topology": {"kind": "fragments", "inner": {"kind": "pull", "s": 2}, "k": 3}, "faults": {"loss": 0.2}},
        {"topology": {"kind": "pull", "s": 2}, "participation": {"kind": "uniform", "m": 8}},
        {"topology": {"kind": "periodic", "inner": {"kind": "none"}, "period": 3}, "participation": {"kind": "uniform", "m": 8}},
        {"topology": {"kind": "complete", "cost": "all-reduce"}, "participation": {"kind": "uniform", "m": 8}},
        {"topology": {"kind": "matcha", "inner": {"kind": "ring"}}, "compression": {"kind": "float16"}},
        {"topology": {"kind": "base", "k": 2}, "algorithm": {"kind": "gradient-tracking", "lr": 0.01}},
        {"topology": VIEW, "compression": {"kind": "random-k", "share": 0.5}, "algorithm": {"optimizer": "adam", "lr": 0.01}},
        {"topology": {"kind": "ring"}, "algorithm": {"kind": "choco", "optimizer": "adam", "lr": 0.01, "clip": 1.0}},
    ],
)  # fmt: skip
def test_what_goes_together_learns(tables):
    records = run(**tables).records
    assert records[-1].loss.mean < records[0].loss.mean


def test_nodes_take_part_in_a_round_with_all_fragments_or_none():
    experiment = ep.Experiment(
        nodes=16,
        topology=ep.Fragments(ep.ELLocal(3), k=4),
        participation=ep.UniformParticipation(8),
        data=ep.Digits(),
    )
    for round in range(5):
        plan = plan_round(experiment, Streams(3), round)
        graphs = [passage.delivery.graph for passage in plan.passages]
        assert {tuple(passage.delivery.alive) for passage in plan.passages} == {tuple(plan.delivery.alive)}
        assert plan.delivery.alive.sum() == 8
        assert all((graph.out_degree[plan.delivery.alive] == 3).all() for graph in graphs)
        assert len({graph.digest() for graph in graphs}) == 4


def test_a_pulled_model_is_asked_for_by_those_who_take_part_only():
    experiment = ep.Experiment(
        nodes=16, topology=ep.Pull(3), participation=ep.UniformParticipation(8), data=ep.Digits()
    )
    plan = plan_round(experiment, Streams(3), 0)
    assert (plan.delivery.offers_sent == 3 * plan.delivery.alive).all()
    assert plan.delivery.models_sent.sum() == 24


def test_nobody_up_with_compressed_messages_is_a_round_without_messages():
    everybody = [{"node": i, "at": 2, "returns": 4} for i in range(16)]
    records = run(topology={"kind": "complete"}, compression={"kind": "float16"}, faults={"crashes": everybody}).records
    assert records[-1].loss.mean < records[0].loss.mean


def test_faults_given_as_lists_are_those_of_tuples():
    crashes = [ep.Crash(node=1, at=2)]
    listed = ep.Faults(crashes=crashes, blocked=[[0, 1]], partitions=[Split(groups=[[0, 1], [2]])])
    assert listed == ep.Faults(crashes=tuple(crashes), blocked=((0, 1),), partitions=(Split(groups=((0, 1), (2,))),))
    experiment = ep.Experiment(
        nodes=16, topology=ep.ELLocal(2, view=ep.Cyclon(size=6, shuffle=3)), faults=listed, data=ep.Digits()
    )
    assert plan_round(experiment, Streams(1), 3).delivery.graph.messages  # what views know of it is remembered by it


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_top_k_finds_the_largest_changes_of_every_type(dtype):
    import torch

    from epidemic.compression.sparse import _largest

    change = torch.tensor([[1.0, 5.0, 3.0, 5.0], [0.0, 0.0, 0.0, 0.0]], dtype=getattr(torch, dtype))
    assert _largest(change, 2).tolist() == [[1, 3], [0, 1]]


@pytest.mark.parametrize(
    "tables",
    [
        {"mixing": "native", "topology": {"kind": "el-local", "s": 2}},
        {"topology": {"kind": "fragments", "inner": {"kind": "ring"}, "k": 1000}},
        {"topology": {"kind": "matcha", "inner": {"kind": "exponential"}}},
        {"topology": {"kind": "pull", "s": 2}, "mixing": "metropolis-hastings"},
        {"topology": {"kind": "complete", "cost": "all-reduce"}, "compression": {"kind": "int8"}},
        {"topology": {"kind": "peer-swap", "s": 4, "swaps": 10**12}},
        {"topology": {"kind": "el-local", "s": 2, "view": {"kind": "cyclon", "size": 6, "shuffle": 3, "cycles": 10**8}}},
    ],
)  # fmt: skip
def test_what_cannot_be_planned_is_refused_and_the_corrected_command_goes(tmp_path, tables):
    with pytest.raises(BadInput):
        ep.simulate(small(**tables), tmp_path / "run")
    assert ep.simulate(small(rounds=1, topology={"kind": "ring"}), tmp_path / "run").records

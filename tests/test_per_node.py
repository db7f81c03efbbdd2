"""eval.per_node: every node's accuracy at every evaluation, in rounds, under the clock, on ranks, deployed, and after an interrupt."""

import math

import msgspec
import numpy as np
import pytest
import torch

import epidemic as ep
from epidemic.clock import Clock, ExponentialChurn
from epidemic.core.errors import BadInput, Interrupted
from epidemic.deploy.gather import _record
from epidemic.experiment import load, to_toml
from epidemic.record import NodeNumbers
from test_clock import Impatient


@pytest.fixture(scope="module")
def data():
    return ep.Digits().load()


def small(per_node=True, **changes):
    base = {
        "nodes": 5, "rounds": 4, "topology": ep.ELLocal(2), "data": ep.Digits(), "partition": ep.Shards(2), "model": ep.Logistic(),
        "algorithm": ep.LocalSGD(lr=0.1), "eval": ep.Eval(every=2, samples=60, per_node=per_node),
    }  # fmt: skip
    return ep.Experiment(**{**base, **changes})


def test_records_hold_what_their_means_are_of(data):
    run = ep.simulate(small(metrics=["macro-f1"]), data=data)
    for record in run.records:
        found = record.per_node
        assert found.nodes == [0, 1, 2, 3, 4]
        for values, spread in ((found.accuracy, record.accuracy), (found.loss, record.loss)):
            assert len(values) == 5
            assert np.mean(values) == pytest.approx(spread.mean)
            assert (min(values), max(values)) == (spread.min, spread.max)
        assert len(found.metrics["macro-f1"]) == 5
    assert len(set(run.records[-1].per_node.accuracy)) > 1


def test_nothing_else_changes(data, tmp_path):
    """Without it, files are as they always were; with it, records have one key more."""
    for name, per_node in (("with", True), ("without", False)):
        ep.simulate(small(per_node), tmp_path / name, data=data)
    lines = {
        name: [
            msgspec.json.decode(line) for line in (tmp_path / name / "seed-1/records.jsonl").read_bytes().splitlines()
        ]
        for name in ("with", "without")
    }
    assert [{k: v for k, v in line.items() if k != "per_node"} for line in lines["with"]] == lines["without"]
    assert all("per_node" not in line for line in lines["without"])
    for file in ("experiment.toml", "seed-1/run.json"):
        assert "per_node" not in (tmp_path / "without" / file).read_text()
        assert "per_node" in (tmp_path / "with" / file).read_text()
    assert load(tmp_path / "with/experiment.toml").eval.per_node


def test_going_on_gives_the_same_bytes(data, tmp_path):
    experiment = small(checkpoint=ep.Checkpoint(rounds=1), eval=ep.Eval(every=1, samples=60, per_node=True))
    ep.simulate(experiment, tmp_path / "whole", data=data)
    with pytest.raises(Interrupted):
        ep.simulate(experiment, tmp_path / "parts", data=data, callbacks=[Impatient(2)])
    ep.simulate(experiment, tmp_path / "parts", data=data, resume=True)
    whole, parts = (tmp_path / name / "seed-1/records.jsonl" for name in ("whole", "parts"))
    assert whole.read_bytes() == parts.read_bytes()
    with pytest.raises(BadInput, match=r"eval\.per_node"):
        ep.simulate(
            msgspec.structs.replace(experiment, eval=ep.Eval(every=1, samples=60)), tmp_path / "parts", resume=True
        )


def test_under_the_clock_and_where_models_travel(data):
    clock = Clock(churn=ExponentialChurn(mean_on=2.0, mean_off=2.0), evaluate=1.0, stop=4.0)
    for record in ep.simulate(small(algorithm=ep.AsyncEL(lr=0.1), clock=clock), data=data).records:
        assert record.per_node.accuracy == record.time.accuracies
    last = ep.simulate(small(participation=ep.Teleportation(3)), data=data).records[-1]
    assert len(last.per_node.nodes) == len(last.per_node.accuracy) == 3  # those who hold a model


def test_quantities_have_losses_only():
    x = np.random.default_rng(1).standard_normal((40, 3)).astype(np.float32)
    run = ep.simulate(small(data=((x, x[:, 0]), (x, x[:, 0])), partition=ep.IID(), model=torch.nn.Linear(3, 1)))
    found = run.records[-1].per_node
    assert found.accuracy is None
    assert len(found.loss) == 5
    assert run.plot(per_node=True).axes[0].get_ylabel() == "loss of each node"


def test_read_back_as_a_table(data, tmp_path):
    run = ep.simulate(small(seeds=(1, 2), metrics=["macro-f1"]), tmp_path / "run", data=data)
    results = ep.read_results(tmp_path / "run")
    rows = results.node_rows()
    assert len(rows) == 2 * 3 * 5
    one = next(row for row in rows if (row["seed"], row["round"], row["node"]) == (2, 4, 3))
    record = run.seeds[1].records[-1]
    assert (one["accuracy"], one["loss"]) == (record.per_node.accuracy[3], record.per_node.loss[3])
    assert one["metric.macro-f1"] == record.per_node.metrics["macro-f1"][3]
    frame = results.dataframe(per_node=True)
    means = frame[frame.seed == 1].groupby("round").accuracy.mean()
    assert means.tolist() == pytest.approx([r.accuracy.mean for r in run.seeds[0].records])
    ep.simulate(small(False), tmp_path / "plain", data=data)
    with pytest.raises(BadInput, match=r"none of these runs has eval\.per_node = true"):
        ep.read_results(tmp_path / "plain").dataframe(per_node=True)


def test_a_curve_for_each_node(data, tmp_path):
    run = ep.simulate(small(seeds=(1, 2), metrics=["macro-f1"]), data=data)
    figure = run.plot(per_node=True, path=tmp_path / "nodes.png")
    assert (tmp_path / "nodes.png").stat().st_size > 0
    assert len(figure.axes) == 2
    grey = [line for line in figure.axes[1].lines if line.get_label().startswith("_")]
    assert sorted(line.get_ydata()[-1] for line in grey) == sorted(100 * a for a in run.records[-1].per_node.accuracy)
    assert run.plot(per_node=True, metric="macro-f1").axes[0].get_ylabel() == "macro-f1"
    for given, says in (({"metric": "f1"}, "metric"), ({"x": "seconds"}, "x = 'seconds'")):
        with pytest.raises(BadInput, match=says):
            run.plot(per_node=True, **given)
    with pytest.raises(BadInput, match=r"run the experiment with eval\.per_node = true"):
        ep.simulate(small(False), data=data).plot(per_node=True)


def test_gathered_nodes_keep_their_ids(data):
    """Deployed nodes record themselves; a node that has not finished is missing, and nobody takes its place."""
    record = ep.simulate(small(), data=data).records[-1]
    parts = [
        msgspec.structs.replace(record, per_node=NodeNumbers([node], [0.5 + node], [0.1 * node], {"own": [None]}))
        for node in (1, 4)
    ]
    assert _record(parts).per_node == NodeNumbers([1, 4], [1.5, 4.5], [0.1, 0.4], {"own": [None, None]})
    assert _record([msgspec.structs.replace(part, per_node=None) for part in parts]).per_node is None


def test_values_that_are_no_numbers_are_none():
    undefined = ep.metrics.whole(lambda outputs, targets: math.inf)
    run = ep.simulate(small(metrics={"never": undefined}))
    assert run.records[0].per_node.metrics == {"never": [None] * 5}


def test_it_is_true_or_false(tmp_path):
    with pytest.raises(BadInput, match=r"eval\.per_node = 1 must be true or false"):
        ep.Eval(per_node=1)
    (tmp_path / "e.toml").write_text(to_toml(small(False)).replace("[eval]", '[eval]\nper_node = "yes"'))
    with pytest.raises(BadInput, match=r"eval\.per_node"):
        load(tmp_path / "e.toml")

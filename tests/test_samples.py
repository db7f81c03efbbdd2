"""Voices that count by the number of their training samples, in whole runs; their arithmetic is in test_mixing and test_inbox."""

import json

import numpy as np
import pytest
import torch

import epidemic as ep
from epidemic.callbacks import Callback
from epidemic.core.errors import BadInput
from epidemic.deploy.node import _check_samples
from epidemic.experiment import node_agreement
from epidemic.faults import Crash, Faults
from epidemic.mixing import spectrum, weights
from epidemic.runtime.describe import describe_network
from epidemic.runtime.setup import prepare


def small(**changes):
    fields = {
        "nodes": 8, "rounds": 4, "topology": ep.ELLocal(3), "algorithm": ep.LocalSGD(lr=0.1, batch_size=4), "data": ep.Digits(),
        "partition": ep.Dirichlet(alpha=0.3, min_samples=3), "model": ep.Logistic(), "eval": ep.Eval(every=4, samples=50),
        "mixing": "samples", "runtime": ep.Runtime(strategy="per-node"),
    }  # fmt: skip
    return ep.Experiment(**{**fields, **changes})


class Plans(Callback):
    def __init__(self):
        self.plans = []

    def started(self, setup, learner, rounds_done):
        self.samples = setup.samples

    def planned(self, plan, index):
        self.plans.append(plan)


@pytest.mark.parametrize(
    ("topology", "faults"),
    [
        (ep.ELLocal(3), Faults(loss=0.2)),
        (ep.ELLocal(4), Faults(cap=3, max_retries=3)),
        (ep.Ring(), Faults()),
        (ep.Complete(), Faults(crashes=(Crash(2, at=1, returns=3),))),
        (ep.UEquiStatic(2), Faults()),
    ],
    ids=["loss", "redirected", "ring", "complete", "equitopo"],
)
def test_every_voice_that_arrived_counts_by_its_samples(topology, faults):
    plans = Plans()
    run = ep.simulate(small(topology=topology, faults=faults), callbacks=plans)
    samples = plans.samples
    assert len(set(samples.tolist())) > 4
    assert samples.sum() == 1437
    for plan in plans.plans:
        matrix = plan.weights.dense()
        for i in range(8):
            heard = np.append(plan.delivery.graph.into(i), i)
            expected = np.zeros(8)
            expected[heard] = samples[heard] / samples[heard].sum()
            np.testing.assert_allclose(matrix[i], expected, rtol=0, atol=1e-15)
    assert torch.isfinite(run.models.rows).all()


@pytest.mark.parametrize("topology", [ep.ELLocal(3), ep.Complete()])
def test_equal_parts_are_the_uniform_run_to_the_last_bit(topology):
    equal = {"nodes": 3, "partition": ep.IID(), "topology": topology}  # 1437 = 3 * 479
    if isinstance(topology, ep.ELLocal):
        equal["topology"] = ep.ELLocal(2)
    by_samples, uniform = ep.simulate(small(**equal)), ep.simulate(small(**equal, mixing="uniform"))
    assert torch.equal(by_samples.models.rows, uniform.models.rows)
    unequal = ep.simulate(small(nodes=3, topology=equal["topology"]))
    plain = ep.simulate(small(nodes=3, topology=equal["topology"], mixing="uniform"))
    assert not torch.equal(unequal.models.rows, plain.models.rows)


class Models(Callback):
    def __init__(self):
        self.seen = []

    def advanced(self, rounds_done, x):
        self.seen.append(x.clone())


def test_over_a_complete_graph_all_hold_the_same_model():
    models = Models()
    ep.simulate(small(topology=ep.Complete(), rounds=2), callbacks=models)
    assert all((x == x[0]).all() for x in models.seen)


def test_a_static_network_is_described_with_the_samples_of_its_run(tmp_path):
    plans = Plans()
    ep.simulate(small(topology=ep.Ring()), tmp_path, callbacks=plans)
    told = json.loads((tmp_path / "seed-1" / "run.json").read_text())["network"]
    graph = ep.Ring().graph(8, 0, ep.Streams(1))
    assert told["sigma"] == pytest.approx(spectrum(weights("samples", graph, None, plans.samples)).sigma)
    assert told["sigma"] != pytest.approx(spectrum(weights("uniform", graph)).sigma)
    assert (
        describe_network(small(topology=ep.Ring()), 1)["sigma"] is None
    )  # a deployed node does not know the others' numbers


class Own(ep.LocalSGD, tag="own-samples-test"):
    natural_mixing = "uniform"


@pytest.mark.parametrize(
    ("algorithm", "said"),
    [
        (ep.PushSum(), 'mixing = "samples" has no meaning for algorithm.kind = "push-sum"'),
        (Own(), 'mixing = "samples" does not fit this algorithm, which needs "uniform" weights; leave it out'),
    ],
)
def test_algorithms_with_weights_of_their_own_refuse_it(algorithm, said):
    with pytest.raises(BadInput) as refusal:
        small(topology=ep.ELLocal(5), algorithm=algorithm)
    assert said in str(refusal.value)


# -- deployed ---------------------------------------------------------------------------------------------------------


def own_data(most):
    network = ep.Network(data="own", most_samples=most)
    return small(nodes=3, topology=ep.ELLocal(2), network=network)


class Began:
    """A run's directory that was begun with so many samples."""

    root = "node-0/run"

    def __init__(self, samples):
        self.samples = samples

    def run_info(self):
        return None if self.samples is None else {"samples": self.samples}


@pytest.mark.parametrize(
    ("most", "before", "said"),
    [
        (1000, None, "1437 training samples here are more than network.most_samples = 1000, which others would refuse"),
        (2000, 1200, "1437 training samples here, but this node started with 1200 and told its peers"),
        (2000, 1437, None),
        (1437, None, None),
    ],
)
def test_a_node_whose_number_others_would_refuse_does_not_begin(most, before, said):
    setup = prepare(own_data(most), 1, None, [0])
    if said is None:
        _check_samples(setup, [Began(before)])
        return
    with pytest.raises(BadInput) as refusal:
        _check_samples(setup, [Began(before)])
    assert said in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_the_limit_is_part_of_what_nodes_agree_on_and_unsaid_where_it_is_the_usual_one():
    def terms(**network):
        return node_agreement(small(network=ep.Network(**network)))

    assert "network.most_samples" not in terms()
    assert terms(most_samples=10)["network.most_samples"] == 10
    for bad in (0, 10**9 + 1, True):
        with pytest.raises(BadInput, match="most_samples"):
            ep.Network(most_samples=bad)

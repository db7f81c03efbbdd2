"""Whole runs over the topologies that Epidemic Learning is compared with: from a file, what is counted, what goes wrong, and going on."""

import numpy as np
import pytest

import epidemic as ep
from epidemic.cli import main
from epidemic.core.errors import BadInput
from epidemic.core.rng import Streams
from epidemic.deploy.agreement import check_deployable
from epidemic.experiment import to_toml
from epidemic.faults import Split
from epidemic.record import CONTROL_BYTES, HEADER_BYTES
from epidemic.topology.swap import _walk

KINDS = {
    "hypercube": 'kind = "hypercube"',
    "base": 'kind = "base"\nk = 2\nrelabel = "period"\nstart = 1',
    "matcha": 'kind = "matcha"\ninner = {kind = "ring"}\nbudget = 0.5',
    "geometric": 'kind = "geometric"\nradius = 0.6\ntorus = true',
    "peer-swap": 'kind = "peer-swap"\ns = 3\nswaps = 5',
    "pull": 'kind = "pull"\ns = 3',
    "periodic": 'kind = "periodic"\nperiod = 3\ncost = "all-reduce"\ninner = {kind = "every", period = 2, inner = {kind = "base"}}',
    "all-reduce": 'kind = "complete"\ncost = "all-reduce"',
}

FILE = """
nodes = 8
rounds = {rounds}
[topology]
{topology}
[data]
kind = "digits"
[model]
kind = "logistic"
[eval]
every = 3
samples = 60
[runtime]
strategy = "per-node"
"""


def small(**changes):
    fields = {
        "nodes": 8, "rounds": 6, "data": ep.Digits(), "partition": ep.IID(), "model": ep.Logistic(), "eval": ep.Eval(every=3, samples=60),
        "runtime": ep.Runtime(strategy="per-node"),
    }  # fmt: skip
    return ep.Experiment(**{**fields, **changes})


MODEL_BYTES = 4 * (64 * 10 + 10)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_goes_on_writes_what_a_whole_one_does(kind, tmp_path):
    """From a file; whatever is remembered between rounds is drawn again to the same bytes."""
    found = []
    for name, steps in (("whole", (9,)), ("parts", (4, 9))):
        file, out = tmp_path / f"{name}.toml", tmp_path / name
        file.write_text(FILE.format(rounds=steps[0], topology=KINDS[kind]))
        assert main(["run", str(file), "--out", str(out), "--quiet"]) == 0
        _walk.cache_clear()
        for rounds in steps[1:]:
            assert main(["run", "--resume", str(out), "--set", f"rounds={rounds}", "--quiet"]) == 0
        found.append((out / "seed-1/models.safetensors").read_bytes())
    assert found[0] == found[1]
    experiment = ep.load(file)
    assert ep.load(_written(tmp_path, experiment)) == experiment


def _written(directory, experiment):
    path = directory / "again.toml"
    path.write_text(to_toml(experiment))
    return path


# -- what is counted --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "topology",
    [ep.Base(1), ep.Matcha(ep.Ring()), ep.Geometric(), ep.PeerSwap(3), ep.Periodic(ep.Hypercube(), period=4)],
)
def test_messages_are_counted_as_the_graphs_have_them(topology):
    run = ep.simulate(small(topology=topology))
    sent = sum(topology.graph(8, t, Streams(1)).out_degree for t in range(6))
    counted = run.records[-1].bytes
    assert (counted.model.mean, counted.model.max) == (sent.mean() * MODEL_BYTES, sent.max() * MODEL_BYTES)
    assert counted.header.max == sent.max() * HEADER_BYTES
    assert counted.control.max == 0


def test_requests_are_counted_as_control_messages():
    run = ep.simulate(small(topology=ep.Pull(3)))
    counted = run.records[-1].bytes
    assert counted.control == ep.record.MeanMax(6 * 3 * CONTROL_BYTES, 6 * 3 * CONTROL_BYTES)
    assert counted.model.mean == 6 * 3 * MODEL_BYTES
    everybody = ep.simulate(small(topology=ep.Pull(7))).records[-1].bytes
    assert everybody.control.max == 6 * 7 * CONTROL_BYTES


def test_an_all_reduce_gives_the_same_models_for_fewer_bytes():
    whole, pieces = (ep.simulate(small(topology=ep.Complete(cost))) for cost in ("all-to-all", "all-reduce"))
    assert (whole.models.rows == pieces.models.rows).all()
    assert whole.records[-1].bytes.model.max == 6 * 7 * MODEL_BYTES
    assert pieces.records[-1].bytes.model.max == 6 * -(-2 * 7 * MODEL_BYTES // 8)
    assert pieces.records[-1].bytes.header.max == 6 * 2 * 7 * HEADER_BYTES


def test_periodic_averages_cost_what_they_are_said_to():
    """Rounds 2 and 5 of six are complete; the others are those of a ring."""
    messages, pieces = (
        ep.simulate(small(topology=ep.Periodic(ep.Ring(), period=3, cost=cost))).records[-1].bytes.model.max for cost in ("all-to-all", "all-reduce")
    )  # fmt: skip
    assert messages == (4 * 2 + 2 * 7) * MODEL_BYTES
    assert pieces == 4 * 2 * MODEL_BYTES + 2 * -(-2 * 7 * MODEL_BYTES // 8)


def test_the_errata_on_the_cost_of_everybody():
    """30.54 GiB all to all is 0.636 GiB by an all-reduce, at 96 nodes."""
    graph = ep.Complete("all-reduce").graph(96, 0, Streams(1))
    models = graph.sent[0] / graph.pieces
    assert models == pytest.approx(1.979, abs=5e-4)
    assert 30.54 * models / 95 == pytest.approx(0.636, abs=5e-4)


# -- what goes wrong --------------------------------------------------------------------------------------------------


def test_requests_get_lost_too_and_are_not_answered_then():
    n, s, loss, rounds = 40, 5, 0.3, 400
    faults, streams = ep.Faults(loss=loss), Streams(4)
    asked, sent, arrived = 0, 0, 0
    for t in range(rounds):
        delivery = faults.deliver(ep.Pull(s).graph(n, t, streams), t, streams)
        assert (delivery.offers_sent == s).all()
        assert delivery.lost.sum() == n * s - delivery.graph.messages
        asked += int(delivery.offers_sent.sum())
        sent += int(delivery.models_sent.sum())
        arrived += delivery.graph.messages
    for found, q in ((sent, 1 - loss), (arrived, (1 - loss) ** 2)):
        assert abs(found - asked * q) < 5 * np.sqrt(asked * q * (1 - q))


def test_who_is_down_or_cut_off_is_not_asked():
    faults = ep.Faults(crashes=(ep.Crash(0, at=0),), partitions=(Split(((1, 2, 3),)),))
    graph = ep.Pull(4).graph(8, 0, Streams(1))
    delivery = faults.deliver(graph, 0, Streams(1))
    near = np.array([0, 1, 1, 1, 2, 2, 2, 2])
    wanted = [sum(near[j] == near[i] for j in graph.into(i)) if i else 0 for i in range(8)]
    assert delivery.offers_sent.tolist() == delivery.graph.in_degree.tolist() == wanted


def test_an_all_reduce_goes_round_among_those_who_are_up():
    faults = ep.Faults(crashes=(ep.Crash(2, at=0), ep.Crash(5, at=0)))
    delivery = faults.deliver(ep.Complete("all-reduce").graph(8, 0, Streams(1)), 0, Streams(1))
    assert delivery.pieces == 6
    assert delivery.models_sent.tolist() == [10, 10, 0, 10, 10, 0, 10, 10]


def test_base_graphs_give_the_weight_of_what_is_lost_to_the_node_itself():
    from epidemic.mixing import weights

    graph = ep.Base(2, relabel="never").graph(5, 1, Streams(1))
    kept = graph.keep(~((graph.senders == 4) & (graph.receivers == 1)))
    w = weights("native", graph, kept).dense()
    assert w[1].tolist() == [0, 1, 0, 0, 0]
    assert w[4, 1] == pytest.approx(3 / 5)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"topology": ep.Complete("all-reduce"), "faults": ep.Faults(loss=0.1)}, 'faults.loss removes single messages'),
        ({"topology": ep.Complete("all-reduce"), "faults": ep.Faults(cap=3)}, 'leave it out, or use cost = "all-to-all"'),
        ({"topology": ep.Periodic(ep.Ring(), period=3, cost="all-reduce"), "faults": ep.Faults(blocked=((0, 1),))}, "faults.blocked removes"),
        ({"topology": ep.Pull(3), "faults": ep.Faults(cap=2)}, "faults.cap = 2 has no meaning where nodes ask"),
        ({"topology": ep.Base(1), "faults": ep.Faults(cap=2)}, 'mixing = "native" has no weight for the messages that faults.cap redirects'),
        ({"nodes": 12, "topology": ep.Hypercube()}, 'use 8 or 16, or topology.kind = "base"'),
    ],
)  # fmt: skip
def test_what_cannot_be_had_together_is_refused(changes, says):
    with pytest.raises(BadInput) as caught:
        small(**changes)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("topology", "says"),
    [
        (ep.Pull(3), 'topology.kind = "pull" asks for models, which is not implemented in deployments; use topology.kind = "el-local"'),
        (ep.Complete("all-reduce"), 'cost = "all-reduce" says what would be sent, and is not carried out in a deployment; use cost = "all-to-all"'),
        (ep.Every(ep.Periodic(ep.Ring(), period=2, cost="all-reduce"), period=2), 'use cost = "all-to-all"'),
    ],
)  # fmt: skip
def test_what_nodes_cannot_do_is_refused_before_they_start(topology, says):
    with pytest.raises(BadInput) as caught:
        check_deployable(small(topology=topology))
    assert says in str(caught.value)
    check_deployable(small(topology=ep.Periodic(ep.Base(1), period=3)))

"""CHOCO: compressed differences between neighbours that stay the same."""

import numpy as np
import pytest
import torch

import epidemic as ep
from epidemic.algorithms import Column
from epidemic.callbacks import Callback
from epidemic.cli import main
from epidemic.clock import Clock, CloseBarrier, CloseDeadline, ConstantCompute, Links
from epidemic.compression import Int8, RandomK, TopK, Uncompressed
from epidemic.core.errors import Interrupted
from epidemic.core.rng import Streams
from epidemic.core.workers import Workers
from epidemic.deploy.agreement import check_deployable
from epidemic.mixing import weights
from epidemic.record import HEADER_BYTES
from epidemic.runtime.inbox import MatrixInbox
from epidemic.runtime.message_coding import SENT, Coder
from test_replay import Replay, views

WORKERS = Workers(1)
D = 650
BARRIER = ep.Network(close=CloseBarrier())


def consensus(codec, eta, rounds, graph, start, rule="metropolis-hastings"):
    """The algorithm's own two steps without training, from h = s = 0; the models after all rounds."""
    n, d = start.shape
    choco, w = ep.Choco(compressor=codec, eta=eta), weights(rule, graph)
    coder = Coder(codec, Column("q", (d,), "float64"), Streams(1), "zero", differences=True)
    state = {"x": start.clone(), "h": torch.zeros_like(start), "s": torch.zeros_like(start)}
    for t in range(rounds):
        q = state["x"] - state["h"]
        raw = coder.encode(q, t, np.arange(n), None, WORKERS)
        message = {"q": coder.decode(raw).rows, "q" + SENT: raw}
        inbox = MatrixInbox(message, w, np.arange(n), WORKERS, lambda _, like: torch.empty_like(like), coder)
        state = choco.aggregate(state, inbox)
    return state


def disagreement(x):
    return float((x - x.mean(0)).square().sum() / len(x))


@pytest.mark.parametrize(("eta", "least", "most"), [(0.1, 1e-9, 1e-6), (0.2, 0, 1e-15)])
def test_on_a_ring_of_eight_small_steps_converge(eta, least, most):
    """d = 100, the 10 % largest, 500 rounds: published as 3e-8 for 0.1 and 8e-18 for 0.2."""
    x = torch.from_numpy(Streams(1)("x").normals(8, 100))
    found = disagreement(consensus(TopK(0.1), eta, 500, ep.Ring().graph(8, 0, Streams(1)), x)["x"])
    assert least <= found < most


@pytest.mark.parametrize("eta", [0.4, 1.0])
def test_on_a_ring_of_eight_large_steps_diverge(eta):
    x = torch.from_numpy(Streams(1)("x").normals(8, 100))
    found = disagreement(consensus(TopK(0.1), eta, 500, ep.Ring().graph(8, 0, Streams(1)), x)["x"])
    assert not found < 5 * disagreement(x)  # also if it is no number any more


@pytest.mark.parametrize("codec", [TopK(0.1), RandomK(0.3), Int8()], ids=repr)
def test_without_gradients_the_mean_stays_and_the_sum_of_copies_is_what_it_should_be(codec):
    x = torch.from_numpy(Streams(2)("x").normals(9, 60))
    graph = ep.ErdosRenyi().graph(9, 0, Streams(2))
    state = consensus(codec, 0.3, 25, graph, x)
    torch.testing.assert_close(state["x"].mean(0), x.mean(0), rtol=0, atol=1e-12)
    w = torch.from_numpy(weights("metropolis-hastings", graph).dense())
    torch.testing.assert_close(state["s"], w @ state["h"], rtol=0, atol=1e-12)


def small(**changes):
    fields = {
        "nodes": 8, "rounds": 6, "topology": ep.Ring(), "data": ep.Digits(), "partition": ep.IID(), "model": ep.Logistic(),
        "algorithm": ep.Choco(lr=0.1, local_steps=2, batch_size=4), "eval": ep.Eval(every=3, samples=100),
        "runtime": ep.Runtime(strategy="per-node"),
    }  # fmt: skip
    return ep.Experiment(**{**fields, **changes})


def choco(**changes):
    return ep.Choco(**{"lr": 0.1, "local_steps": 2, "batch_size": 4, **changes})


@pytest.mark.parametrize("topology", [ep.Ring(), ep.Torus(), ep.Complete()], ids=repr)
def test_with_eta_one_and_no_compression_it_is_d_psgd(topology):
    nodes = 9 if topology == ep.Torus() else 8
    plain = ep.simulate(
        small(nodes=nodes, topology=topology, algorithm=ep.LocalSGD(lr=0.1, local_steps=2, batch_size=4))
    )
    same = ep.simulate(small(nodes=nodes, topology=topology, algorithm=choco(compressor=Uncompressed(), eta=1.0)))
    torch.testing.assert_close(same.models.rows, plain.models.rows, rtol=1e-4, atol=1e-5)
    assert same.records[-1].bytes == plain.records[-1].bytes


FILE = """
nodes = 8
rounds = 40
topology = {kind = "ring"}
data = {kind = "digits"}
partition = {kind = "iid"}
model = {kind = "logistic"}
eval = {every = 20, samples = 200}
[algorithm]
kind = "choco"
lr = 0.1
eta = 0.1
compressor = {kind = "top-k", share = 0.1}
"""


def test_a_file_runs_and_its_bytes_are_those_of_the_differences(tmp_path):
    (tmp_path / "e.toml").write_text(FILE)
    assert main(["run", str(tmp_path / "e.toml"), "--out", str(tmp_path / "run"), "--quiet"]) == 0
    experiment = ep.load(tmp_path / "run" / "experiment.toml")
    assert experiment.algorithm == ep.Choco(lr=0.1, eta=0.1, compressor=TopK(0.1))
    run = ep.simulate(experiment)
    sent = run.records[-1].bytes
    assert sent.model.mean == 40 * 2 * (4 * 65 + 82)  # a bitmap is the smaller layout
    assert sent.header.mean == 40 * 2 * HEADER_BYTES
    assert run.records[-1].accuracy.mean > 0.7


class InterruptedAfter(Callback):
    def __init__(self, rounds):
        self.rounds = rounds

    def advanced(self, rounds_done, x):
        if rounds_done == self.rounds:
            raise KeyboardInterrupt


CLOCK = Clock(compute=ConstantCompute(0.1), links=Links(uplink=1.0, latency=0.01))


@pytest.mark.parametrize("clock", [None, CLOCK], ids=["rounds", "clock"])
def test_going_on_after_an_interrupt_gives_the_same_bytes(clock, tmp_path):
    experiment = small(algorithm=choco(momentum=0.5), clock=clock)
    ep.simulate(experiment, tmp_path / "whole")
    with pytest.raises(Interrupted):
        ep.simulate(experiment, tmp_path / "parts", callbacks=InterruptedAfter(3))
    ep.simulate(experiment, tmp_path / "parts", resume=True)
    for name in ("records.jsonl", "models.safetensors", "summary.json", "nodes.json"):
        whole, parts = (tmp_path / which / "seed-1" / name for which in ("whole", "parts"))
        assert whole.read_bytes() == parts.read_bytes()


def test_rounds_under_a_clock_give_the_same_models():
    assert torch.equal(ep.simulate(small()).models.rows, ep.simulate(small(clock=CLOCK)).models.rows)


@pytest.mark.parametrize("codec", [TopK(0.1), Int8(), Uncompressed()], ids=repr)
def test_deployed_nodes_learn_the_simulators_models_from_the_bytes_of_messages(codec):
    experiment = small(algorithm=choco(compressor=codec), network=BARRIER)
    check_deployable(experiment)
    replay = Replay(experiment, 3)
    for t in range(experiment.rounds):
        seen = views(experiment, t)
        messages = replay.local_update(t, seen, np.ones(8, dtype=bool))
        received = {i: {} for i in messages}
        for i, message in messages.items():
            frame = replay.sealed(t, i, seen[i].digest, {"q": message.get("q.sent", message["q"])[0]})
            assert len(frame) == HEADER_BYTES + codec.bytes(D, "float32")
            for j in seen[i].targets:
                received[j][i] = replay.opened(frame)
        replay.aggregate(seen, messages, {i: dict(sorted(heard.items())) for i, heard in received.items()})
    models = torch.cat([population.models for population in replay.populations])
    torch.testing.assert_close(models, ep.simulate(experiment).models.rows, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"topology": ep.ELLocal(3)}, r'"el-local" changes them; .* \[compression\] kind = "random-k"'),
        ({"topology": ep.OnePeerExponential()}, "needs the same neighbours in all rounds"),
        ({"faults": ep.Faults(loss=0.1)}, "a node that misses one stays out of sync"),
        ({"faults": ep.Faults(crashes=(ep.Crash(1, at=2, returns=3),))}, 'use algorithm.kind = "local-sgd" with'),
        ({"compression": Int8()}, "set algorithm.compressor and leave it out"),
        ({"topology": ep.Fragments(ep.Ring(), k=2)}, "use its inner topology alone"),
        ({"clock": Clock(compute=ConstantCompute(0.1), close=CloseDeadline(seconds=1))}, "loses late messages, but this algorithm needs every message"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_line(changes, message):
    with pytest.raises(ep.BadInput, match=message):
        small(**changes)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"eta": 0}, "algorithm.eta = 0 must be greater than 0"),
        ({"eta": 1.5}, "algorithm.eta = 1.5 must be at most 1"),
        ({"compressor": {"kind": "top"}}, "algorithm.compressor.kind = 'top' is not known; did you mean 'top-k'"),
        ({"compressor": "int8"}, "algorithm.compressor = 'int8' must be a table with a kind"),
    ],
)
def test_wrong_settings_are_one_line(settings, message):
    with pytest.raises(ep.BadInput, match=message):
        ep.Choco(**settings)


def test_nodes_on_a_network_need_every_message():
    with pytest.raises(ep.BadInput, match=r'use network\.close\.kind = "barrier"'):
        check_deployable(small())

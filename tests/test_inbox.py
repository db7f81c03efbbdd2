"""Inboxes: a host of all nodes and one of a few hear the same, to the last bit; and messages can be had one by one."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import epidemic as ep
from epidemic.algorithms import Heard
from epidemic.callbacks import Callback
from epidemic.compression import Said
from epidemic.core.graph import Graph
from epidemic.core.workers import Workers
from epidemic.mixing import weights
from epidemic.runtime import mixing_arithmetic
from epidemic.runtime.inbox import MatrixInbox, MessageInbox, Received
from epidemic.runtime.plan import shares, view_of

WORKERS = Workers(1)
DTYPES = (torch.float32, torch.float64)


@st.composite
def rounds(draw, kinds=("random", "complete")):
    """A graph of a round in which some nodes are down, and who is up."""
    n = draw(st.integers(1, 12))
    alive = np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    alive[draw(st.integers(0, n - 1))] = True
    if draw(st.sampled_from(kinds)) == "complete":
        graph = Graph.complete(n)
    else:
        linked = np.array(draw(st.lists(st.booleans(), min_size=n * n, max_size=n * n))).reshape(n, n)
        np.fill_diagonal(linked, False)
        graph = Graph.from_edges(n, *np.nonzero(linked))
    return graph, alive


def message_of(n, shape, dtype, seed):
    rng = np.random.default_rng(seed)
    numbers = rng.standard_normal((n, *shape)) * 10.0 ** rng.integers(-3, 4, (n, *shape))
    return {"x": torch.from_numpy(numbers).to(dtype)}


def both(graph, alive, message, rule="uniform", samples=None):
    """The inboxes of those who are up: of a host of all nodes, and of one to which messages came one by one."""
    arrived, who = graph.among(alive), np.flatnonzero(alive)
    w = weights(rule, graph, arrived, samples).among(who)
    own = {name: rows[torch.from_numpy(who)] for name, rows in message.items()}
    exchange = MatrixInbox(own, w, who, WORKERS, lambda column, like: torch.empty_like(like))
    received = []
    for i, (_, share) in zip(who, w.by_row(), strict=True):
        senders = arrived.into(i).tolist()
        messages = [{name: rows[j] for name, rows in message.items()} for j in senders]
        at = int(np.searchsorted(senders, i)) if graph.clique is not None else None
        received.append(Received(senders, messages, share, at, by_portions=at is not None and rule == "samples"))
    return exchange, MessageInbox(own, received, WORKERS)


shapes = st.sampled_from([(), (1,), (2,), (3,), (7,), (8,), (9,), (33,), (100,)])


@settings(max_examples=300)
@given(rounds(), shapes, st.sampled_from(DTYPES), st.integers(0, 2**31))
def test_both_inboxes_give_the_same_means_and_sums_to_the_last_bit(round, shape, dtype, seed):
    exchange, post = both(*round, message_of(round[0].n, shape, dtype, seed))
    assert torch.equal(exchange.mean("x"), post.mean("x"))
    assert torch.equal(exchange.sum("x"), post.sum("x"))
    assert exchange.mean("x").dtype == post.sum("x").dtype == dtype


@given(rounds(), shapes, st.sampled_from(DTYPES), st.integers(0, 2**31))
def test_both_inboxes_hand_out_the_same_messages(round, shape, dtype, seed):
    exchange, post = both(*round, message_of(round[0].n, shape, dtype, seed))
    for a, b in zip(exchange.each("x"), post.each("x"), strict=True):
        assert torch.equal(a.own, b.own)
        assert torch.equal(a.received, b.received)
        assert a.senders.tolist() == b.senders.tolist() == sorted(a.senders.tolist())
        np.testing.assert_array_equal(a.weights, b.weights)
        assert a.ages.tolist() == b.ages.tolist() == [0] * len(a.senders)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("graph", [Graph.complete(5), ep.ELLocal(3).graph(5, 0, ep.Streams(1))])
def test_large_models_are_cut_into_the_same_pieces(dtype, graph):
    message = message_of(5, (40_000,), dtype, 1)
    exchange, post = both(graph, np.ones(5, dtype=bool), message)
    assert torch.equal(exchange.mean("x"), post.mean("x"))
    assert torch.equal(exchange.sum("x"), post.sum("x"))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("down", [[], [0], [2, 5]])
def test_weights_that_do_not_share_alike_agree_too(dtype, down):
    """Of a complete graph under Metropolis-Hastings, who is down leaves its weight to each of the others."""
    alive = ~np.isin(np.arange(7), down)
    for graph in (Graph.complete(7), ep.Ring().graph(7, 0, ep.Streams(1))):
        exchange, post = both(graph, alive, message_of(7, (50,), dtype, 3), "metropolis-hastings")
        assert torch.equal(exchange.mean("x"), post.mean("x"))


counts = st.lists(st.integers(1, 10**6), min_size=12, max_size=12).map(np.array)


@given(rounds(), shapes, st.sampled_from(DTYPES), st.integers(0, 2**31), counts)
def test_voices_by_their_samples_agree_to_the_last_bit(round, shape, dtype, seed, samples):
    n = round[0].n
    exchange, post = both(*round, message_of(n, shape, dtype, seed), "samples", samples[:n])
    assert torch.equal(exchange.mean("x"), post.mean("x"))
    assert torch.equal(exchange.sum("x"), post.sum("x"))
    for a, b in zip(exchange.each("x"), post.each("x"), strict=True):
        np.testing.assert_array_equal(a.weights, b.weights)


@given(rounds(), shapes, st.sampled_from(DTYPES), st.integers(0, 2**31), st.integers(1, 10**6))
def test_equal_numbers_of_samples_give_the_uniform_mixture_to_the_last_bit(round, shape, dtype, seed, size):
    n = round[0].n
    message = message_of(n, shape, dtype, seed)
    uniform, _ = both(*round, message)
    for inbox in both(*round, message, "samples", np.full(n, size)):
        assert torch.equal(inbox.mean("x"), uniform.mean("x"))


@pytest.mark.parametrize("dtype", DTYPES)
def test_large_models_by_samples_are_cut_into_the_same_pieces(dtype):
    message = message_of(5, (40_000,), dtype, 1)
    exchange, post = both(Graph.complete(5), np.ones(5, dtype=bool), message, "samples", np.array([5, 1, 1, 90, 3]))
    assert torch.equal(exchange.mean("x"), post.mean("x"))


@given(rounds(), counts)
def test_a_deployed_node_weighs_by_samples_what_it_heard_as_the_simulator_does(round, samples):
    graph, alive = round
    assume(graph.n > 1)
    arrived, samples = graph.among(alive), samples[: graph.n]
    experiment = ep.Experiment(nodes=graph.n, topology=ep.Complete(), mixing="samples")
    rows = weights("samples", graph, arrived, samples).by_row()
    for node_id, (at, share) in enumerate(rows):
        found = shares(experiment, view_of(graph, 4, node_id), node_id, at[1:].tolist(), samples[at].tolist())
        np.testing.assert_array_equal(found, share)


@given(rounds(), shapes, st.integers(0, 2**31))
def test_means_and_sums_are_those_of_the_messages(round, shape, seed):
    exchange, _ = both(*round, message_of(round[0].n, shape, torch.float64, seed))
    mean, total = exchange.mean("x"), exchange.sum("x")
    for i, heard in enumerate(exchange.each("x")):
        rows = torch.cat([heard.own[None], heard.received])
        share = torch.from_numpy(heard.weights).reshape(-1, *[1] * len(shape))
        torch.testing.assert_close(mean[i], (share * rows).sum(0), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(total[i], rows.sum(0), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("topology", [ep.Complete(), ep.ELLocal(3), ep.Ring(), ep.UEquiStatic(2)])
def test_a_deployed_node_weighs_what_it_heard_as_the_simulator_does(topology):
    experiment = ep.Experiment(nodes=8, topology=topology)
    graph = topology.graph(8, 4, ep.Streams(1))
    for node_id, (at, share) in enumerate(weights(experiment.mixing_rule, graph).by_row()):
        found = shares(experiment, view_of(graph, 4, node_id), node_id, graph.into(node_id).tolist())
        assert at.tolist() == [node_id, *graph.into(node_id).tolist()]
        np.testing.assert_allclose(found, share, rtol=0, atol=1e-15)


# -- weights ----------------------------------------------------------------------------------------------------------


@given(rounds())
def test_weights_among_those_who_are_up_are_their_part_of_the_matrix(round):
    graph, alive = round
    w, who = weights("uniform", graph, graph.among(alive)), np.flatnonzero(alive)
    part = w.among(who)
    assert part.n == len(who)
    np.testing.assert_allclose(part.dense(), w.dense()[np.ix_(who, who)], rtol=0, atol=1e-15)
    np.testing.assert_allclose(part.dense().sum(1), 1, rtol=0, atol=1e-14)
    np.testing.assert_array_equal(w.among(np.arange(graph.n)).dense(), w.dense())


@given(rounds())
def test_ones_count_every_message_and_ones_own_part_whole(round):
    graph, alive = round
    arrived = graph.among(alive)
    w = weights("uniform", graph, arrived)
    adjacency = np.eye(graph.n)
    for i in range(graph.n):
        adjacency[i, arrived.into(i)] = 1
    np.testing.assert_array_equal(w.ones.dense(), adjacency)
    np.testing.assert_array_equal(w.ones.ones.dense(), adjacency)
    np.testing.assert_array_equal((w.dense() != 0), adjacency != 0)  # what it is made from stays as it was


@given(rounds())
def test_rows_open_with_the_node_itself_and_go_on_by_ascending_sender(round):
    graph, alive = round
    arrived = graph.among(alive)
    w = weights("uniform", graph, arrived)
    rows = list(w.by_row())
    assert len(rows) == graph.n
    for i, (at, share) in enumerate(rows):
        assert at.tolist() == [i, *arrived.into(i).tolist()]
        row = np.zeros(graph.n)
        row[at] = share
        np.testing.assert_allclose(row, w.dense()[i], rtol=0, atol=1e-15)


# -- an aggregator of one's own ---------------------------------------------------------------------------------------


class Trimmed(ep.Defaults):
    """Local SGD, then in each coordinate the mean without the `trim` smallest and largest. Some nodes lie."""

    local_steps = 1
    batch_size = 4

    def __init__(self, trim, liars=()):
        self.trim, self.liars = trim, list(liars)
        self.heard = []

    def init(self, x):
        return {"x": x}

    def local_update(self, state, learner, context):
        x = state["x"]
        loss = learner.sgd(x, context.index, ep.LocalSGD(lr=0.1).step, context.seeds)
        message = x.clone()
        message[self.liars] = 1e6
        return {"x": x}, {"x": message}, loss

    def aggregate(self, state, inbox):
        found = []
        self.heard.append(list(inbox.each("x")))
        for heard in self.heard[-1]:
            rows = torch.cat([heard.own[None], heard.received]).sort(0).values
            trim = min(self.trim, (len(rows) - 1) // 2)
            found.append(rows[trim : len(rows) - trim].mean(0))
        return {"x": torch.stack(found)}


def trimmed_by_numpy(heard: Heard, trim):
    rows = np.sort(np.concatenate([heard.own[None].numpy(), heard.received.numpy()]), axis=0)
    trim = min(trim, (len(rows) - 1) // 2)
    return rows[trim : len(rows) - trim].mean(0)


def small(**changes):
    fields = {
        "nodes": 9, "rounds": 5, "topology": ep.ELOracle(4), "data": ep.Digits(), "partition": ep.IID(),
        "model": ep.Logistic(), "eval": ep.Eval(every=5, samples=100), "runtime": ep.Runtime(strategy="stacked"),
        "algorithm": ep.LocalSGD(lr=0.1, batch_size=4),
    }  # fmt: skip
    return ep.Experiment(**{**fields, **changes})


class Models(Callback):
    """Keeps the models after each round."""

    def __init__(self):
        self.seen = []

    def advanced(self, rounds_done, x):
        self.seen.append(x.clone())


def test_a_trimmed_mean_over_the_messages_is_what_numpy_finds_and_keeps_liars_out():
    algorithm, models = Trimmed(1, liars=[3]), Models()
    run = ep.simulate(small(algorithm=algorithm), callbacks=models)
    for heards, x in zip(algorithm.heard, models.seen, strict=True):
        for i, heard in enumerate(heards):
            assert len(heard.received) == 4
            np.testing.assert_allclose(x[i].numpy(), trimmed_by_numpy(heard, 1), rtol=1e-6, atol=1e-6)
    assert run.models.rows.abs().max() < 100
    assert run.records[-1].accuracy.mean > run.records[0].accuracy.mean + 0.1
    plain = ep.simulate(small(algorithm=Trimmed(0, liars=[3])))
    assert plain.models.rows.abs().max() > 1e4  # one liar is enough where nothing is trimmed


def test_trimming_nothing_is_the_mean():
    trimmed, plain = ep.simulate(small(algorithm=Trimmed(0))), ep.simulate(small())
    torch.testing.assert_close(trimmed.models.rows, plain.models.rows, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("masked", [False, True])
def test_how_a_mixture_is_cut_makes_no_difference(dtype, masked, monkeypatch):
    """In one piece, into columns, into rows: the same to the last bit."""
    n, d = 9, 1000
    rng = np.random.default_rng(3)
    x, own = (torch.from_numpy(rng.standard_normal((n, d))).to(dtype) for _ in range(2))
    mask = torch.from_numpy(rng.random((n, d)) < 0.3).to(dtype) if masked else None
    w = weights("uniform", ep.ELLocal(4).graph(n, 1, ep.Streams(1)))
    found = []
    for small, numbers in ((10**9, 1), (0, n * 64), (0, 10**9)):
        monkeypatch.setattr(mixing_arithmetic, "SMALL", small)
        monkeypatch.setattr(mixing_arithmetic, "NUMBERS", numbers)
        plain = mixing_arithmetic.mix(w, x, WORKERS, torch.empty_like(x))
        said = mixing_arithmetic.mix_said(w, own, Said(x, mask), "count", WORKERS, torch.empty_like(x))
        parts = mixing_arithmetic.mix_parts([w, w], [slice(0, 300), slice(300, d)], x, WORKERS, torch.empty_like(x))
        found.append(torch.stack([plain, said, parts]))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[0][0], found[0][2])

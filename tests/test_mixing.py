"""Laws of the weights: averaging never invents or loses mass, whatever was dropped."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epidemic import mixing, theory
from epidemic.core.errors import BadInput
from epidemic.core.graph import Graph
from epidemic.core.rng import Streams
from epidemic.core.workers import Workers
from epidemic.mixing import affordable, disagreement, spectrum, weights
from epidemic.runtime.mixing_arithmetic import mix
from epidemic.topology import (
    Complete,
    DEquiStatic,
    ELLocal,
    ELOracle,
    ErdosRenyi,
    Exponential,
    Regular,
    Ring,
    UEquiStatic,
    Unlucky,
    kind_of,
    natural_mixing,
)

STREAMS = Streams(1)


def test_the_worked_example():
    """x = (0, 3, 6), node 0 hears 1, node 1 hears 0 and 2, node 2 hears nobody."""
    graph = Graph.from_edges(3, np.array([1, 0, 2]), np.array([0, 1, 1]))
    mixed = weights("uniform", graph) @ np.array([[0.0], [3.0], [6.0]])
    assert mixed.ravel().tolist() == [1.5, 3, 6]


def test_the_worked_example_by_samples():
    """Node 0 with 1 sample hears node 1 with 3: it takes 1/4 of its own and 3/4 of the other. Node 1 also hears node 2 with 4: 1/8, 3/8, 4/8."""
    graph = Graph.from_edges(3, np.array([1, 0, 2]), np.array([0, 1, 1]))
    samples = np.array([1, 3, 4])
    w = weights("samples", graph, None, samples)
    assert w.dense().tolist() == [[1 / 4, 3 / 4, 0], [1 / 8, 3 / 8, 4 / 8], [0, 0, 1]]
    assert (w @ np.array([[0.0], [8.0], [16.0]])).ravel().tolist() == [6, 11, 16]
    everyone = weights("samples", Graph.complete(3), None, samples)
    assert everyone.clique is not None  # never spelled out
    assert everyone.dense().tolist() == [[1 / 8, 3 / 8, 4 / 8]] * 3
    assert [row.tolist() for _, row in everyone.by_row()] == [
        [1 / 8, 3 / 8, 4 / 8],
        [3 / 8, 1 / 8, 4 / 8],
        [4 / 8, 1 / 8, 3 / 8],
    ]
    lost = Graph.from_edges(3, np.array([0]), np.array([1]))  # what did not arrive does not count
    assert weights("samples", graph, lost, samples).dense().tolist() == [[1, 0, 0], [1 / 4, 3 / 4, 0], [0, 0, 1]]
    elsewhere = Graph.from_edges(3, np.array([2]), np.array([0]))  # and one that was redirected does
    assert weights("samples", graph, elsewhere, samples).dense()[0] == pytest.approx([1 / 5, 0, 4 / 5], abs=1e-15)


@settings(max_examples=100)
@given(st.integers(1, 12), st.integers(0, 2**31), st.booleans())
def test_weights_by_samples_are_a_mean_and_equal_numbers_are_uniform(n, seed, complete):
    rng = np.random.default_rng(seed)
    linked = rng.random((n, n)) < 0.4
    np.fill_diagonal(linked, False)
    members = np.flatnonzero(rng.random(n) < 0.7)
    graph = Graph.complete(n, members) if complete else Graph.from_edges(n, *np.nonzero(linked))
    samples = rng.integers(1, 10**6, n)
    w = weights("samples", graph, None, samples)
    dense = w.dense()
    np.testing.assert_allclose(dense.sum(1), 1, rtol=0, atol=1e-14)
    assert (dense >= 0).all()
    for i in range(n):
        heard = np.append(graph.into(i), i)
        np.testing.assert_allclose(dense[i, heard], samples[heard] / samples[heard].sum(), rtol=1e-12)
    np.testing.assert_allclose(w.transpose.dense(), dense.T, rtol=0, atol=1e-15)
    assert spectrum(w).sigma == pytest.approx(0 if n == 1 else np.linalg.norm(dense - 1 / n, 2), abs=1e-12)
    same, uniform = weights("samples", graph, None, np.full(n, samples[0])), weights("uniform", graph)
    for (_, a), (_, b) in zip(same.by_row(), uniform.by_row(), strict=True):
        np.testing.assert_array_equal(a[1:], b[1:])
        np.testing.assert_allclose(a[:1], b[:1], rtol=0, atol=1e-15 if complete else 0)


@pytest.mark.parametrize("samples", [None, np.array([1, 2]), np.array([1, 0, 2])])
def test_weights_by_samples_need_a_number_for_each_node(samples):
    with pytest.raises(BadInput, match="at least 1, for each of 3 nodes"):
        weights("samples", Graph.complete(3), None, samples)


def test_one_peer_example():
    from epidemic.topology import OnePeerExponential

    x = np.arange(4.0)[:, None]
    for t in range(2):
        x = weights("uniform", OnePeerExponential().graph(4, t, STREAMS)) @ x
    assert x.ravel().tolist() == [1.5] * 4


@pytest.mark.parametrize(
    ("n", "s", "beta", "v", "ratio"),
    [
        (2, 1, 0, 0, 0),
        (3, 1, Fraction(3, 8), Fraction(1, 24), Fraction(17, 48)),
        (4, 1, Fraction(38, 81), Fraction(61, 972), Fraction(1307, 2916)),
        (4, 2, Fraction(13, 81), Fraction(4, 243), Fraction(113, 729)),
        (5, 1, Fraction(525, 1024), Fraction(277, 3840), Fraction(3799, 7680)),
    ],
)
def test_exact_rationals_by_enumerating_every_outcome_of_el_local(n, s, beta, v, ratio):
    """Through the production aggregator, over all choices of all nodes, for any input."""
    x = STREAMS("any").normals(n, 2)
    choices = [list(itertools.combinations([j for j in range(n) if j != i], s)) for i in range(n)]
    around_old, around_new, drift, columns = [], [], [], []
    for outcome in itertools.product(*choices):
        w = weights("uniform", Graph.from_targets(np.array(outcome)))
        y = w @ x
        around_old.append(((y - x.mean(0)) ** 2).sum() / n)
        around_new.append(disagreement(y))
        drift.append(((y.mean(0) - x.mean(0)) ** 2).sum())
        columns.append(w.dense().sum(axis=0))
    d = disagreement(x)
    assert np.mean(around_old) / d == pytest.approx(float(beta), abs=1e-12)
    assert np.mean(around_new) / d == pytest.approx(float(ratio), abs=1e-12)
    assert np.var(columns) == pytest.approx(float(v), abs=1e-12)
    assert np.mean(drift) / d == pytest.approx(float(v) / (n - 1), abs=1e-12)
    assert theory.beta(n, s) == pytest.approx(float(beta), abs=1e-12)
    assert theory.column_variance(n, s) == pytest.approx(float(v), abs=1e-12)
    assert float(beta) - theory.mean_drift(n, s) == pytest.approx(float(ratio), abs=1e-12)


HEXAGON = [(i, (i + 1) % 6) for i in range(6)]
TRIANGLES = [(0, 1), (1, 2), (2, 0), (3, 4), (4, 5), (5, 3)]
K33 = [(i, j) for i in range(3) for j in range(3, 6)]
PRISM = [*TRIANGLES, (0, 3), (1, 4), (2, 5)]


@pytest.mark.parametrize(
    ("n", "s", "base", "alpha"),
    [
        (4, 1, [(0, 1), (2, 3)], Fraction(1, 3)),
        (4, 2, [(0, 1), (1, 2), (2, 3), (3, 0)], Fraction(1, 9)),
        (6, 2, HEXAGON, Fraction(1, 5)),
        (6, 2, TRIANGLES, Fraction(1, 5)),
        (6, 3, K33, Fraction(1, 10)),
        (6, 3, PRISM, Fraction(1, 10)),
    ],
)
def test_exact_rationals_by_enumerating_all_relabellings_of_el_oracle(n, s, base, alpha):
    """The base graph does not matter, connected or not."""
    one, other = np.array(base).T
    x = STREAMS("any").normals(n, 2)
    total, count = 0.0, 0
    for order in itertools.permutations(range(n)):
        label = np.array(order)
        a, b = label[one], label[other]
        graph = Graph.from_edges(n, np.concatenate([a, b]), np.concatenate([b, a]))
        total += disagreement(weights("uniform", graph) @ x)
        count += 1
    assert total / count / disagreement(x) == pytest.approx(float(alpha), abs=1e-12)
    assert theory.alpha(n, s) == pytest.approx(float(alpha), abs=1e-12)


@given(st.integers(1, 30), st.integers(1, 5), st.integers(0, 99))
def test_disagreement_is_the_mean_squared_pairwise_distance(n, d, seed):
    x = Streams(seed)("x").normals(n, d)
    pairs = ((x[:, None] - x[None]) ** 2).sum()
    assert disagreement(x) == pytest.approx(pairs / (2 * n * n), rel=1e-10, abs=1e-12)


GRAPHS = [ELLocal(5), ELOracle(4), Ring(), ErdosRenyi(), UEquiStatic(3), Complete(), Exponential(), Unlucky(4)]


@settings(max_examples=200)
@given(
    st.sampled_from(GRAPHS),
    st.sampled_from(["uniform", "metropolis-hastings", "native"]),
    st.integers(0, 99),
    st.floats(0, 1),
)
def test_rows_sum_to_one_whatever_was_dropped(topology, rule, seed, dropped):
    n, streams = 20, Streams(seed)
    graph = topology.graph(n, 0, streams)
    if rule == "native" and graph.native is None and graph.clique is None:
        return
    if rule == "metropolis-hastings" and not graph.undirected:
        return
    full = graph.explicit()
    arrived = full.keep(streams("drop").uniforms(full.messages) >= dropped)
    w = weights(rule, graph, arrived).dense()
    np.testing.assert_allclose(w.sum(axis=1), 1, atol=1e-12)
    assert w.min() > -1e-15
    intended = weights(rule, graph).dense()
    heard = np.zeros((n, n), dtype=bool)
    heard[arrived.receivers, arrived.senders] = True
    own = np.eye(n, dtype=bool)
    assert (w[~heard & ~own] == 0).all()
    if rule == "uniform":  # recomputed on what arrived
        np.testing.assert_allclose(w[heard], np.repeat(1 / (1 + arrived.in_degree), arrived.in_degree))
    else:  # those of the intended graph; the missing weight is the node's own
        np.testing.assert_allclose(w[heard], intended[heard], atol=1e-15)
        missing = np.where(heard | own, 0, intended).sum(axis=1)
        np.testing.assert_allclose(np.diag(w), np.diag(intended) + missing, atol=1e-12)


@given(st.integers(0, 99))
def test_metropolis_hastings_is_symmetric_and_keeps_the_own_model(seed):
    w = weights("metropolis-hastings", ErdosRenyi().graph(20, 0, Streams(seed))).dense()
    np.testing.assert_allclose(w, w.T, atol=1e-15)
    assert np.diag(w).min() > 0


@pytest.mark.parametrize("topology", [Ring(), Regular(4), ELOracle(5), Complete()])
def test_metropolis_hastings_is_uniform_on_regular_graphs(topology):
    graph = topology.graph(20, 0, STREAMS)
    np.testing.assert_allclose(
        weights("uniform", graph).dense(), weights("metropolis-hastings", graph).dense(), atol=1e-12
    )


@pytest.mark.parametrize("topology", GRAPHS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_torch_and_numpy_mix_alike(topology, dtype):
    w = weights(natural_mixing(topology), topology.graph(20, 0, STREAMS))
    x = STREAMS("x").normals(20, 7).astype(dtype)
    workers = Workers(1)
    mixed = mix(w, torch.from_numpy(x), workers, torch.empty(x.shape, dtype=torch.from_numpy(x).dtype))
    workers.close()
    assert mixed.numpy().dtype == dtype
    np.testing.assert_allclose(mixed.numpy(), w @ x, rtol=0, atol=8 * np.finfo(dtype).eps)
    np.testing.assert_allclose(mixed.numpy(), w.dense() @ x, atol=1e-6)


def test_a_complete_graph_among_survivors_is_their_mean():
    alive = np.array([True, True, False, True])
    graph = Complete().graph(4, 0, STREAMS)
    x = np.array([[0.0], [3.0], [100.0], [6.0]])
    assert (weights("uniform", graph, graph.among(alive)) @ x).ravel().tolist() == [3, 3, 100, 3]
    kept = (weights("metropolis-hastings", graph, graph.among(alive)) @ x).ravel()
    assert kept.tolist() == [9 / 4, 9 / 4 + 3 / 4, 100, 9 / 4 + 6 / 4]


@pytest.mark.parametrize(
    "topology", [Ring(), Regular(7), Exponential(), ErdosRenyi(), ELLocal(7), UEquiStatic(4, strict=True)]
)
def test_iterative_and_dense_spectra_agree(topology, monkeypatch):
    w = weights(natural_mixing(topology), topology.graph(300, 0, STREAMS))
    dense = spectrum(w)
    monkeypatch.setattr("epidemic.mixing.DENSE_LIMIT", 10)
    assert spectrum(w).sigma == pytest.approx(dense.sigma, abs=1e-7)


def test_spectrum_of_a_large_ring():
    n = 5000
    exact = 1 / 3 + 2 / 3 * np.cos(2 * np.pi / n)
    assert spectrum(weights("uniform", Ring().graph(n, 0, STREAMS))).gap == pytest.approx(1 - exact, rel=1e-4)


@pytest.mark.parametrize(
    ("rule", "topology", "message"),
    [
        ("metropolis-hastings", ELLocal(3), "links that go both ways"),
        ("native", ELLocal(3), "weights of its own"),
        ("unifrom", ELLocal(3), "did you mean 'uniform'?"),
    ],
)
def test_a_rule_that_does_not_fit_is_refused(rule, topology, message):
    with pytest.raises(BadInput, match=message.replace("?", r"\?")):
        weights(rule, topology.graph(10, 0, STREAMS))


def test_a_redirected_message_has_no_intended_weight():
    intended = Ring().graph(5, 0, STREAMS)
    arrived = Graph.from_edges(5, np.array([2]), np.array([0]))
    with pytest.raises(BadInput, match="max_retries = 0"):
        weights("metropolis-hastings", intended, arrived)


@pytest.mark.parametrize("topology", [Ring(), DEquiStatic(3), UEquiStatic(4), Exponential()], ids=kind_of)
def test_rows_that_are_all_alike_have_a_spectrum_in_closed_form(topology, monkeypatch):
    w = weights(natural_mixing(topology), topology.graph(600, 0, Streams(2)))
    dense = spectrum(w).sigma
    monkeypatch.setattr(mixing, "DENSE_LIMIT", 1)
    monkeypatch.setattr(mixing, "ITERATIVE_LIMIT", 1)
    assert affordable(w)
    assert spectrum(w).sigma == pytest.approx(dense, abs=1e-12)


def test_rows_that_are_not_alike_are_noticed(monkeypatch):
    monkeypatch.setattr(mixing, "ITERATIVE_LIMIT", 1)
    ring = weights("uniform", Ring().graph(600, 0, Streams(2)))
    other = ring.matrix.copy()
    other.data[-3:] = 0.2, 0.4, 0.4
    for w in (mixing.Weights(600, other), weights("uniform", ELLocal(3).graph(600, 0, Streams(2)))):
        assert not affordable(w)
    assert affordable(ring)

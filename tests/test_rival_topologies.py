"""Published and exact numbers of the topologies that Epidemic Learning is compared with: finite-time graphs, MATCHA, PeerSwap and others."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epidemic import theory
from epidemic.core.graph import Graph
from epidemic.core.rng import Streams
from epidemic.mixing import disagreement, weights
from epidemic.topology import (
    Base,
    Complete,
    ELLocal,
    ELOracle,
    ErdosRenyi,
    Every,
    Geometric,
    Hypercube,
    Isolated,
    Matcha,
    PeerSwap,
    Periodic,
    Pull,
    Regular,
    Ring,
    Torus,
    expected,
    is_static,
    natural_mixing,
)
from epidemic.topology.finite import base_rounds
from epidemic.topology.matcha import edge_colours
from epidemic.topology.regular import both_ways, one_way
from epidemic.topology.static import near_pairs
from epidemic.topology.swap import _walk

STREAMS = Streams(1)


def matrix(topology, n, t):
    return weights(natural_mixing(topology), topology.graph(n, t, STREAMS)).dense()


def product(topology, n, rounds):
    w = np.eye(n)
    for t in rounds:
        w = matrix(topology, n, t) @ w
    return w


# -- hypercube --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (5, 6, 7, 8), (3, 0, 2, 1), (12, 9, 7, 2)])
def test_a_hypercube_averages_exactly_in_rounds_that_use_each_bit_once(order):
    assert np.abs(product(Hypercube(), 16, order) - 1 / 16).max() <= 1e-15


def test_a_hypercube_pairs_nodes_that_differ_in_one_bit():
    graph = Hypercube().graph(8, 4, STREAMS)
    assert graph.senders.tolist() == [2, 3, 0, 1, 6, 7, 4, 5]
    assert np.abs(product(Hypercube(), 16, (0, 1, 2)) - 1 / 16).max() > 0.01


# -- Base-(k+1) -------------------------------------------------------------------------------------------------------

LENGTHS = {
    5: (5, 3, 3, 1, 1), 6: (4, 2, 2, 2, 1), 16: (4, 4, 2, 2, 2), 17: (9, 5, 5, 4, 4), 25: (9, 6, 5, 2, 2), 31: (9, 7, 5, 5, 4),
    64: (6, 6, 3, 3, 2), 96: (8, 6, 4, 4, 3), 97: (13, 9, 7, 6, 5), 100: (11, 8, 6, 3, 3),
}  # fmt: skip


@pytest.mark.parametrize("n", LENGTHS)
def test_base_graphs_have_the_published_lengths(n):
    assert tuple(Base(k).length(n) for k in (1, 2, 3, 4, 7)) == LENGTHS[n]


def test_base_2_has_the_published_lengths_of_few_nodes():
    assert [Base(1).length(n) for n in range(2, 17)] == [1, 3, 2, 5, 4, 5, 3, 7, 6, 7, 5, 7, 6, 7, 4]


@pytest.mark.parametrize("k", range(1, 9))
def test_base_graphs_average_exactly_with_at_most_k_neighbours(k):
    """Every number of nodes up to 100: symmetric rounds of weights that are not negative, whose product is J."""
    for n in range(2, 101):
        w = np.eye(n)
        for one, other, weight in base_rounds(n, k):
            m = np.zeros((n, n))
            m[one, other] = weight
            m += m.T
            assert (m > 0).sum(axis=1).max() <= k
            assert len({(min(p), max(p)) for p in zip(one.tolist(), other.tolist(), strict=True)}) == len(one)
            m += np.diag(1 - m.sum(axis=1))
            assert np.diag(m).min() >= -1e-16
            w = m @ w
        assert np.abs(w - 1 / n).max() <= 1e-15
        assert len(base_rounds(n, k)) <= 2 * math.log(n, k + 1) + 2 + 1e-9


@pytest.mark.parametrize("relabel", ["never", "period"])
@pytest.mark.parametrize(("n", "k", "start"), [(96, 1, 0), (97, 2, 0), (31, 3, 4), (12, 7, 1)])
def test_a_period_of_base_graphs_averages_exactly_also_relabelled(relabel, n, k, start):
    topology = Base(k, relabel=relabel, start=start)
    length = topology.length(n)
    for begin in (-start % length, -start % length + 3 * length):
        assert np.abs(product(topology, n, range(begin, begin + length)) - 1 / n).max() <= 1e-15
    held = [topology.graph(n, t, STREAMS).digest() for t in (0, length)]
    assert (held[0] == held[1]) == (relabel == "never")


@pytest.mark.parametrize(
    ("k", "rounds"),
    [
        (1, ["3/2 3/2 6", "3/2 9/2 3", "3 3 3"]),
        (1, ["3/2 3/2 15/2 15/2 12", "9/2 9/2 9/2 9/2 12", "9/2 9/2 9/2 21/2 6", "9/2 9/2 15/2 15/2 6", "6 6 6 6 6"]),
        (2, ["3 3 3 21/2 21/2", "3 15/2 15/2 6 6", "6 6 6 6 6"]),
    ],
)
def test_worked_examples_of_base_graphs(k, rounds):
    wanted = [[float(Fraction(x)) for x in row.split()] for row in rounds]
    n = len(wanted[0])
    topology = Base(k, relabel="never")
    assert topology.length(n) == len(wanted)
    x = 3.0 * np.arange(n)
    for t, row in enumerate(wanted):
        x = matrix(topology, n, t) @ x
        np.testing.assert_allclose(x, row, atol=1e-14)


@pytest.mark.parametrize(("k", "messages"), [(1, 7), (2, 7), (3, 9), (7, 13)])
def test_messages_of_a_period_at_96_nodes(k, messages):
    assert sum(Base(k).graph(96, t, STREAMS).messages for t in range(Base(k).length(96))) == messages * 96


def test_nodes_of_base_graphs_that_would_idle_average_among_themselves():
    """7 nodes, k = 1, the authors' algorithm 2 by hand: blocks 0123, 45, 6; 45 averages again in its second round, and 6 meets 0123 first."""
    links = [
        sorted((min(p), max(p)) for p in zip(one.tolist(), other.tolist(), strict=True))
        for one, other, _ in base_rounds(7, 1)
    ]
    assert links == [
        [(0, 1), (2, 3), (4, 5)],
        [(0, 2), (1, 3), (4, 5)],
        [(1, 5), (2, 4), (3, 6)],
        [(0, 1), (2, 3), (5, 6)],
        [(0, 2), (1, 3), (4, 5)],
    ]
    topology = Base(1, relabel="never")
    assert sum(topology.graph(7, t, STREAMS).messages for t in range(5)) / 35 == pytest.approx(6 / 7)
    left = (
        product(topology, 7, range(4)) - 1 / 7
    )  # of models that are independent, D before the last round by D at the start
    assert (left**2).sum() / 6 == pytest.approx(4 / 147)  # 8 / 147 where the block of two meets the first one first


def test_nodes_of_base_graphs_that_nobody_meets_form_cliques():
    """11 nodes, k = 2: of the block 0 to 8 two nodes are met, and the other seven form cliques of three, three and one."""
    one, other, weight = base_rounds(11, 2)[2]
    links = {(min(p), max(p)): w for *p, w in zip(one.tolist(), other.tolist(), weight.tolist(), strict=True)}
    cliques = [(0, 1), (0, 2), (1, 2), (3, 4), (3, 5), (4, 5)]
    assert {pair: links.pop(pair) for pair in cliques} == dict.fromkeys(cliques, 1 / 3)
    assert links == {(8, 9): 9 / 11, (7, 10): 9 / 11}


# -- MATCHA -----------------------------------------------------------------------------------------------------------


class Links:
    """A static topology of given links."""

    static = True

    def __init__(self, *pairs):
        self.pairs = np.array(pairs)

    def graph(self, n, round, streams):
        return Graph.from_edges(n, *both_ways(self.pairs[:, 0], self.pairs[:, 1]))


PENDANT = Links((0, 1), (0, 2), (1, 2), (2, 3))


@pytest.mark.parametrize("probabilities", ["optimal", "uniform"])
@pytest.mark.parametrize(
    ("budget", "alpha", "rho"), [(1 / 2, 4 / 7, 33 / 49), (1 / 4, 4 / 7, 6 / 7), (3 / 4, 8 / 17, 145 / 289), (1, 2 / 5, 9 / 25)]
)  # fmt: skip
def test_matcha_on_a_ring_of_six(budget, alpha, rho, probabilities):
    found = Matcha(Ring(), budget=budget, probabilities=probabilities).design(6, STREAMS)
    assert found.probability.tolist() == [budget, budget]
    assert found.alpha == pytest.approx(alpha, abs=1e-9)
    assert found.rho == pytest.approx(rho, abs=1e-8)


def test_the_matchings_of_a_ring_of_six_and_its_negative_weight():
    topology = Matcha(Ring(), budget=1 / 2)
    found = topology.design(6, STREAMS)
    pairs = zip(found.graph.senders.tolist(), found.graph.receivers.tolist(), found.matching.tolist(), strict=True)
    assert {(a, b, j) for a, b, j in pairs if a < b} == {
        (0, 1, 0),
        (2, 3, 0),
        (4, 5, 0),
        (1, 2, 1),
        (3, 4, 1),
        (0, 5, 1),
    }
    full = next(g for t in range(99) if (g := topology.graph(6, t, STREAMS)).messages == 12)
    w = weights("native", full).dense()
    np.testing.assert_allclose(np.diag(w), -1 / 7, atol=1e-8)
    assert any(topology.graph(6, t, STREAMS).messages == 0 for t in range(99))  # silent rounds there are, too


def test_matcha_on_a_triangle_with_a_pendant():
    """The best lambda_2 is not the best rho: equal probabilities are better here."""
    best, equal = (
        Matcha(PENDANT, budget=1 / 2, probabilities=how).design(4, STREAMS) for how in ("optimal", "uniform")
    )
    np.testing.assert_allclose(best.probability, [15 / 22, 9 / 22, 9 / 22], atol=2e-5)
    assert (best.alpha, best.rho) == (pytest.approx(0.490, abs=1e-4), pytest.approx(0.6786, abs=1e-4))
    assert equal.rho == pytest.approx(0.6735, abs=1e-4)
    best, equal = (
        Matcha(PENDANT, budget=2 / 3, probabilities=how).design(4, STREAMS) for how in ("optimal", "uniform")
    )
    assert best.rho == pytest.approx(0.5800, abs=1e-4)
    assert equal.rho == pytest.approx(5 / 9, abs=1e-8)


@pytest.mark.parametrize(
    ("inner", "n", "budget"), [(PENDANT, 4, 0.5), (Ring(), 7, 0.3), (Torus(), 9, 0.6), (Regular(3), 12, 0.5), (Ring(), 2, 0.5)]
)  # fmt: skip
def test_rho_is_the_norm_of_the_expected_square(inner, n, budget):
    """All choices of matchings, each by its probability."""
    found = Matcha(inner, budget=budget).design(n, STREAMS)
    m = len(found.probability)
    assert found.probability.sum() <= budget * m + 1e-4
    mean = np.zeros((n, n))
    for active in itertools.product([False, True], repeat=m):
        w = weights("native", found.graph.keep(np.array(active)[found.matching])).dense()
        chance = np.where(active, found.probability, 1 - found.probability).prod()
        mean += chance * w.T @ w
    assert np.linalg.norm(mean - 1 / n, 2) == pytest.approx(found.rho, abs=1e-12)
    assert expected(Matcha(inner, budget=budget), n, STREAMS).sigma2 == found.rho
    for other in (0.98, 1.02):  # no other step is better
        assert found.rho <= _rho(found, found.alpha * other) + 1e-12


def _rho(found, alpha):
    n = found.graph.n
    w = [weights("native", found.graph.keep(found.matching == j)).dense() for j in range(len(found.probability))]
    laplacians = [(np.eye(n) - one) / found.alpha for one in w]
    mean = sum(p * one for p, one in zip(found.probability, laplacians, strict=True))
    spread = sum(p * (1 - p) * one for p, one in zip(found.probability, laplacians, strict=True))
    return np.linalg.norm(np.eye(n) - 2 * alpha * mean + alpha**2 * (mean @ mean + 2 * spread) - 1 / n, 2)


def test_matchings_are_there_as_often_as_their_probabilities_say():
    topology = Matcha(PENDANT, budget=0.5)
    found = topology.design(4, STREAMS)
    rounds = 4000
    seen = np.zeros(3)
    for t in range(rounds):
        graph = topology.graph(4, t, STREAMS)
        there = np.isin(found.graph.edge_keys, graph.edge_keys)
        for j in range(3):
            assert len(set(there[found.matching == j])) == 1  # a whole matching or nothing
            seen[j] += there[found.matching == j][0]
    p = found.probability
    assert (np.abs(seen - rounds * p) < 5 * np.sqrt(rounds * p * (1 - p))).all()


def test_equal_probabilities_serve_many_nodes():
    dense = Matcha(Regular(5), budget=0.5, probabilities="uniform").design(300, STREAMS)
    graph = Regular(5).graph(302, 0, STREAMS)  # beyond the limit of dense matrices
    found = Matcha(Regular(5), budget=0.5, probabilities="uniform").design(302, STREAMS)
    laplacian = np.diag(graph.in_degree) - (weights("uniform", graph).dense() * 6 - np.eye(302))
    values = np.linalg.eigvalsh(0.5 * laplacian)[[1, -1]]
    rho = max(1 - 2 * found.alpha * v + found.alpha**2 * (v * v + v) for v in values)
    assert found.rho == pytest.approx(rho, abs=1e-9)
    assert abs(found.rho - dense.rho) < 0.05


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 16), st.integers(0, 10**6), st.sampled_from([0.2, 0.5, 0.8, 1.0]))
def test_edge_colourings_are_proper_and_take_one_colour_more_than_the_degree_at_most(n, seed, density):
    one, other = np.triu_indices(n, k=1)
    kept = Streams(seed)("links").uniforms(len(one)) < density
    one, other = one[kept], other[kept]
    colour = edge_colours(n, one, other)
    degree = np.bincount(np.concatenate([one, other]), minlength=n).max(initial=0)
    assert colour.max(initial=-1) <= degree
    at = np.concatenate([one, other]) * 100 + np.concatenate([colour, colour])
    assert len(np.unique(at)) == len(at)


@pytest.mark.parametrize("topology", [Ring(), Torus(), ErdosRenyi(), Regular(7), Complete()])
def test_edge_colourings_of_whole_topologies(topology):
    graph = topology.graph(36, 0, STREAMS).explicit()
    colours = edge_colours(36, *one_way(graph)).max() + 1
    assert graph.in_degree.max() <= colours <= graph.in_degree.max() + 1
    if isinstance(topology, Ring | Torus):  # bipartite ones, as many as the degree
        assert colours == graph.in_degree.max()


# -- geometric --------------------------------------------------------------------------------------------------------


def test_the_mean_degree_on_a_torus_is_that_of_a_disc():
    n, trials, reach = 96, 400, Geometric().reach(96)
    assert reach == pytest.approx(math.sqrt(2 * math.log(96) / (math.pi * 96)))
    q = math.pi * reach**2
    links = np.array([len(near_pairs(Streams(3)("p", t).uniforms(n, 2), reach, torus=True)[0]) for t in range(trials)])
    pairs = n * (n - 1) / 2  # any two of which are linked independently
    assert abs(links.mean() - q * pairs) < 5 * math.sqrt(q * (1 - q) * pairs / trials)
    edge = [len(near_pairs(Streams(3)("p", t).uniforms(n, 2), reach, torus=False)[0]) for t in range(trials)]
    assert np.mean(edge) < 0.95 * q * pairs  # who lives at an edge has fewer


@pytest.mark.parametrize("torus", [False, True])
def test_near_pairs_are_those_that_are_near(torus):
    points = Streams(5)("points").uniforms(60, 2)
    apart = np.abs(points[:, None] - points[None])
    apart = np.minimum(apart, 1 - apart) if torus else apart
    wanted = np.argwhere(np.triu(np.hypot(*np.moveaxis(apart, 2, 0)) <= 0.3, k=1))
    found = np.stack(near_pairs(points, 0.3, torus=torus), axis=1)
    assert sorted(map(sorted, found.tolist())) == wanted.tolist()


def test_geometric_graphs_are_connected_and_static():
    for seed in range(5):
        graph = Geometric().graph(96, seed, Streams(seed))
        assert graph.connected
        assert graph.undirected
        assert graph.digest() == Geometric().graph(96, 9, Streams(seed)).digest()
    assert natural_mixing(Geometric()) == "metropolis-hastings"


# -- PeerSwap ---------------------------------------------------------------------------------------------------------


def test_without_swaps_the_graph_is_static():
    still = PeerSwap(4, swaps=0)
    assert is_static(still)
    assert not is_static(PeerSwap(4, swaps=1))
    assert {still.graph(24, t, STREAMS).digest() for t in range(5)} == {Regular(4).graph(24, 0, STREAMS).digest()}
    assert (
        PeerSwap(4, swaps=5).graph(24, 0, STREAMS).digest() == still.graph(24, 0, STREAMS).digest()
    )  # the first round


def test_one_swap_exchanges_two_neighbours():
    """A round's graph is the one before with two of its neighbours renamed to each other."""
    topology = PeerSwap(3, swaps=1)
    for t in range(20):
        before, after = (topology.graph(12, t + i, STREAMS) for i in (0, 1))
        renamed = []
        for a, b in zip(*one_way(before), strict=True):
            label = np.arange(12)
            label[[a, b]] = b, a
            renamed.append(Graph.from_edges(12, label[before.senders], label[before.receivers]).digest())
        assert after.digest() in renamed


def test_any_round_can_be_asked_for_alone():
    topology = PeerSwap(4, swaps=7)
    there = [topology.graph(30, t, Streams(5)).digest() for t in range(100)]
    for t in (99, 3, 64, 65, 0, 17):
        _walk.cache_clear()
        assert topology.graph(30, t, Streams(5)).digest() == there[t]
    assert [topology.graph(30, t, Streams(5)).digest() for t in (40, 39, 38, 80, 12)] == [
        there[t] for t in (40, 39, 38, 80, 12)
    ]
    assert len(set(there)) > 95


def _left(topology, n, rounds, trials):
    """What is left of the disagreement after some rounds, one number a trial, starting from the worst direction."""
    found = np.empty(trials)
    for seed in range(trials):
        x = _slowest(topology, n, Streams(seed))
        for t in range(rounds):
            x = weights("uniform", topology.graph(n, t, Streams(seed))) @ x
        found[seed] = disagreement(x)
    return found


def _slowest(topology, n, streams):
    """The direction that the graph of the first round averages worst, with D = 1.   # (n, 1)"""
    values, vectors = np.linalg.eigh(weights("uniform", topology.graph(n, 0, streams)).dense())
    at = np.argsort(np.abs(values))[-2]  # the largest is that of the mean
    return vectors[:, [at]] * math.sqrt(n)


def test_more_swaps_bring_peer_swap_from_the_static_graph_to_el_oracle():
    """D after the second round on, from the worst direction: sigma^2 a round without swaps, alpha with many, by 5 standard errors."""
    n, s, rounds, trials = 24, 4, 4, 150
    first = np.mean([disagreement(weights("uniform", PeerSwap(s).graph(n, 0, Streams(i))) @ _slowest(PeerSwap(s), n, Streams(i))) for i in range(trials)])  # fmt: skip
    still, some, many = (_left(PeerSwap(s, swaps=swaps), n, rounds, trials) for swaps in (0, 6, 600))
    error = many.std() / math.sqrt(trials)
    assert abs(many.mean() - first * theory.alpha(n, s) ** (rounds - 1)) < 5 * error
    assert still.mean() > some.mean() + 5 * (some.std() + still.std()) / math.sqrt(trials)
    assert some.mean() > many.mean() + 5 * (some.std() + many.std()) / math.sqrt(trials)


def test_many_swaps_link_all_pairs_equally_often():
    n, s, rounds = 12, 3, 1500
    count = np.zeros((n, n))
    for t in range(1, rounds + 1):
        graph = PeerSwap(s, swaps=200).graph(n, t, STREAMS)
        count[graph.receivers, graph.senders] += 1
    q = s / (n - 1)
    z = (count[np.triu_indices(n, 1)] - rounds * q) / math.sqrt(rounds * q * (1 - q))
    assert np.abs(z).max() < 5


# -- pull -------------------------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(st.integers(2, 40), st.data())
def test_who_asks_hears_exactly_s(n, data):
    s = data.draw(st.integers(1, n - 1))
    graph = Pull(s).graph(n, data.draw(st.integers(0, 99)), STREAMS)
    assert (graph.in_degree == s).all()
    assert graph.exchange == "requests"


@pytest.mark.parametrize(("n", "s"), [(96, 7), (12, 2)])
def test_pulling_contracts_exactly_as_predicted(n, s):
    trials = 1500
    ratios, drifts = np.empty(trials), np.empty(trials)
    for t in range(trials):
        x = Streams(7)("gauss", t).normals(n, 16)
        y = weights("uniform", Pull(s).graph(n, t, STREAMS)) @ x
        ratios[t] = disagreement(y) / disagreement(x)
        drifts[t] = ((y.mean(0) - x.mean(0)) ** 2).sum() / disagreement(x)
    alpha, wanted = theory.alpha(n, s), expected(Pull(s), n, STREAMS)
    assert wanted.sigma2 == alpha
    assert abs(ratios.mean() - wanted.contraction) < 5 * ratios.std() / math.sqrt(trials)
    assert abs(drifts.mean() - alpha * (1 - alpha) / n) < 5 * drifts.std() / math.sqrt(trials)


def test_pull_is_el_local_the_other_way_round():
    there, back = ELLocal(3).graph(20, 4, STREAMS), Pull(3).graph(20, 4, STREAMS)
    assert {*zip(there.senders, there.receivers, strict=True)} == {*zip(back.receivers, back.senders, strict=True)}


# -- periodic, and the two costs of everybody ------------------------------------------------------------------------


def test_periodic_is_complete_in_the_last_round_of_each_period():
    topology = Periodic(ELLocal(3), period=4)
    complete = [topology.graph(20, t, STREAMS).clique is not None for t in range(12)]
    assert complete == [False, False, False, True] * 3
    plain = [ELLocal(3).graph(20, t, STREAMS).digest() for t in range(12)]
    assert all(topology.graph(20, t, STREAMS).digest() == plain[t] for t in range(12) if not complete[t])
    assert is_static(Periodic(ELLocal(3), period=1))
    assert Periodic(ELLocal(3), period=1).graph(20, 0, STREAMS).clique is not None
    assert Periodic(ELLocal(3), period=13).graph(20, 11, STREAMS).digest() == plain[11]


@pytest.mark.parametrize(
    "inner",
    [Base(1), Matcha(Ring(), budget=0.5), ELLocal(2), Geometric(), ELOracle(2), Isolated(), Every(Base(2), period=3)],
)
def test_a_period_ends_in_agreement_whatever_the_weights(inner):
    x = Streams(2)("x").normals(12, 3)
    topology = Periodic(inner, period=3)
    assert natural_mixing(topology) == natural_mixing(inner)
    for t in range(3):
        x = weights(natural_mixing(topology), topology.graph(12, t, STREAMS)) @ x
    assert disagreement(x) < 1e-28


def test_an_all_reduce_sends_each_piece_round_twice():
    whole, pieces = Complete().graph(96, 0, STREAMS), Complete("all-reduce").graph(96, 0, STREAMS)
    assert (whole.pieces, set(whole.sent.tolist())) == (1, {95})
    assert (pieces.pieces, set(pieces.sent.tolist())) == (96, {190})
    some = pieces.among(np.arange(96) < 10)
    assert (some.pieces, some.sent.tolist()) == (10, [18] * 10 + [0] * 86)
    assert weights("uniform", pieces).share == weights("uniform", whole).share

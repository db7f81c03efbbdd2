"""The law of how many malicious models a node receives: against enumeration, exact rationals, real graphs, and every published number."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epidemic import theory
from epidemic.core.errors import BadInput
from epidemic.core.rng import Streams
from epidemic.topology import ELLocal, ELOracle, Pull


def hypergeometric(n, b, a):
    """P(X = k) of a of the n - 1 others, as rationals."""
    whole = math.comb(n - 1, a)
    return [
        Fraction(math.comb(b, k) * math.comb(n - 1 - b, a - k), whole) if a >= k else Fraction(0) for k in range(b + 1)
    ]


def binomial(b, q):
    return [math.comb(b, k) * q**k * (1 - q) ** (b - k) for k in range(b + 1)]


def same(law, exact, rel=1e-12):
    """All probabilities and all tails, each to a relative error."""
    for k, p in enumerate(exact):
        assert law.exactly(k) == pytest.approx(float(p), rel=rel)
        assert law.more_than(k) == pytest.approx(float(sum(exact[k + 1 :])), rel=rel)
    assert law.more_than(-1) == 1
    assert law.exactly(-1) == law.exactly(len(exact)) == law.more_than(len(exact)) == 0


# -- by enumeration ---------------------------------------------------------------------------------------------------


def test_pull_by_enumeration_of_what_a_node_may_ask():
    n, b, s = 6, 2, 3
    sets = list(itertools.combinations(range(1, n), s))  # of receiver 0; nodes 4 and 5 are malicious
    exact = [Fraction(sum(len({4, 5} & set(one)) == k for one in sets), len(sets)) for k in range(b + 1)]
    assert exact == [Fraction(1, 10), Fraction(6, 10), Fraction(3, 10)]
    same(theory.malicious_law(n, b, s), exact)
    assert theory.expected_bad(n, b, s, 1, 1) == pytest.approx(6 / 5, rel=1e-14)
    assert theory.p_clean(n, b, s, 1, 1) == pytest.approx(0.2401, rel=1e-13)
    choices = [[set(one) for one in itertools.combinations(set(range(n)) - {i}, s)] for i in range(n - b)]
    clean = sum(all(len(heard & {4, 5}) <= 1 for heard in run) for run in itertools.product(*choices))
    assert Fraction(clean, len(sets) ** 4) == Fraction(2401, 10_000)


def graphs_of_el_local(n, s):
    """All equally likely graphs, as the targets of every node."""
    return itertools.product(*(list(itertools.combinations([j for j in range(n) if j != i], s)) for i in range(n)))


def test_el_local_by_enumeration_of_all_graphs():
    """Binomial, and hypergeometric among those from whom a node receives something."""
    n, b, s = 5, 2, 2
    seen = {}
    for targets in graphs_of_el_local(n, s):
        heard = [j for j in range(n) if 0 in targets[j]]
        key = len(heard), sum(j >= n - b for j in heard)
        seen[key] = seen.get(key, 0) + 1
    whole = sum(seen.values())
    assert whole == math.comb(4, 2) ** 5
    exact = [Fraction(sum(c for (_, k), c in seen.items() if k == x), whole) for x in range(b + 1)]
    assert exact == binomial(b, Fraction(1, 2))
    same(theory.malicious_law(n, b, s, "el-local"), exact)
    for a in range(n):
        given_a = [Fraction(seen.get((a, k), 0), sum(c for (x, _), c in seen.items() if x == a)) for k in range(b + 1)]
        assert given_a == hypergeometric(n, b, a)
        same(theory.malicious_among(n, b, a), given_a)


def regular_graphs(n, s):
    """All s-regular graphs on n nodes, as sets of neighbours."""
    pairs = list(itertools.combinations(range(n), 2))
    for edges in itertools.combinations(pairs, n * s // 2):
        neighbours = [set() for _ in range(n)]
        for i, j in edges:
            neighbours[i].add(j)
            neighbours[j].add(i)
        if all(len(one) == s for one in neighbours):
            yield neighbours


@pytest.mark.parametrize(("n", "s", "count"), [(6, 3, 70), (6, 2, 70), (5, 2, 12)])
@pytest.mark.parametrize("b", [1, 2])
def test_el_oracle_by_enumeration_of_all_regular_graphs(n, s, count, b):
    """The law of pull for each node; all nodes of a round together are clean at least as often as the bound says."""
    malicious = set(range(n - b, n))
    graphs = list(regular_graphs(n, s))
    assert len(graphs) == count
    heard = [[len(one & malicious) for one in graph[: n - b]] for graph in graphs]
    exact = [Fraction(sum(row[0] == k for row in heard), count) for k in range(b + 1)]
    assert exact == hypergeometric(n, b, s)
    same(theory.malicious_law(n, b, s, "el-oracle"), exact)
    for f in range(b):
        clean = sum(max(row) <= f for row in heard) / count
        assert theory.p_clean(n, b, s, 2, f, "el-oracle") <= clean**2 + 1e-15
        mean = sum(k > f for row in heard for k in row) / count
        assert theory.expected_bad(n, b, s, 7, f, "el-oracle") == pytest.approx(7 * mean, abs=1e-13)


# -- against exact rationals ------------------------------------------------------------------------------------------


@given(st.integers(2, 60), st.data())
def test_all_probabilities_and_tails_against_rationals(n, data):
    b = data.draw(st.integers(0, n - 1))
    s = data.draw(st.integers(1, n - 1))
    exact = hypergeometric(n, b, s)
    law = theory.malicious_law(n, b, s)
    same(law, exact)
    same(theory.malicious_law(n, b, s, "el-local"), binomial(b, Fraction(s, n - 1)))
    assert law.mean == pytest.approx(s * b / (n - 1), rel=1e-12)


@pytest.mark.parametrize(
    ("n", "b", "a"), [(1000, 100, 47), (10_000, 1000, 36), (5000, 1000, 900), (100_000, 10_000, 40)]
)
def test_tails_of_large_networks_against_rationals(n, b, a):
    """Also where they are too small for a double: as logarithms."""
    law, whole, tail = theory.malicious_among(n, b, a), math.comb(n - 1, a), 0
    for k in reversed(range(min(a, b) + 1)):
        assert law.log_more_than(k) == (
            pytest.approx(math.log(tail) - math.log(whole), rel=1e-11) if tail else -math.inf
        )
        tail += math.comb(b, k) * math.comb(n - 1 - b, a - k)
    assert tail == whole


def test_a_tail_below_the_smallest_double():
    law = theory.malicious_among(5000, 1000, 900)
    assert law.more_than(800) == 0
    assert -2000 < law.log_more_than(800) < -745
    assert law.least_with(-1000.0) < 800


@given(st.integers(3, 40), st.data())
def test_least_with_is_the_least(n, data):
    b, s = data.draw(st.integers(1, n - 1)), data.draw(st.integers(1, n - 1))
    law = theory.malicious_law(n, b, s, data.draw(st.sampled_from(["pull", "el-local"])))
    limit = data.draw(st.floats(-40, 0))
    f = law.least_with(limit)
    assert law.log_more_than(f) <= limit
    assert f == 0 or law.log_more_than(f - 1) > limit


# -- against graphs that are really drawn -----------------------------------------------------------------------------

SIZE, LIARS = 200, 40


def drawn(topology, rounds, seed):
    """Models and malicious models received, by round and honest node.   # (rounds, h) each"""
    received, malicious = [], []
    bad = np.zeros(SIZE)
    bad[:LIARS] = 1
    for t in range(rounds):
        graph = topology.graph(SIZE, t, Streams(seed))
        received.append(graph.in_degree[LIARS:])
        malicious.append(np.bincount(graph.receivers, weights=bad[graph.senders], minlength=SIZE)[LIARS:])
    return np.array(received), np.array(malicious, dtype=int)


def within_five_sigma(by_round, expected):
    """Rounds are independent; nodes of a round need not be."""
    error = by_round.std(ddof=1) / math.sqrt(len(by_round))
    assert abs(by_round.mean() - expected) < 5 * error, (by_round.mean(), expected, error)


@pytest.mark.parametrize(
    ("topology", "kind"), [(ELOracle(10), "el-oracle"), (ELOracle(10, base="fresh"), "el-oracle"), (ELLocal(10), "el-local"), (Pull(10), "pull")]
)  # fmt: skip
def test_graphs_of_the_simulator_follow_the_law(topology, kind):
    received, malicious = drawn(topology, 200 if getattr(topology, "base", "") != "fresh" else 60, seed=7)
    law = theory.malicious_law(SIZE, LIARS, 10, kind)
    for f in (0, 1, 2, 3, 4, 5):
        within_five_sigma((malicious > f).mean(axis=1), law.more_than(f))
    if kind != "el-local":
        assert (received == 10).all()
        return
    for a in (7, 10, 13):
        for f in (1, 2, 3):
            chosen = received == a
            given_a = theory.malicious_among(SIZE, LIARS, a).more_than(f)
            within_five_sigma((chosen * ((malicious > f) - given_a)).sum(axis=1), 0.0)


def test_runs_without_a_bad_node_round_are_as_frequent_as_predicted():
    """Exactly so in pull; at least so in EL-Oracle and EL-Local."""
    n, b, s, rounds, f, runs = 30, 6, 5, 10, 3, 1000
    bad = np.arange(n) >= n - b
    for topology, kind in ((Pull(s), "pull"), (ELOracle(s - 1), "el-oracle"), (ELLocal(s), "el-local")):
        clean = 0
        for seed in range(runs // 4 if kind != "pull" else runs):
            streams = Streams(seed)
            counts = [
                np.bincount(graph.receivers, weights=bad[graph.senders], minlength=n)[: n - b].max()
                for graph in (topology.graph(n, t, streams) for t in range(rounds))
            ]
            clean += max(counts) <= f
        tried = seed + 1
        p = theory.p_clean(n, b, topology.s, rounds, f, kind)
        error = 5 * math.sqrt(p * (1 - p) / tried)
        assert clean / tried > p - error
        if kind == "pull":
            assert clean / tried < p + error


# -- published numbers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "b", "s", "rounds", "f", "p", "some", "least", "lemma"),
    [
        (100, 10, 15, 200, 7, 1.47e-6, 0.026, 8, 476),
        (100, 8, 15, 200, 6, 3.20e-6, 0.057, 7, 595),
        (30, 6, 15, 200, 6, 0, 0, 6, 220),
        (20, 3, 6, 2000, 3, 0, 0, 3, 331),
        (100_000, 10_000, 30, 200, 15, 3.6e-9, 0.063, 16, 683),
    ],
)
def test_the_settings_of_rpel_by_the_exact_law(n, b, s, rounds, f, p, some, least, lemma):
    assert theory.malicious_law(n, b, s).more_than(f) == pytest.approx(p, rel=8e-3)
    assert theory.p_some_bad(n, b, s, rounds, f) == pytest.approx(some, abs=5e-4)
    assert theory.tolerate(n, b, s, rounds, 0.01) == least
    assert theory.rpel_lemma_4_1(n, b, rounds, 0.01) == lemma


def test_the_largest_number_of_malicious_models_in_the_first_run_of_rpel():
    found = [theory.p_clean(100, 10, 15, 200, f) for f in (6, 7, 8)]
    assert found == [pytest.approx(0.480, abs=5e-4), pytest.approx(0.974, abs=5e-4), pytest.approx(0.9995, abs=5e-5)]
    assert round(1 / theory.p_some_bad(100, 10, 15, 200, 7)) == 38  # one run in so many has a bad node-round


def test_keyed_push_against_pull_and_flooding():
    tail = lambda n, b, s, f, kind: theory.malicious_law(n, b, s, kind).more_than(f)  # noqa: E731
    assert tail(96, 10, 18, 9, "el-local") == pytest.approx(5.96e-8, rel=1e-3)
    assert tail(96, 10, 18, 9, "pull") == pytest.approx(4.33e-9, rel=1e-3)
    assert tail(96, 5, 7, 3, "el-local") == pytest.approx(1.39e-4, rel=3e-3)
    assert tail(96, 5, 7, 3, "pull") == pytest.approx(5.35e-5, rel=1e-3)
    for b, flooding, local, pull in ((5, 0.199, 7.7e-4, 5.4e-5), (10, 0.905, 3.9e-3, 2.0e-3)):
        assert theory.no_majority(96, b, 7, "flooding") == pytest.approx(flooding, abs=5e-4)
        assert theory.no_majority(96, b, 7, "el-local") == pytest.approx(local, rel=0.01)
        assert theory.no_majority(96, b, 7, "pull") == pytest.approx(pull, rel=0.03)


@pytest.mark.parametrize("kind", ["flooding", "el-local", "pull"])
def test_no_honest_majority_by_enumeration(kind):
    n, b, s = 5, 2, 2
    q, found = Fraction(s, n - 1), Fraction(0)
    honest = binomial(n - 1 - b, q)
    if kind == "pull":
        found = sum(hypergeometric(n, b, s)[2:])
    elif kind == "flooding":
        found = honest[0] + honest[1]
    else:
        found = sum(p * r for x, p in enumerate(honest) for k, r in enumerate(binomial(b, q)) if k >= 1 + x)
    assert theory.no_majority(n, b, s, kind) == pytest.approx(float(found), rel=1e-12)
    assert theory.no_majority(n, 0, s, kind) == 0


def test_without_rounds_a_fast_liar_is_heard_more_often():
    present = theory.present_without_rounds(96, 7, 4)
    assert present == pytest.approx(0.264, abs=5e-4)
    q = Fraction(7, 95)
    assert present == pytest.approx(float(1 - (1 - q) ** 4), rel=1e-14)
    same(theory.law_without_rounds(96, 5, 7), binomial(5, 1 - (1 - q) ** 4))
    same(theory.law_without_rounds(96, 5, 7, 1), binomial(5, q))
    assert theory.law_without_rounds(8, 3, 7).exactly(3) == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theory.malicious_law(96, 96, 7), "malicious = 96 must be at most nodes - 1 = 95"),
        (lambda: theory.malicious_law(96, -1, 7), "malicious = -1 must be at least 0"),
        (lambda: theory.malicious_law(96, 5, 96), "s = 96 must be at most nodes - 1 = 95"),
        (lambda: theory.malicious_law(96, 5, 7, "push"), "kind = 'push' is not known"),
        (lambda: theory.malicious_among(96, 5, 96), "received = 96 must be at most 95"),
        (lambda: theory.expected_bad(96, 5, 7, 0, 3), "rounds = 0 must be at least 1"),
        (lambda: theory.p_clean(96, 5, 7, 10, -1), "f = -1 must be at least 0"),
        (lambda: theory.tolerate(96, 5, 7, 10, 0), "risk = 0 must be greater than 0"),
        (lambda: theory.tolerate(96, 5, 7, 10, 1), "risk = 1 must be less than 1"),
    ],
)
def test_what_cannot_be_is_refused(call, message):
    with pytest.raises(BadInput, match=message.replace(".", r"\.")):
        call()

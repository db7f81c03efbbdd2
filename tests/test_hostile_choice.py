"""How large f and s must be: the least ones, what a run is promised, refusals, and the adversary who has seen all graphs."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epidemic import theory
from epidemic.core.errors import BadInput
from epidemic.theory.adaptive import log_binomial_tail, relative_entropy
from epidemic.theory.hostile import caution, resolve

# -- published numbers ------------------------------------------------------------------------------------------------

NONE = (None, None)
SMALLEST = [  # n, b; then s and f for T = 200; T = 3000; a third and a fifth at T = 3000; RPEL's Lemmas A.4 and 4.1
    (30, 3, (6, 3), (6, 3), (9, 3), (15, 3), 29, 521),
    (96, 2, (4, 2), (4, 2), (6, 2), (10, 2), 14, 2672),
    (96, 5, (10, 5), (10, 5), (15, 5), (25, 5), 22, 1069),
    (96, 10, (16, 8), (18, 9), (30, 10), (50, 10), 36, 534),
    (96, 19, (30, 15), (32, 16), (57, 19), (95, 19), 76, 281),
    (96, 29, (52, 26), (54, 27), (87, 29), NONE, 95, 467),
    (100, 10, (16, 8), (18, 9), (30, 10), (50, 10), 34, 557),
    (1000, 10, (8, 4), (8, 4), (15, 5), (30, 6), 14, 6271),
    (1000, 50, (16, 8), (18, 9), (36, 12), (95, 19), 24, 1254),
    (1000, 100, (24, 12), (30, 15), (72, 24), (250, 50), 40, 627),
    (1000, 200, (56, 28), (66, 33), (240, 80), NONE, 88, 313),
    (10_000, 1000, (30, 15), (36, 18), (90, 30), (395, 79), 44, 696),
    (10_000, 2000, (70, 35), (80, 40), (363, 121), NONE, 98, 347),
    (100_000, 10_000, (34, 17), (40, 20), (102, 34), (465, 93), 48, 765),
]


@pytest.mark.parametrize(("n", "b", "short", "half", "third", "fifth", "a4", "lemma"), SMALLEST)
def test_the_smallest_s_for_a_risk_of_one_percent(n, b, short, half, third, fifth, a4, lemma):
    for expected, rounds, share in (
        (short, 200, 1 / 2),
        (half, 3000, 1 / 2),
        (third, 3000, 1 / 3),
        (fifth, 3000, 1 / 5),
    ):
        s = theory.smallest_s(n, b, rounds, 0.01, share=share)
        assert (s, s and theory.tolerate(n, b, s, rounds, 0.01)) == expected
    assert theory.rpel_lemma_a4(n, b, 3000, 0.01) == a4
    assert theory.rpel_lemma_4_1(n, b, 3000, 0.01) == lemma


@pytest.mark.parametrize(
    ("n", "b", "least"),
    [
        (96, 5, {4: 4, 7: 5, 10: 5}),
        (96, 10, {4: 4, 7: 6, 10: 7, 14: 8, 20: 9, 30: 10}),
        (96, 19, {7: 7, 14: 11, 20: 13, 30: 16, 47: 19}),
        (1000, 100, {7: 7, 14: 10, 20: 12, 30: 15, 47: 19}),
    ],
)
def test_the_least_f_of_a_given_s(n, b, least):
    assert {s: theory.tolerate(n, b, s, 3000, 0.01) for s in least} == least


def test_the_least_f_by_models_received():
    assert [theory.tolerate_among(96, 5, a, 3000, 0.01) for a in range(10)] == [0, 1, 2, 3, 4, 4, 5, 5, 5, 5]
    found = [theory.tolerate_among(96, 10, a, 3000, 0.01) for a in range(1, 23)]
    assert found == [1, 2, 3, 4, 5, 6, 6, 7, 7, 7, 8, 8, 8, 8, 9, 9, 9, 9, 9, 9, 9, 10]


@pytest.mark.parametrize(
    ("n", "b", "shares"),
    [
        (96, 2, {7: 0.927, 10: 0.992, 14: 0.9998}),
        (96, 5, {7: 0.162, 10: 0.549, 14: 0.909, 20: 0.9978}),
        (96, 10, {14: 0.155, 20: 0.730, 30: 0.998}),
        (1000, 50, {20: 0.705, 30: 0.993}),
    ],
)
def test_the_share_of_node_rounds_of_el_local_that_can_aggregate(n, b, shares):
    for s, share in shares.items():
        digits = len(str(share)) - 2
        assert round(theory.aggregating_local(n, b, s, 3000, 0.01), digits) == share


@pytest.mark.parametrize(
    ("n", "b", "s", "f", "expected", "most"),
    [
        (96, 10, 18, 9, 0.001, 4),
        (96, 10, 14, 7, 0.25, 11),
        (96, 10, 7, 3, 506, 694),
        (96, 5, 7, 3, 14.6, 44),
        (1000, 100, 30, 15, 0.004, 39),
    ],
)
def test_bad_node_rounds_if_all_graphs_are_known_before_nodes_are_chosen(n, b, s, f, expected, most):
    digits = len(str(expected).partition(".")[2])
    assert round(theory.expected_bad(n, b, s, 3000, f), digits) == expected
    assert theory.adaptive_bad(n, b, s, 3000, f) == most
    assert theory.adaptive_bad(n, b, 2 * b, 3000, b) == 0


def test_the_convergence_lemma_of_rpel_does_not_cover_its_own_experiments():
    found = [theory.rpel_reduction(n, b, s, f) for n, b, s, f in ((100, 10, 15, 7), (30, 6, 15, 6), (20, 3, 6, 3))]
    assert [round(x, 1) for x in found] == [21.6, 9.4, 19.2]
    known = {(96, 2): (20, 2), (96, 5): (43, 5), (1000, 10): (68, 8), (1000, 50): (251, 31)}
    assert {(n, b): theory.rpel_smallest_s(n, b, 3000, 0.01) for n, b in known} == known
    assert theory.rpel_smallest_s(96, 40, 3000, 0.01) is None


# -- laws -------------------------------------------------------------------------------------------------------------

SIZES = st.integers(3, 40).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, (n - 1) // 2)))
RISKS = st.sampled_from([0.5, 0.1, 0.01, 1e-6])


def some_bad(n, b, s, rounds, f):
    """P(some bad node-round) of pull, from rationals."""
    tail = Fraction(
        sum(math.comb(b, k) * math.comb(n - 1 - b, s - k) for k in range(f + 1, min(b, s) + 1)), math.comb(n - 1, s)
    )
    return 1 - (1 - tail) ** ((n - b) * rounds)


@given(SIZES, st.integers(1, 5), RISKS, st.data())
def test_tolerate_is_the_least_f_that_keeps_the_promise(size, rounds, risk, data):
    n, b = size
    s = data.draw(st.integers(1, n - 1))
    f = theory.tolerate(n, b, s, rounds, risk)
    assert some_bad(n, b, s, rounds, f) <= risk
    assert f == 0 or some_bad(n, b, s, rounds, f - 1) > risk
    assert theory.p_some_bad(n, b, s, rounds, f) == pytest.approx(float(some_bad(n, b, s, rounds, f)), rel=1e-10)
    for kind in ("el-oracle", "el-local"):
        assert f <= theory.tolerate(n, b, s, rounds, risk, kind) <= b
        assert theory.p_some_bad(n, b, s, rounds, theory.tolerate(n, b, s, rounds, risk, kind), kind) <= risk


@given(SIZES, st.integers(1, 1000), RISKS, st.sampled_from([1 / 2, 1 / 3, 1 / 5]))
def test_smallest_s_is_the_first_of_all(size, rounds, risk, share):
    n, b = size
    part = Fraction(share).limit_denominator(10)
    fits = [s for s in range(1, n) if theory.tolerate(n, b, s, rounds, risk) < part * (s + 1)]
    assert theory.smallest_s(n, b, rounds, risk, share=share) == (fits[0] if fits else None)
    regular = theory.smallest_s(n, b, rounds, risk, "el-oracle", share)
    assert regular is None or n * regular % 2 == 0
    if share == 1 / 2:
        assert fits  # with all others, f = b will do


@given(SIZES, st.integers(1, 1000), RISKS)
def test_one_model_more_raises_f_by_at_most_one(size, rounds, risk):
    n, b = size
    f = [theory.tolerate_among(n, b, a, rounds, risk) for a in range(n)]
    assert all(0 <= y - x <= 1 for x, y in itertools.pairwise(f))
    assert all(f[a] <= min(a, b) for a in range(n))
    assert f[n - 1] == b


@given(SIZES, st.integers(1, 1000), RISKS)
def test_the_share_that_aggregates_is_that_of_the_least_f(size, rounds, risk):
    n, b = size
    f = [theory.tolerate_among(n, b, a, rounds, risk) for a in range(n)]
    for s in (1, n // 2, n - 1):
        q = Fraction(s, n - 1)
        share = sum(math.comb(n - 1, a) * q**a * (1 - q) ** (n - 1 - a) for a in range(n) if a >= 2 * f[a])
        assert theory.aggregating_local(n, b, s, rounds, risk) == pytest.approx(float(share), rel=1e-11, abs=1e-15)
    s = theory.smallest_s_local(n, b, rounds, risk, 0.9)
    receive = {x: theory.aggregating_local(n, b, x, rounds, risk) - theory.p_empty_inbox(n, x) for x in range(1, s + 1)}
    assert receive.pop(s) >= 0.9
    assert all(share < 0.9 for share in receive.values())


# -- the adversary who has seen all graphs ----------------------------------------------------------------------------


def heard_by_pull(n, s):
    return itertools.product(*(list(itertools.combinations([j for j in range(n) if j != i], s)) for i in range(n)))


def heard_by_local(n, s):
    for targets in heard_by_pull(n, s):
        yield [[j for j in range(n) if i in targets[j]] for i in range(n)]


@pytest.mark.parametrize(("kind", "graphs"), [("pull", heard_by_pull), ("el-local", heard_by_local)])
@pytest.mark.parametrize(("n", "b", "s", "f"), [(4, 1, 1, 0), (4, 1, 2, 0), (4, 2, 2, 1)])
def test_no_choice_of_malicious_nodes_has_more_bad_node_rounds(kind, graphs, n, b, s, f):
    """All sequences of two rounds, each with the choice that is worst for it."""
    sets = [set(one) for one in itertools.combinations(range(n), b)]
    rounds = np.array(
        [[sum(len(bad & set(heard[i])) > f for i in set(range(n)) - bad) for bad in sets] for heard in graphs(n, s)]
    )  # (graphs, sets): bad nodes
    if kind == "el-local":
        assert rounds.max() <= theory.most_bad_nodes(n, b, s, f)
    worst = np.concatenate([(rounds[i] + rounds).max(axis=1) for i in range(len(rounds))])
    for risk in (0.5, 0.1, 0.02, 0.001):
        most = theory.adaptive_bad(n, b, s, 2, f, risk, kind)
        assert (worst > most).mean() <= risk, (risk, most)


def test_the_most_bad_nodes_of_a_graph():
    assert theory.most_bad_nodes(96, 5, 7, 3) == 8  # 35 messages, 4 for each
    assert theory.most_bad_nodes(96, 5, 95, 3) == 91
    assert theory.most_bad_nodes(96, 5, 7, 5) == 0
    assert (
        theory.most_bad_nodes(6, 2, [1, 1, 1, 1, 3, 4], [0, 0, 2, 2, 2, 2]) == 2
    )  # 7 messages, and no node hears three
    assert theory.most_bad_nodes(6, 2, [1, 1, 1, 1, 3, 4], [0, 1, 1, 1, 2, 2]) == 4


@given(st.integers(1, 150), st.fractions("1/1000000", "3/5", max_denominator=1_000_000), st.data())
def test_tails_of_a_binomial_as_logarithms(trials, q, data):
    k, p = data.draw(st.integers(math.floor(trials * q) + 1, trials)), float(q)
    tail = sum(math.comb(trials, j) * q**j * (1 - q) ** (trials - j) for j in range(k, trials + 1))
    exact = math.log(tail.numerator) - math.log(tail.denominator)
    assert log_binomial_tail(trials, math.log(p), k) == pytest.approx(exact, rel=1e-10, abs=1e-11)


def test_the_ends_of_a_binomial_tail():
    assert log_binomial_tail(10, math.log(0.5), 5) == 0.0  # up to the mean: a bound
    assert log_binomial_tail(10, math.log(0.5), 11) == -math.inf
    assert log_binomial_tail(10, 0.0, 10) == 0.0
    assert relative_entropy(0.25, 0.5) == 0
    assert relative_entropy(1.0, 0.5) == pytest.approx(math.log(2))


# -- what an experiment asks ------------------------------------------------------------------------------------------


@given(SIZES, st.integers(1, 500), RISKS, st.sampled_from(["el-oracle", "pull"]), st.integers(1, 4))
def test_resolve_accepts_the_s_that_its_refusal_names(size, rounds, risk, kind, held):
    n, b = size
    for s in range(1, n):
        if kind == "el-oracle" and n * s % 2:
            continue
        try:
            found = resolve(n, b, rounds, risk, kind, s=s, held=held)
        except BadInput as refused:
            needed = int(str(refused).split("use s = ")[1].split(",")[0])
            assert needed > s
            assert resolve(n, b, rounds, risk, kind, s=needed, held=held).risk <= risk
        else:
            assert 2 * found.f <= s
            assert found.risk <= risk
            assert found.expected <= risk * held * 1.5
            assert (found.each([s] * 3) == found.f).all()


@given(SIZES, st.integers(1, 500), RISKS)
def test_resolve_of_el_local_by_models_received(size, rounds, risk):
    n, b = size
    s = theory.smallest_s_local(n, b, rounds, risk)
    found = resolve(n, b, rounds, risk, "el-local", s=s)
    assert found.f is None
    assert found.risk <= found.expected + 1e-15 <= risk + 1e-14
    assert found.aggregating >= 0.5
    degrees = np.arange(n)
    assert found.each(degrees).tolist() == [theory.tolerate_among(n, b, a, rounds, risk) for a in degrees]
    if s > 1:
        with pytest.raises(BadInput, match=f"use s = {s} "):
            resolve(n, b, rounds, risk, "el-local", s=s - 1)


def test_resolve_on_a_static_graph_by_enumeration():
    """The expected number of honest nodes that receive too many, over all choices of malicious ones."""
    n, b, rounds = 9, 3, 50
    rng = np.random.default_rng(3)
    heard = [
        set(rng.choice([j for j in range(n) if j != i], size=size, replace=False).tolist())
        for i, size in enumerate((4, 8, 6, 7, 8, 4, 7, 8, 4))
    ]
    found = resolve(n, b, rounds, 0.6, "static", in_degrees=[len(one) for one in heard])
    f = found.each([len(one) for one in heard])
    assert sorted(set(f.tolist())) == [2, 3]
    sets = [set(one) for one in itertools.combinations(range(n), b)]
    bad = [sum(len(heard[i] & one) > f[i] for i in set(range(n)) - one) for one in sets]
    assert found.expected == pytest.approx(rounds * np.mean(bad), rel=1e-12)
    assert np.mean(np.array(bad) > 0) <= found.risk + 1e-12 <= 0.6  # here no two nodes are bad at once: equality
    assert sum(bad) > 0


def test_graphs_that_return_in_turn_are_one_chance_each():
    ring, dense = [2] * 96, [30] * 96
    one, two = (resolve(96, 1, 3000, 0.01, "static", in_degrees=x) for x in (ring, [ring, dense]))
    assert one.each([2, 30]).tolist() == two.each([2, 30]).tolist() == [1, 1]
    sparse = resolve(1000, 5, 3000, 0.02, "static", in_degrees=[12] * 1000)
    assert sparse.each([12]) == 2
    assert sparse.expected == pytest.approx(3000 * 995 * theory.malicious_among(1000, 5, 12).more_than(2))
    turns = resolve(1000, 5, 3000, 0.02, "static", in_degrees=[[12] * 1000] * 8)
    assert turns.each([12]) == 3
    assert (
        resolve(1000, 5, 1, 0.02, "static", in_degrees=[[12] * 1000] * 8).each([12]) == 2
    )  # a run of one round sees one


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"s": 7},
            "aggregation.malicious = 5 of 96 nodes at risk = 0.01 in 3,000 rounds needs f = 5 with topology.s = 7, and of 8 models at most 3 can be"
            " tolerated; use s = 10, or f = 3 itself and expect 14.6 bad node-rounds",
        ),
        (
            {"kind": "el-local", "s": 7},
            "aggregation.malicious = 5 of 96 nodes at risk = 0.01 in 3,000 rounds lets only 16% of the node-rounds of el-local with topology.s = 7"
            " aggregate, the others receive too few models for their f; use s = 10 (55%), or el-oracle with s = 10 (all of them)",
        ),
        (
            {"kind": "static", "in_degrees": [2] * 90 + [8] * 6},
            "aggregation.malicious = 5 of 96 nodes at risk = 0.01 in 3,000 rounds needs f = 2 at nodes that receive 2 models, which tolerate 1 (94% of"
            " the nodes could never aggregate); use a graph on which every node receives 6, or el-oracle with s = 10",
        ),
        ({"malicious": 48, "s": 7}, "aggregation.malicious = 48 must be less than half of nodes = 96: no rule"),
        ({"malicious": -1, "s": 7}, "aggregation.malicious = -1 must be at least 0"),
        ({"risk": 0, "s": 7}, "aggregation.risk = 0 must be greater than 0"),
        ({"risk": 1.0, "s": 7}, "risk = 1 must be less than 1"),
        ({"rounds": 0, "s": 7}, "rounds = 0 must be at least 1"),
        ({}, "s = None"),
        ({"kind": "static"}, "in_degrees = None"),
        ({"kind": "static", "in_degrees": [4] * 95}, "in_degrees = 95 numbers must be one for each of the 96 nodes"),
        ({"kind": "ring", "s": 2}, "kind = 'ring' is not known"),
    ],
)
def test_a_promise_that_cannot_be_kept_is_refused_in_one_line(settings, message):
    given = {"nodes": 96, "malicious": 5, "rounds": 3000, "risk": 0.01, "kind": "pull"} | settings
    with pytest.raises(BadInput) as refused:
        resolve(**given)
    assert str(refused.value).startswith(message)
    assert "\n" not in str(refused.value)


def test_nobody_malicious_needs_nothing():
    for kind, how in (("pull", {"s": 7}), ("el-local", {"s": 7}), ("static", {"in_degrees": [2] * 96})):
        found = resolve(96, 0, 3000, 0.01, kind, **how)
        assert (found.risk, found.expected, found.each([2, 9]).tolist()) == (0, 0, [0, 0])
        assert found.aggregating == pytest.approx(1)


def test_an_f_given_by_hand_is_told_what_it_risks():
    assert caution(96, 5, 3000, 3, "pull", s=7) == (
        "a node can receive more than f = 3 malicious models with topology.s = 7, if 5 of 96 nodes are malicious: expect 14.6 bad node-rounds in 3,000"
        " rounds; s = 10 with f = 5 has none at risk 0.01"
    )
    assert "expect 37.9 bad node-rounds in 3,000 rounds; s = 10 of el-oracle" in caution(
        96, 5, 3000, 3, "el-local", s=7
    )
    assert caution(96, 5, 3000, 5, "pull", s=7) is None
    assert "in 3,000 rounds; s = 18 of el-oracle with f = 9" in caution(96, 10, 3000, 1, "static", in_degrees=[4] * 96)
    assert caution(96, 1, 3000, 1, "static", in_degrees=[4] * 96) is None
    assert caution(96, 50, 3000, 3, "pull", s=7).endswith("bad node-rounds in 3,000 rounds")
    expected = 91 * 3000 * theory.malicious_law(96, 5, 7).more_than(3)
    assert theory.expected_bad(96, 5, 7, 3000, 3) == pytest.approx(expected)

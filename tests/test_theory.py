"""The theory's numbers: published values, exact ones in high precision, and their properties."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epidemic import theory
from epidemic.core.errors import BadInput
from epidemic.core.rng import Streams
from epidemic.mixing import spectrum, weights
from epidemic.theory import Problem
from epidemic.topology import Complete, Exponential, Ring, Torus, ceil_log2

UNIT = Problem()

TABLE = [  # n, s, alpha, beta, v, v / (n - 1)
    (96, 4, 0.1915789474, 0.2354516333, 0.03991383, 4.20146e-4),
    (96, 7, 0.1157894737, 0.1322388303, 0.01507049, 1.58637e-4),
    (96, 14, 0.0568421053, 0.0609022395, 0.00347899, 3.66210e-5),
    (100, 7, 0.1161616162, 0.1326627718, 0.01516064, 1.53138e-4),
    (1000, 10, 0.0899990900, 0.0989947253, 0.00882479, 8.83362e-6),
    (10000, 13, 0.0713357050, 0.0768228947, 0.00544814, 5.44869e-7),
    (10000, 14, 0.0665733240, 0.0713285027, 0.00472474, 4.72521e-7),
    (96, 1, 0.4947368421, 0.6273909319, 0.09623074, 1.01296e-3),
    (96, 8, 0.1017543860, 0.1144468127, 0.01155393, 1.21620e-4),
]


@pytest.mark.parametrize(("n", "s", "alpha", "beta", "v", "drift"), TABLE)
def test_contraction_constants(n, s, alpha, beta, v, drift):
    assert theory.alpha(n, s) == pytest.approx(alpha, abs=6e-11)
    assert theory.beta(n, s) == pytest.approx(beta, abs=6e-11)
    assert theory.column_variance(n, s) == pytest.approx(v, abs=6e-9)
    assert theory.mean_drift(n, s) == pytest.approx(drift, rel=5e-6)


@given(st.integers(2, 500), st.data())
def test_properties_of_the_constants(n, data):
    s = data.draw(st.integers(1, n - 1))
    alpha, beta = theory.alpha(n, s), theory.beta(n, s)
    assert 0 <= alpha <= beta + 1e-15 <= 1 - 1 / math.e + 1e-12
    assert alpha <= 0.5
    assert alpha < 1 / (s + 1)
    assert beta < 1 / s
    if s == n - 1:
        assert alpha == beta == theory.mean_drift(n, s) == 0
    else:
        assert theory.alpha(n, s + 1) < alpha < theory.alpha(n + 1, s)
        assert theory.beta(n, s + 1) < beta < theory.beta(n + 1, s)
        assert 0 < theory.mean_drift(n, s) <= 0.197 * beta / n  # the paper's bound has slack of five


def test_eta_of_the_in_degree_law_is_alpha_or_beta():
    law = theory.indegree(96, 7)
    assert theory.contraction_from_indegree(law.counts, law.probability, 96) == pytest.approx(
        theory.beta(96, 7), abs=1e-14
    )
    constant = theory.contraction_from_indegree(np.array([7.0]), np.array([1.0]), 96)
    assert constant == pytest.approx(theory.alpha(96, 7), abs=1e-15)


def _column_variance_in_high_precision(n, s):
    """The published formula E[c^2] - 1 in 50 digits, integrated around its peak."""
    with mpmath.workdps(50):
        n = mpmath.mpf(n)
        q, q2 = s / (n - 1), s * (s - 1) / ((n - 1) * (n - 2))
        q1 = q - q2
        q0 = 1 - 2 * q1 - q2
        reach = min(mpmath.mpf(1), mpmath.mpf(100) / s)
        nodes = [(reach * (1 - x) / 2, reach * w / 2) for x, w in _gauss_legendre(120)]  # distance to 1

        def inverse_square(trials, shift):  # E[(shift + B)^-2]
            return mpmath.quad(
                lambda a: -mpmath.log(1 - a) * (1 - a) ** (shift - 1) * (1 - q * a) ** trials,
                [0, reach / 50, reach / 10, reach / 4, reach / 2, reach],
            )

        total = inverse_square(n - 1, 1) + s * inverse_square(n - 2, 2) - 1
        for a, wa in nodes:
            for b, wb in nodes:
                u, w = 1 - a, 1 - b
                g = q0 + q1 * (u + w) + q2 * u * w
                total += wa * wb * (
                    2 * s * w * (1 - q + q * u) * g ** (n - 2)
                    + s * (s - 1) * u * w * (1 - q + q * u) * (1 - q + q * w) * g ** (n - 3)
                )  # fmt: skip
        return total


def _gauss_legendre(order):
    for i in range(order):
        x = mpmath.cos(mpmath.pi * (i + mpmath.mpf(3) / 4) / (order + mpmath.mpf(1) / 2))
        for _ in range(7):
            before, here = mpmath.mpf(1), x
            for k in range(2, order + 1):
                before, here = here, ((2 * k - 1) * x * here - (k - 1) * before) / k
            slope = order * (x * here - before) / (x * x - 1)
            x -= here / slope
        yield x, 2 / ((1 - x * x) * slope**2)


@pytest.mark.parametrize(
    ("n", "s"), [(150, 148), (400, 81), (1100, 1000), (100_000, 50), (10**7, 1000), (10**7, 1), (10**7, 17)]
)
def test_mean_drift_is_accurate_to_1e_8(n, s):
    exact = _column_variance_in_high_precision(n, s)
    assert abs(theory.column_variance(n, s) / exact - 1) < 1e-8


def test_mean_drift_falls_like_one_over_n_s_squared():
    for s, value in ((7, 0.848), (10, 0.895), (40, 0.956)):
        assert s**2 * theory.column_variance(4000, s) == pytest.approx(value, abs=6e-4)


@pytest.mark.parametrize(
    ("n", "s", "sd", "empty", "p95", "p99", "p999", "quiet"),
    [
        (96, 7, 2.546, 6.95e-4, 11, 13, 16, 18),
        (100, 7, 2.551, 7.03e-4, 11, 13, 16, 18),
        (1000, 10, 3.146, 4.32e-5, 15, 18, 21, 26),
        (10000, 13, 3.603, 2.24e-6, 19, 22, 25, 33),
        (10000, 14, 3.739, 8.23e-7, 20, 23, 27, 35),
    ],
)
def test_in_degree_law(n, s, sd, empty, p95, p99, p999, quiet):
    law = theory.indegree(n, s)
    assert math.fsum(law.probability) == pytest.approx(1, abs=1e-14)
    assert law.mean == pytest.approx(s, rel=1e-12)
    assert law.sd == pytest.approx(sd, abs=6e-4)
    assert theory.p_empty_inbox(n, s) == pytest.approx(empty, rel=6e-3)
    assert law.probability[0] == pytest.approx(theory.p_empty_inbox(n, s), rel=1e-9)
    assert [law.percentile(p) for p in (0.95, 0.99, 0.999)] == [p95, p99, p999]
    assert next(k for k in range(n) if n * law.more_than(k) < 0.01) == quiet


def test_the_papers_claim_about_22_models_is_off_by_one():
    law = theory.indegree(10000, 13)
    assert law.at_most(21) == pytest.approx(0.98598, abs=5e-6)
    assert law.at_most(22) == pytest.approx(0.99242, abs=5e-6)
    wider = theory.indegree(10000, 14)
    assert [round(wider.at_most(k), 5) for k in (21, 22, 23)] == [0.97125, 0.98336, 0.99072]


def test_the_papers_rule_for_s_and_its_byte_counts():
    assert [ceil_log2(n) for n in (96, 100, 1000, 10_000)] == [7, 7, 10, 14]
    model = 4 * 89_834
    assert 3000 * 14 * model / 1e9 == pytest.approx(15.1, abs=0.05)  # GB, where the paper says GiB
    assert 3000 * 14 * model / 2**30 == pytest.approx(14.06, abs=0.005)
    assert 3000 * 4 * model / 1e9 == pytest.approx(4.3, abs=0.05)
    assert 3000 * 4 * model / 2**30 == pytest.approx(4.02, abs=0.005)
    assert 1860 * 7 * model / 2**30 == pytest.approx(4.357, abs=0.0005)


def test_in_degree_law_is_the_binomial_law():
    law = theory.indegree(30, 4)
    exact = [math.comb(29, a) * (4 / 29) ** a * (25 / 29) ** (29 - a) for a in range(30)]
    np.testing.assert_allclose(law.probability, exact, rtol=1e-12)
    assert theory.indegree(10**7, 1000).mean == pytest.approx(1000, rel=1e-11)
    assert theory.indegree(8, 7).percentile(0.5) == 7


@pytest.mark.parametrize(
    ("s", "lr_oracle", "bound_oracle", "lr_local", "bound_local"),
    [
        (4, 0.0205668125, 0.1742608816, 0.0105195803, 0.4709130939),
        (7, 0.0243253944, 0.1537590430, 0.0112043655, 0.4220501506),
        (14, 0.0308361061, 0.1300723342, 0.0117642087, 0.3748804489),
        (95, 0.05, 0.0415737865, 0.0123149814, 0.2432050903),
    ],
)
def test_step_sizes_and_bounds(s, lr_oracle, bound_oracle, lr_local, bound_local):
    assert theory.lr_oracle(96, s, 3000, UNIT) == pytest.approx(lr_oracle, abs=6e-11)
    assert theory.bound_oracle(96, s, 3000, UNIT) == pytest.approx(bound_oracle, abs=6e-11)
    assert theory.lr_local(96, s, 3000, UNIT) == pytest.approx(lr_local, abs=6e-11)
    assert theory.bound_local(96, s, 3000, UNIT) == pytest.approx(bound_local, abs=6e-11)


def test_terms_of_the_bound():
    assert theory.terms_oracle(96, 7, 3000, UNIT) == pytest.approx(
        (0.0149071198, 0.1121852565, 0.0266666667), abs=6e-11
    )
    assert theory.terms_oracle(96, 95, 3000, UNIT)[1] == 0
    assert theory.terms_local(96, 95, 3000, UNIT)[1] == 0


@given(st.integers(1, 94), st.integers(1, 10**6))
def test_bounds_fall_in_s_and_in_rounds(s, rounds):
    for bound in (theory.bound_oracle, theory.bound_local):
        assert bound(96, s + 1, rounds, UNIT) < bound(96, s, rounds, UNIT)
        assert bound(96, s, rounds + 1, UNIT) < bound(96, s, rounds, UNIT)


@given(st.integers(1, 95), st.integers(1, 10**6), *[st.floats(0.01, 100)] * 4)
def test_the_theorem_follows_from_its_general_form(s, rounds, smooth, gap, noise, het):
    """At the theorem's step size, the bound for any step size is at most the published one."""
    problem = Problem(smooth, gap, noise, het)
    lr = theory.lr_oracle(96, s, rounds, problem)
    assert theory.bound_oracle_at(96, s, rounds, problem, lr) <= theory.bound_oracle(96, s, rounds, problem) * (
        1 + 1e-12
    )
    lr = theory.lr_local(96, s, rounds, problem)
    assert theory.bound_local_tight(96, s, rounds, problem, lr) <= theory.bound_local(96, s, rounds, problem) * (
        1 + 1e-12
    )


def test_the_tight_local_bound_is_the_centralised_one_for_everybody():
    assert theory.bound_local_tight(96, 95, 3000, UNIT, 0.01) == theory.bound_oracle_at(96, 95, 3000, UNIT, 0.01)


def test_constants_of_the_proof():
    assert pytest.approx(37.133, abs=1e-3) == 800 / 100 ** (2 / 3)
    assert pytest.approx(50.397, abs=1e-3) == 2000 / 250 ** (2 / 3)
    beta = 1 - 1 / math.e
    assert 1 + 15 * beta + 500 * beta**2 <= 210.28
    assert theory.drift_bound(beta, UNIT, 0.05) / (beta * 0.05**2 * 2) == pytest.approx(428.03, abs=0.01)
    assert theory.drift_bound(0.5, UNIT, 0.05) / (0.5 * 0.05**2 * 2) == pytest.approx(200)
    assert theory.gradient_drift_bound(UNIT) == 30


def test_transient_rounds():
    oracle = [theory.transient_oracle(96, s, UNIT) for s in (4, 7, 14)]
    local = [theory.transient_local(96, s, UNIT) for s in (4, 7, 14)]
    assert oracle == pytest.approx([129888.07, 47447.338, 11434.416], rel=1e-6)
    assert local == pytest.approx([104039.88, 42636.108, 10992.947], rel=1e-6)
    assert theory.transient_local_exact(96, 7, UNIT) == pytest.approx(251, abs=0.5)


@pytest.mark.parametrize(
    ("topology", "rounds"), [(Ring(), 1.344e16), (Torus(), 9.114e9), (Exponential(), 4.990e7), (Complete(), 3.539e6)]
)
def test_transient_rounds_of_d_psgd(topology, rounds):
    p = spectrum(weights("uniform", topology.graph(96, 0, Streams(1)))).p
    assert theory.transient_dpsgd(96, p, UNIT) == pytest.approx(rounds, rel=1e-3)


@given(st.integers(1, 94), *[st.floats(0.1, 10)] * 4)
def test_at_the_transient_round_the_first_two_terms_are_equal(s, smooth, gap, noise, het):
    problem = Problem(smooth, gap, noise, het)

    def ratio(terms, rounds):  # both terms are powers of the number of rounds
        first, second, _ = terms(96, s, 1, problem)
        return (first / rounds**0.5) / (second / rounds ** (2 / 3))

    assert ratio(theory.terms_oracle, theory.transient_oracle_exact(96, s, problem)) == pytest.approx(1, abs=1e-9)
    assert ratio(theory.terms_local, theory.transient_local_exact(96, s, problem)) == pytest.approx(1, abs=1e-9)


def test_division_by_zero_means_infinity():
    silent = Problem(noise=0)
    assert theory.transient_oracle(96, 7, silent) == math.inf
    assert theory.transient_dpsgd(96, 0, UNIT) == math.inf
    assert theory.rate_dpsgd(96, 0, 100, UNIT) == math.inf
    assert theory.rate_dpsgd(96, 1, 100, UNIT) > 0
    assert theory.lr_oracle(96, 95, 10, Problem(noise=0, heterogeneity=0)) == 0.05
    assert theory.rounds_past_third_term(96, silent) == math.inf
    assert theory.rounds_past_third_term(96, Problem(noise=0.5)) == 192
    assert theory.suggested_s(Problem(noise=0.5, heterogeneity=4)) == 8


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theory.alpha(5, 5), "s = 5 must be at most nodes - 1 = 4"),
        (lambda: theory.beta(0, 1), "nodes = 0 must be at least 2"),
        (lambda: theory.beta(5, 0), "s = 0 must be at least 1"),
        (lambda: Problem(noise=-1), "noise = -1 must be at least 0"),
        (lambda: Problem(smoothness=0), "smoothness = 0 must be greater than 0"),
        (lambda: Problem(heterogeneity=math.nan), "heterogeneity = nan must be a finite number"),
        (lambda: theory.lr_local(96, 7, 0, UNIT), "rounds = 0 must be at least 1"),
        (lambda: theory.bound_oracle_at(96, 7, 10, UNIT, 0.1), "lr = 0.1 must be at most 1 / (20 L) = 0.05"),
        (lambda: theory.cap(96, 7, -1), "cap = -1 must be at least 0"),
        (lambda: theory.indegree(96, 7).percentile(1.5), "percentile = 1.5 must be at most 1"),
    ],
)
def test_the_impossible_is_refused(call, message):
    with pytest.raises(BadInput) as caught:
        call()
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("loss", "local", "oracle"),
    [
        (0, 0.132239, 0.115789), (0.05, 0.139708, 0.122438), (0.1, 0.147985, 0.129825), (0.2, 0.167522, 0.147368),
        (0.3, 0.192291, 0.169913), (0.5, 0.267410, 0.241118), (1, 1, 1),
    ],
)  # fmt: skip
def test_contraction_where_messages_are_lost(loss, local, oracle):
    assert theory.beta_with_loss(96, 7, loss) == pytest.approx(local, abs=5e-7)
    assert theory.alpha_with_loss(96, 7, loss) == pytest.approx(oracle, abs=5e-7)


def test_contraction_with_loss_is_that_without_where_nothing_is_lost():
    for n, s in ((4, 2), (10, 9), (1000, 10)):
        assert theory.beta_with_loss(n, s, 0) == pytest.approx(theory.beta(n, s), rel=1e-12)
        assert theory.alpha_with_loss(n, s, 0) == pytest.approx(theory.alpha(n, s), rel=1e-12)

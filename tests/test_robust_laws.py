"""Robust rules: what each of them does is its definition, and the laws that no liar can break."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import definitions
import epidemic as ep
from epidemic.aggregation import Heard, made
from epidemic.aggregation.distances import WIDTH
from epidemic.runtime import aggregating

RULES = {
    "trimmed-mean": lambda f: ep.TrimmedMean(f=f),
    "median": lambda f: ep.Median(),
    "meamed": lambda f: ep.MeaMed(f=f),
    "krum": lambda f: ep.Krum(f=f),
    "multi-krum": lambda f: ep.MultiKrum(f=f),
    "geometric-median": lambda f: ep.GeometricMedian(),
    "nearest": lambda f: ep.Nearest(f=f),
    "gts": lambda f: ep.GTS(f=f),
    "cs+": lambda f: ep.Clipped(f=f),
    "adaptive": lambda f: ep.Clipped(tau="adaptive", f=f),
    "ios": lambda f: ep.IOS(f=f),
    "w-msr": lambda f: ep.WMSR(f=f),
    "nnm + trimmed-mean": lambda f: ep.TrimmedMean(f=f, before="nnm"),
    "nnm + median": lambda f: ep.Median(before="nnm", f=f),
    "nnm + meamed": lambda f: ep.MeaMed(f=f, before="nnm"),
    "nnm + krum": lambda f: ep.Krum(f=f, before="nnm"),
    "nnm + multi-krum": lambda f: ep.MultiKrum(f=f, before="nnm"),
    "nnm + geometric-median": lambda f: ep.GeometricMedian(before="nnm", f=f),
}
"""All rules whose tolerance is a number; made for one."""
NAMES = tuple(RULES)
MEDIANS = ("median", "geometric-median")

DEFINITIONS = {
    "trimmed-mean": definitions.trimmed_mean,
    "median": definitions.median,
    "meamed": definitions.meamed,
    "krum": definitions.krum,
    "multi-krum": definitions.multi_krum,
    "nearest": definitions.nearest,
    "gts": definitions.gts,
    "ios": definitions.ios,
    "w-msr": definitions.w_msr,
    "nnm + trimmed-mean": lambda rows, f: definitions.trimmed_mean(definitions.nnm(rows, f), f),
    "nnm + median": lambda rows, f: definitions.median(definitions.nnm(rows, f)),
}


def result(rule, rows, weights=None):
    """What a host makes of these inputs.   # (m, d) -> (d,)"""
    m = len(rows)
    share = np.full(m, 1 / m) if weights is None else np.asarray(weights)
    if rule.linear:
        return (torch.from_numpy(share).to(rows.dtype)[:, None] * rows).sum(0)
    heard = Heard(rows[0], rows[1:], np.arange(1, m), share, np.zeros(m - 1, dtype=np.int64))
    out = torch.empty_like(rows[0])
    aggregating.aggregate_one(made(rule), rows[0], list(rows[1:]), heard, out)
    return out


@st.composite
def sizes(draw, fewest=3, smallest_f=1):
    """How many inputs, and how many of them may be anything."""
    m = draw(st.integers(fewest, 11))
    return m, draw(st.integers(smallest_f, (m - 1) // 2))


seeds = st.integers(0, 2**31)
names = st.sampled_from(NAMES)


def normal(m, seed, d=3):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((m, d)))


# -- definitions ------------------------------------------------------------------------------------------------------


@given(st.sampled_from(sorted(DEFINITIONS)), sizes(1, 0), seeds, st.sampled_from([2, 1000]))
def test_rules_do_what_their_definitions_say_with_ties_and_without(name, size, seed, spread):
    (m, f), rng = size, np.random.default_rng(seed)
    rows = rng.integers(-spread, spread + 1, (m, int(rng.integers(1, 4)))).tolist()
    expected = DEFINITIONS[name](definitions.fractions(rows), f)
    found = result(RULES[name](f), torch.tensor(rows, dtype=torch.float64))
    np.testing.assert_allclose(found, np.array(expected, dtype=float), rtol=1e-13, atol=1e-10)


@given(sizes(), seeds)
def test_clipping_at_the_2f_th_distance_does_what_its_definition_says(size, seed):
    (m, f), rng = size, np.random.default_rng(seed)
    rows = rng.integers(-9, 10, (m, 1)).tolist()
    expected = definitions.cs_plus(definitions.fractions(rows), f)
    found = result(ep.Clipped(f=f), torch.tensor(rows, dtype=torch.float64))
    np.testing.assert_allclose(found, np.array(expected, dtype=float), rtol=1e-13, atol=1e-12)


def test_weights_of_clipping_count_in_its_length():
    """Where the farthest two have more than twice the weight of the heaviest, the second is enough."""
    distances, weights = np.array([1.0, 2.0, 3.0, 4.0]), np.array([0.05, 0.05, 0.2, 0.2])
    assert ep.Clipped(f=1).length(distances, weights) == 3.0
    assert ep.Clipped(f=1).length(distances, weights[::-1].copy()) == 1.0  # 0.05 + 0.05 + 0.2 < 0.4
    assert ep.Clipped(f=2).length(distances, weights) == 0.0
    assert ep.Clipped(f=2).length(distances, np.full(4, 0.1)) == 1.0
    assert ep.Clipped(tau="adaptive", f=1).length(distances, weights) == pytest.approx(
        np.sqrt((0.05 * 1 + 0.05 * 4 + 0.2 * 9) / 0.2)
    )


@pytest.mark.parametrize("rule", [ep.GTS(f=1), ep.Clipped(tau=1.0)])
def test_gossip_rules_use_the_weights(rule):
    rows = torch.tensor([[0.0], [0.5], [100.0]])
    assert result(rule, rows, [0.5, 0.3, 0.2]).item() == pytest.approx(0.15 if isinstance(rule, ep.GTS) else 0.35)


# -- laws -------------------------------------------------------------------------------------------------------------


@given(names, sizes(), seeds)
def test_the_order_of_what_is_received_changes_nothing(name, size, seed):
    (m, f), rng = size, np.random.default_rng(seed)
    rows = normal(m, seed)
    order = [0, *(1 + rng.permutation(m - 1)).tolist()]
    rule = RULES[name](f)
    torch.testing.assert_close(result(rule, rows[order]), result(rule, rows), rtol=1e-9, atol=1e-9)


@given(names, sizes(), seeds, st.integers(-100, 100), st.sampled_from([2.0**-6, 3.0, 100.0]))
def test_rules_move_and_grow_with_their_inputs(name, size, seed, shift, scale):
    m, f = size
    rows, rule = normal(m, seed), RULES[name](f)
    torch.testing.assert_close(
        result(rule, rows * scale + shift), result(rule, rows) * scale + shift, rtol=1e-7, atol=1e-7 * scale
    )


@given(st.sampled_from([ep.Clipped(tau=0.7), ep.Centred(tau=0.7, steps=2)]), sizes(), seeds)
def test_rules_with_a_given_length_move_with_their_inputs_and_grow_with_them_and_it(rule, size, seed):
    rows = normal(size[0], seed)
    torch.testing.assert_close(result(rule, rows + 5), result(rule, rows) + 5, rtol=1e-9, atol=1e-9)
    grown = rule.replace(tau=1.4)
    torch.testing.assert_close(result(grown, rows * 2), result(rule, rows) * 2, rtol=1e-9, atol=1e-9)


@given(names, sizes(), seeds)
def test_equal_inputs_give_that_input(name, size, seed):
    m, f = size
    alike = normal(1, seed).expand(m, -1)
    torch.testing.assert_close(result(RULES[name](f), alike), alike[0], rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", NAMES)
def test_where_nobody_is_tolerated_every_rule_but_medians_and_krum_is_the_mean(name):
    assert RULES[name](0).linear == (name not in (*MEDIANS, "krum"))
    if name in (*MEDIANS, "w-msr", "krum"):
        return
    rows = normal(2, 1)  # of which none can be left out
    less = RULES[name](1).replace(few="less")
    torch.testing.assert_close(result(less, rows), rows.mean(0))


@given(st.sampled_from(["trimmed-mean", "median", "w-msr"]), sizes(), seeds, st.sampled_from([1.0, 10.0, 1e30]))
def test_rules_of_coordinates_stay_among_the_honest_values(name, size, seed, wild):
    m, f = size
    rows = normal(m, seed)
    rows[m - f :] = normal(f, seed + 1) * wild
    found, honest = result(RULES[name](f), rows), rows[: m - f]
    assert (found >= honest.min(0).values - 1e-9).all()
    assert (found <= honest.max(0).values + 1e-9).all()


@given(st.sampled_from(["nearest", "gts"]), sizes(), seeds, st.sampled_from([0.1, 1.0, 3.0, 1e30]))
def test_rules_around_the_own_model_stay_within_the_farthest_honest_one(name, size, seed, wild):
    m, f = size
    rows = normal(m, seed)
    rows[m - f :] = normal(f, seed + 1) * wild
    farthest = (rows[1 : m - f] - rows[0]).norm(dim=1).max() if m - f > 1 else torch.tensor(0.0)
    assert (result(RULES[name](f), rows) - rows[0]).norm() <= farthest * (1 + 1e-9)


@given(st.sampled_from([0.1, 1.0, 5.0]), sizes(), seeds, st.sampled_from([0.1, 1.0, 1e30]))
def test_clipping_moves_the_own_model_by_no_more_than_its_length(tau, size, seed, wild):
    rows = normal(size[0], seed)
    rows[1:] *= wild
    assert (result(ep.Clipped(tau=tau), rows) - rows[0]).norm() <= tau * (1 + 1e-9)
    assert (result(ep.Centred(tau=tau, steps=3), rows) - rows[0]).norm() <= 3 * tau * (1 + 1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("m", "f"), [(3, 1), (8, 3)])
def test_liars_far_away_move_the_mean_without_bound_and_no_rule(name, m, f, dtype):
    rows, rule = normal(m, 4).to(dtype), RULES[name](f)
    honest = rows[: m - f]
    reach = 20 * (honest - honest.mean(0)).norm(dim=1).max()
    for far in (1e2, 1e10, 1e25, 1e37):
        for together in (True, False):
            rows[m - f :] = far if together else far * normal(f, 9).to(dtype)
            assert (result(rule, rows) - honest.mean(0)).norm() < reach
            assert (rows.mean(0) - honest.mean(0)).norm() > 2


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("cs+", "adaptive")])
@pytest.mark.parametrize("f", [1, 2, 3])
def test_one_more_than_f_of_2f_plus_1_who_agree_move_every_rule(name, f):
    rows = torch.zeros(2 * f + 1, 2, dtype=torch.float64)
    rows[f:] = 1e6
    assert result(RULES[name](f), rows).norm() > 1e5


@pytest.mark.parametrize("tau", ["cs+", "adaptive"])
def test_clipping_is_moved_by_one_honest_distance_even_by_more_liars_than_f_as_long_as_one_is_honest(tau):
    """Its length is the smallest distance at m = 2f + 1, which is an honest one's but for f = 1."""
    rows = torch.tensor([[0.0], [1.0], [1e6], [1e6], [1e6]], dtype=torch.float64)
    moved = result(ep.Clipped(tau=tau, f=2), rows).item()
    assert moved < 1 if tau == "cs+" else moved > 1e5
    assert result(ep.Clipped(tau=tau, f=1), rows[[0, 2, 3]]).item() > 1e5


# -- coefficients -----------------------------------------------------------------------------------------------------

SIZES = [(5, 1), (5, 2), (8, 1), (8, 2), (8, 3), (11, 3), (16, 7)]


def bound(name, m, f):
    """Kappa that no input may exceed: exact for the trimmed mean and the median, as published for others."""
    r = f / (m - 2 * f)
    of = {
        "trimmed-mean": r,
        "median": (m - 1) / (m - 2 * f + 1) if m % 2 else (m - 2) / (m - 2 * f + 2),
        "geometric-median": 4 * (1 + r) ** 2,
        "krum": 6 * (1 + r),
    }
    published = {**of, "trimmed-mean": 6 * r * (1 + r), "median": 4 * (1 + r) ** 2}
    if name.startswith("nnm + "):
        return 8 * f / (m - f) * (published[name[6:]] + 1)
    return of[name]


def drawn(rng, m, f):
    """Rows of which the last f lie: near, far, together, or among a cluster of honest ones."""
    rows = rng.standard_normal((m, 2)) * 10 ** rng.uniform(-1, 1, (m, 1))
    kind = rng.integers(4)
    if kind == 0:
        rows[m - f :] = rng.standard_normal(2) * 10 ** rng.uniform(-1, 2)
    elif kind == 1:
        rows[: m - 2 * f] = rows[0]
        rows[m - f :] = rng.standard_normal(2)
    elif kind == 2:
        rows = rng.integers(0, 2, (m, 2)).astype(float)
    return torch.from_numpy(rows)


@pytest.mark.parametrize(("m", "f"), SIZES)
@pytest.mark.parametrize(
    "name",
    ["trimmed-mean", "median", "geometric-median", "krum", "nnm + trimmed-mean", "nnm + median", "nnm + krum"],
)
def test_the_coefficient_is_never_exceeded(name, m, f):
    """The squared distance to the mean of any m - f inputs is at most kappa times their variance."""
    rng, rule, kappa = np.random.default_rng(m * 100 + f), RULES[name](f), bound(name, m, f)
    for _ in range(40):
        rows = drawn(rng, m, f)
        found = result(rule, rows)
        for some in [np.arange(m - f), *(rng.permutation(m)[: m - f] for _ in range(4))]:
            honest = rows[some]
            error = ((found - honest.mean(0)) ** 2).sum()
            assert error <= kappa * honest.var(0, unbiased=False).sum() * (1 + 1e-6) + 1e-9


@pytest.mark.parametrize(("m", "f"), SIZES)
def test_the_coefficient_of_the_median_is_reached(m, f):
    """By the smaller half of the honest at 0 and all others at 1, the honest beyond the middle as far as they pull the mean least."""
    low = (m - 1) // 2
    rows = torch.ones(m, 1, dtype=torch.float64)
    rows[:low] = 0
    honest = rows[: m - f]
    kappa = float((result(ep.Median(), rows) - honest.mean(0)) ** 2 / honest.var(0, unbiased=False))
    expected = Fraction(m - 1, m - 2 * f + 1) if m % 2 else Fraction(m - 2, m - 2 * f + 2)
    assert kappa == pytest.approx(float(expected))


@pytest.mark.parametrize(("m", "f"), [(8, 1), (8, 2), (8, 3), (16, 5), (20, 9)])
@pytest.mark.parametrize(("name", "rho"), [("cs+", 2), ("gts", 4)])
def test_the_coefficient_of_robust_sums_is_never_exceeded(name, rho, m, f):
    """The squared error of the sum of honest differences is at most rho beta times the sum of their squares."""
    rng, rule = np.random.default_rng(m * 100 + f), RULES[name](f)
    for _ in range(200):
        rows = drawn(rng, m, f)
        z = rows[1 : m - f] - rows[0]
        error = ((result(rule, rows) - rows[0] - z.sum(0) / m) ** 2).sum()
        assert error <= rho * f / m * (z**2).sum() / m * (1 + 1e-9) + 1e-12


# -- long models ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_long_models_that_are_close_together_are_told_apart_in_single_precision(name):
    """More than two blocks of columns, far from 0."""
    rng = np.random.default_rng(3)
    middle = rng.standard_normal(2 * WIDTH + 100)
    rows = torch.from_numpy(middle + 1e-3 * rng.standard_normal((9, len(middle))) * np.linspace(1, 2, 9)[:, None])
    rule = RULES[name](3)
    single = rows.float()
    torch.testing.assert_close(result(rule, single).double(), result(rule, single.double()), rtol=3e-7, atol=3e-7)


@pytest.mark.parametrize("m", [8, 33])
def test_threads_inside_change_no_bit(m):
    rows = normal(m, 1, WIDTH + 77).float()
    before = torch.get_num_threads()
    try:
        for name in NAMES:
            found = []
            for threads in (1, 4):
                torch.set_num_threads(threads)
                found.append(result(RULES[name](3), rows))
            assert torch.equal(*found), name
    finally:
        torch.set_num_threads(before)


# -- what did not come, or cannot be meant ----------------------------------------------------------------------------


@given(names, sizes(), seeds, st.sampled_from([float("nan"), float("inf"), float("-inf")]))
def test_what_is_not_finite_counts_as_not_received(name, size, seed, wild):
    m, f = size
    rows, rule = normal(m, seed), RULES[name](f)
    if rule.linear:
        return
    worse = torch.cat([rows, rows[1:2]])
    worse[-1, 1] = wild
    assert torch.equal(result(rule, worse), result(rule, rows))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("m", [1, 2, 3, 4])
def test_a_node_with_too_few_inputs_keeps_its_own_or_tolerates_fewer(name, m):
    rule, rows = RULES[name](2), normal(m, 7)
    if name not in (*MEDIANS, "w-msr"):
        assert rule.fewest == 5
        assert torch.equal(result(rule, rows), rows[0])
        less = rule.replace(few="less")
        assert less.fewest == 1
        torch.testing.assert_close(result(less, rows), result(RULES[name]((m - 1) // 2), rows), rtol=1e-12, atol=1e-12)
    assert torch.isfinite(result(rule, rows)).all()

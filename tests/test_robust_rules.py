"""Robust rules: worked examples, their definitions in fractions, and the laws that they keep."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

import definitions
import epidemic as ep
from epidemic.aggregation import ByDistances, ByDistancesToOwn, Heard, made
from epidemic.aggregation.distances import gram_of, squared_distances, squared_to_own
from epidemic.aggregation.geometric_median import steps_of
from epidemic.aggregation.krum import scores
from epidemic.aggregation.nnm import mixing_of
from epidemic.runtime import aggregating

F = Fraction


def tensor(rows):
    return torch.tensor([[float(x) for x in row] for row in rows], dtype=torch.float64)


def result(rule, rows, weights=None):
    """What a host makes of these inputs.   # (m, d) -> (d,)"""
    m = len(rows)
    share = np.full(m, 1 / m) if weights is None else np.asarray(weights)
    heard = Heard(rows[0], rows[1:], np.arange(1, m), share, np.zeros(m - 1, dtype=np.int64))
    if rule.linear:
        return (torch.from_numpy(share).to(rows.dtype)[:, None] * rows).sum(0)
    out = torch.empty_like(rows[0])
    aggregating.aggregate_one(made(rule), rows[0], list(rows[1:]), heard, out)
    return out


def exact(rule, rows):
    """The same in fractions, from the coefficients that a rule by distances finds."""
    own, *received = tensor(rows).unbind()
    if isinstance(rule, ByDistances):
        found = rule.coefficients(gram_of(own, received))
    else:
        found = rule.coefficients(squared_to_own(own, received), np.full(len(rows), 1 / len(rows)))
    shares = [F(share).limit_denominator(10**7) for share in found.tolist()]
    assert max(abs(float(a) - b) for a, b in zip(shares, found.tolist(), strict=True)) < 1e-14
    return [sum(s * x for s, x in zip(shares, column, strict=True)) for column in zip(*rows, strict=True)]


# -- worked examples --------------------------------------------------------------------------------------------------

A = [[1], [2], [3], [4], [100]]  # f = 1
B = [[0, 0], [3, 4], [4, -3], [-6, 8], [5, 12], [-60, -80]]  # f = 1
D = [[0, 0], [3, 4], [-4, 3], [6, -8], [5, 12], [8, 6], [8, 6]]  # f = 2

WORKED = {
    "median": (ep.Median, [3], [F(3, 2), 2], [5, 4]),
    "trimmed-mean": (ep.TrimmedMean, [3], [F(1, 4), F(9, 4)], [F(14, 3), F(13, 3)]),
    "meamed": (ep.MeaMed, [F(5, 2)], [F(6, 5), F(21, 5)], [6, F(19, 5)]),
    "krum": (ep.Krum, [2], [3, 4], [3, 4]),
    "multi-krum": (ep.MultiKrum, [F(5, 2)], [F(6, 5), F(21, 5)], [F(24, 5), F(28, 5)]),
    "nearest": (ep.Nearest, [F(5, 2)], [F(6, 5), F(21, 5)], [F(13, 5), 1]),
    "gts": (ep.GTS, [F(11, 5)], [1, F(7, 2)], [F(13, 7), F(5, 7)]),
    "cs+": (ep.Clipped, [F(14, 5)], [F(-3, 10), F(53, 30)], [F(323, 91), F(263, 91)]),
    "ios": (ep.IOS, [F(5, 2)], [F(6, 5), F(21, 5)], [F(24, 5), F(28, 5)]),
    "w-msr": (ep.WMSR, [F(5, 2)], [F(1, 4), F(9, 4)], [F(7, 2), F(13, 4)]),
    "nnm + trimmed-mean": (
        lambda f: ep.TrimmedMean(f=f, before="nnm"),
        [F(5, 2)],
        [F(6, 5), F(21, 5)],
        [F(59, 15), F(22, 5)],
    ),
    "nnm + median": (lambda f: ep.Median(before="nnm", f=f), [F(5, 2)], [F(6, 5), F(21, 5)], [4, F(19, 5)]),
}
DEFINITIONS = {
    "median": definitions.median,
    "trimmed-mean": definitions.trimmed_mean,
    "meamed": definitions.meamed,
    "krum": definitions.krum,
    "multi-krum": definitions.multi_krum,
    "nearest": definitions.nearest,
    "gts": definitions.gts,
    "cs+": definitions.cs_plus,
    "ios": definitions.ios,
    "w-msr": definitions.w_msr,
    "nnm + trimmed-mean": lambda rows, f: definitions.trimmed_mean(definitions.nnm(rows, f), f),
    "nnm + median": lambda rows, f: definitions.median(definitions.nnm(rows, f)),
}


def of(name, f):
    """The rule of this name."""
    make = WORKED[name][0]
    return make() if make is ep.Median else make(f=f)


@pytest.mark.parametrize("name", WORKED)
@pytest.mark.parametrize(("place", "rows", "f"), [(1, A, 1), (2, B, 1), (3, D, 2)], ids=["A", "B", "D"])
def test_worked_examples_are_exact(name, place, rows, f):
    rule, expected = of(name, f), WORKED[name][place]
    assert DEFINITIONS[name](definitions.fractions(rows), f) == expected
    if isinstance(rule, ByDistances | ByDistancesToOwn):
        assert exact(rule, rows) == expected
    torch.testing.assert_close(result(rule, tensor(rows)), tensor([expected])[0], rtol=4e-16, atol=1e-15)


def test_the_scores_of_krum_are_exact_with_either_number_of_neighbours():
    original = [
        [5, 2, 2, 5, 18625],
        [150, 143, 296, 334, 374, 30685],
        [150, 83, 228, 453, 158, 74, 74],
    ]
    later = [
        [14, 6, 6, 14, 28229],
        [319, 240, 522, 555, 600, 41710],
        [250, 133, 381, 653, 320, 174, 174],
    ]
    for rows, f, fewer, more in zip([A, B, D], [1, 1, 2], original, later, strict=True):
        own, *received = tensor(rows).unbind()
        found = squared_distances(gram_of(own, received))
        m = len(rows)
        assert (
            scores(found, m - f - 2).tolist()
            == fewer
            == definitions.krum_scores(definitions.fractions(rows), m - f - 2)
        )
        assert scores(found, m - f - 1).tolist() == more
    assert np.argmin(original[2]) == 5  # the original takes one of two colluders


@pytest.mark.parametrize(
    ("rows", "f", "mixed"),
    [
        (A, 1, [[F(5, 2)]] * 4 + [[F(109, 4)]]),
        (B, 1, [[F(6, 5), F(21, 5)]] * 5 + [[F(-59, 5), F(-71, 5)]]),
        (
            D,
            2,
            [[F(13, 5), 1], [3, F(19, 5)], [3, F(19, 5)], [5, F(8, 5)], [4, F(31, 5)]] + [[F(24, 5), F(28, 5)]] * 2,
        ),
    ],
    ids=["A", "B", "D"],
)
def test_the_mixed_inputs_are_exact(rows, f, mixed):
    own, *received = tensor(rows).unbind()
    found = mixing_of(gram_of(own, received), f)
    shares = [[F(x).limit_denominator(100) for x in row] for row in found.tolist()]
    assert [
        [sum(s * x for s, x in zip(row, c, strict=True)) for c in zip(*rows, strict=True)] for row in shares
    ] == mixed
    assert definitions.nnm(definitions.fractions(rows), f) == mixed


@pytest.mark.parametrize(
    ("rule", "rows", "expected"),
    [
        (ep.Clipped(tau=5.0), A, [F(16, 5)]),
        (ep.Clipped(tau=5.0), B, [F(19, 39), F(73, 78)]),
        (ep.Clipped(tau=5.0), D, [F(155, 91), F(177, 91)]),
        (ep.Clipped(tau=2.0), A, [F(12, 5)]),  # what the 2f+1-th distance gives
        (ep.Clipped(tau=10.0), B, [F(-5, 26), F(133, 78)]),
        (ep.Centred(tau=5.0, steps=1), D, [F(155, 91), F(177, 91)]),
    ],
)
def test_clipping_at_a_given_length_is_exact(rule, rows, expected):
    assert exact(rule, rows) == expected


@pytest.mark.parametrize(
    ("rule", "rows", "expected"),
    [
        (ep.Clipped(tau="adaptive", f=1), A, [2.948331]),
        (ep.Clipped(tau="adaptive", f=1), B, [-0.786057, 1.118591]),
        (ep.Clipped(tau="adaptive", f=2), D, [3.614304, 3.045759]),
        (ep.Centred(tau=5.0, steps=3), A, [466 / 125]),
        (ep.Centred(tau=5.0, steps=3), B, [0.657977, 1.620966]),
        (ep.Centred(tau=5.0, steps=3), D, [3.230312, 3.373181]),
        (ep.GeometricMedian(), A, [3]),
        (ep.GeometricMedian(), B, [0.416191, 0.875073]),
        (ep.GeometricMedian(), D, [3.000405, 3.999893]),
    ],
)
def test_worked_examples_that_are_not_rational(rule, rows, expected):
    np.testing.assert_allclose(result(rule, tensor(rows)).numpy(), expected, rtol=0, atol=6e-7)


def test_the_length_at_which_models_are_cut():
    for rows, f, plus, adaptive in [(A, 1, 3, 14), (B, 1, 13, 319), (D, 2, 10, 125)]:
        own, *received = tensor(rows).unbind()
        distances, weights = np.sqrt(squared_to_own(own, received)), np.full(len(received), 1 / len(rows))
        assert ep.Clipped(f=f).length(distances, weights) == plus
        assert ep.Clipped(tau="adaptive", f=f).length(distances, weights) == pytest.approx(math.sqrt(adaptive))


def test_the_steps_of_the_geometric_median():
    for rows, steps in [(A, 12), (B, 51), (D, 29)]:
        own, *received = tensor(rows).unbind()
        assert steps_of(gram_of(own, received))[1] == steps


def test_the_mean_of_the_subset_of_least_diameter_is_where_the_literature_has_it():
    """It is no rule here, because it takes all subsets; its examples check the definitions."""
    for rows, f, expected in [(A, 1, [F(5, 2)]), (B, 1, [F(6, 5), F(21, 5)]), (D, 2, [3, F(19, 5)])]:
        assert definitions.mda(definitions.fractions(rows), f) == expected

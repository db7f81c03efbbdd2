"""Robust rules as their definitions have them, in fractions, as slowly as can be: what the package's rules are compared with.

Every rule takes rows, the own one first, and f, and returns one row. Ties: of inputs the first.
"""

from fractions import Fraction
from itertools import combinations


def fractions(rows):
    return [[Fraction(x) for x in row] for row in rows]


def mean(rows):
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)]


def squared(a, b):
    return sum((x - y) ** 2 for x, y in zip(a, b, strict=True))


def nearest_to(row, rows, count):
    """Places of the so many nearest, of equal ones the first."""
    return sorted(range(len(rows)), key=lambda j: (squared(rows[j], row), j))[:count]


def median(rows, f=0):
    m = len(rows)
    found = []
    for column in zip(*rows, strict=True):
        ordered = sorted(column)
        found.append((ordered[(m - 1) // 2] + ordered[m // 2]) / 2)
    return found


def trimmed_mean(rows, f):
    found = []
    for column in zip(*rows, strict=True):
        kept = sorted(column)[f : len(rows) - f]
        found.append(sum(kept) / len(kept))
    return found


def meamed(rows, f):
    found = []
    for column, middle in zip(zip(*rows, strict=True), median(rows), strict=True):
        kept = sorted(column, key=lambda x: (abs(x - middle), x))[: len(rows) - f]
        found.append(sum(kept) / len(kept))
    return found


def krum_scores(rows, others):
    """Sums of squared distances to so many nearest others."""
    return [sum(sorted(squared(a, b) for j, b in enumerate(rows) if j != i)[:others]) for i, a in enumerate(rows)]


def multi_krum(rows, f, count=None):
    scores = krum_scores(rows, len(rows) - f - 1)
    best = sorted(range(len(rows)), key=lambda i: (scores[i], i))
    return mean([rows[i] for i in best[: len(rows) - f if count is None else count]])


def krum(rows, f):
    return multi_krum(rows, f, 1)


def nnm(rows, f):
    """All mixed rows."""
    found = []
    for i, row in enumerate(rows):
        near = sorted(range(len(rows)), key=lambda j: (j != i, squared(rows[j], row), j))[: len(rows) - f]
        found.append(mean([rows[j] for j in near]))
    return found


def nearest(rows, f):
    own, *received = rows
    return mean([own, *(received[j] for j in nearest_to(own, received, len(received) - f))])


def gts(rows, f):
    own, *received = rows
    kept = [received[j] for j in nearest_to(own, received, len(received) - f)]
    return [x + sum(row[i] - x for row in kept) / len(rows) for i, x in enumerate(own)]


def clipped(rows, tau):
    """With equal weights; tau is rational, and so is every distance beyond it."""
    own, *received = rows
    found = list(own)
    for row in received:
        length = squared(row, own)
        share = Fraction(1) if length <= tau**2 else tau / root(length)
        found = [x + share * (y - z) / len(rows) for x, y, z in zip(found, row, own, strict=True)]
    return found


def cs_plus(rows, f):
    own, *received = rows
    return clipped(rows, root(sorted(squared(row, own) for row in received)[-2 * f]))


def root(square):
    """Of the square of a fraction."""
    found = Fraction(round(float(square) ** 0.5 * 840), 840).limit_denominator(840)
    assert found**2 == square
    return found


def ios(rows, f):
    left = list(range(len(rows)))
    for _ in range(f):
        middle = mean([rows[j] for j in left])
        left.remove(max(left[1:], key=lambda j: (squared(rows[j], middle), j)))
    return mean([rows[j] for j in left])


def w_msr(rows, f):
    found = []
    for own, *received in zip(*rows, strict=True):
        above = sorted(x for x in received if x > own)
        below = sorted(x for x in received if x < own)
        kept = [own, *(x for x in received if x == own), *above[: max(0, len(above) - f)], *below[f:]]
        found.append(sum(kept) / len(kept))
    return found


def mda(rows, f):
    """The first of the subsets of m - f with the least diameter."""
    subsets = combinations(range(len(rows)), len(rows) - f)
    best = min(subsets, key=lambda s: max((squared(rows[i], rows[j]) for i, j in combinations(s, 2)), default=0))
    return mean([rows[j] for j in best])

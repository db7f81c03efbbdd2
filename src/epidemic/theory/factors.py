"""Exact contraction factors of rounds in which not all nodes take part, or messages carry only a part of the model.

All are around the old mean: the expected mean squared distance to it after a round, in units of D(X). They follow from one identity: if a node's new model
has weights w over itself and a uniformly random choice of others, its factor is E[(n sum(w^2) - 1) / (n - 1)]; for uniform weights over A others and itself
that is E[(1 - A/(n-1)) / (A + 1)].
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from epidemic.core.errors import BadInput, require_choice, require_int, require_real
from epidemic.theory.contraction import (
    FloatArray,
    alpha,
    alpha_with_loss,
    beta,
    beta_with_loss,
    binomial,
    check_size,
    contraction_from_indegree,
)

Fill = Literal["count", "own"]

# -- partial participation --------------------------------------------------------------------------------------------


def alpha_aware(n: int, s: int, m: int) -> float:
    """EL-Oracle among m of n nodes, drawn anew each round: around the old mean, which is also the new one."""
    _check_active(n, s, m)
    if m * s % 2:
        raise BadInput(f"s = {s} among m = {m} active nodes: m * s must be even; use m = {m + 1 if m < n else m - 1}")
    return 1 - m / n * (1 - alpha(n, s))


def beta_aware(n: int, s: int, m: int) -> float:
    """EL-Local among m of n nodes, drawn anew each round."""
    _check_active(n, s, m)
    return 1 - m / n * (1 - contraction_from_indegree(*binomial(m - 1, s, m - 1 - s), n))


def alpha_blind(n: int, s: int, p: float) -> float:
    """EL-Oracle among all nodes, each taking part with probability p; messages to the others are lost."""
    require_real("p", p, 0, 1)
    return 1 - p * (1 - alpha_with_loss(n, s, 1 - p))


def beta_blind(n: int, s: int, p: float) -> float:
    """EL-Local among all nodes, each taking part with probability p; messages to the others, a share 1 - p, are lost."""
    require_real("p", p, 0, 1)
    return 1 - p * (1 - beta_with_loss(n, s, 1 - p))


def alpha_blind_of(n: int, s: int, m: int) -> float:
    """EL-Oracle among all nodes, of which exactly m take part; messages to the others are lost."""
    check_size(n, s)
    require_int("m", m, 1, n)
    heard = range(max(0, s - (n - m)), min(s, m - 1) + 1)  # of the s neighbours of an active node, those who are active
    chance = [math.comb(m - 1, a) * math.comb(n - m, s - a) / math.comb(n - 1, s) for a in heard]
    counts = np.array(heard, dtype=np.float64)
    return 1 - m / n * (1 - contraction_from_indegree(counts, np.array(chance), n))


def beta_blind_of(n: int, s: int, m: int) -> float:
    """EL-Local among all nodes, of which exactly m take part; of their messages (n - m) / (n - 1) are lost."""
    check_size(n, s)
    require_int("m", m, 1, n)
    return 1 - m / n * (1 - contraction_from_indegree(*binomial(m - 1, s, n - 1 - s), n))


def _check_active(n: int, s: int, m: int) -> None:
    check_size(n, s)
    require_int("m", m, 2, n)
    if s > m - 1:
        raise BadInput(f"s = {s} must be at most m - 1 = {m - 1}, the other active nodes")


# -- masks ------------------------------------------------------------------------------------------------------------


def alpha_common_mask(n: int, s: int, phi: float) -> float:
    """EL-Oracle whose messages carry a share phi of the coordinates, in each round the same for all senders."""
    require_real("phi", phi, 0, 1)
    return 1 - phi * (1 - alpha(n, s))


def beta_common_mask(n: int, s: int, phi: float) -> float:
    """EL-Local whose messages carry a share phi of the coordinates, in each round the same for all senders."""
    require_real("phi", phi, 0, 1)
    return 1 - phi * (1 - beta(n, s))


def alpha_masked(n: int, s: int, phi: float, fill: Fill = "count") -> float:
    """EL-Oracle whose messages carry a random share phi of the coordinates, drawn by each sender for itself.

    `fill`: what a coordinate that a message lacks counts as. "count": nothing, the average is over the messages that have it.
    "own": the receiver's own value, so that weights stay 1 / (A + 1).
    """
    require_real("phi", phi, 0, 1)
    require_choice("fill", fill, ["count", "own"])
    if fill == "count":
        return alpha_with_loss(n, s, 1 - phi)
    check_size(n, s)
    return _filled(np.array([float(s)]), np.ones(1), n, phi)


def beta_masked(n: int, s: int, phi: float, fill: Fill = "count") -> float:
    """EL-Local whose messages carry a random share phi of the coordinates, drawn by each sender for itself; `fill` as above."""
    require_real("phi", phi, 0, 1)
    require_choice("fill", fill, ["count", "own"])
    if fill == "count":
        return beta_with_loss(n, s, 1 - phi)
    check_size(n, s)
    return _filled(*binomial(n - 1, s, n - 1 - s), n, phi)


def _filled(counts: FloatArray, probability: FloatArray, n: int, phi: float) -> float:
    """K ~ Bin(A, phi) of A messages have the coordinate; E[sum w^2] of (1 + A - K) / (A + 1) and K times 1 / (A + 1)."""
    own = (1 + counts * (1 - phi)) ** 2 + counts * phi * (1 - phi)
    squares = (own + counts * phi) / (counts + 1) ** 2
    return math.fsum(probability * (n * squares - 1)) / (n - 1)

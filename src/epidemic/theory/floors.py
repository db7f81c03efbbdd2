"""Two steady states that compare any schemes of mixing, and the effective number of neighbours.

Contraction alone does not rank schemes under SGD, which brings new disagreement into every round. What does is how much of it
stays, after mixing, in units of the D(X) that a round brings in:

  noise floor   X <- W_t (X + E_t), E_t fresh and independent in every node: what is left of gradient noise
  bias floor    X <- W_t (X + B), B the same in all rounds: what is left of heterogeneous data, where a node always pulls its own way.
                It depends on the direction of B: the mean over random ones, and the worst

Only differences between nodes count, so every W acts as M = Pi W with Pi = I - J (W 1 = 1, so that M = M Pi).
The effective number of neighbours is that of Vogels et al., "Beyond spectral gap", 2022.

Shapes: n nodes; matrices are (n, n) and row-stochastic.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np

from epidemic.core.errors import BadInput, require_real
from epidemic.theory.contraction import FloatArray, alpha, beta, mean_drift

DOUBLINGS = 40
"""What has not died away after 2**40 rounds never does."""

GONE = 1e-13


class Mixes(Protocol):
    """A row-stochastic matrix, whole or sparse, as far as it is needed here."""

    def __matmul__(self, x: Any) -> Any:
        """The product W @ X.   # (n, n) -> (n, n)"""
        ...


class Floors(msgspec.Struct, frozen=True):
    """What stays of the disagreement that each round brings in, per unit of it; infinite where it grows for ever."""

    noise: float  # of noise that is fresh in every round
    bias: float  # of a constant bias, mean over its directions
    bias_worst: float  # of the direction that is worst in a round


def floors_oracle(n: int, s: int) -> Floors:
    """EL-Oracle, exactly. Every direction is like every other."""
    a = alpha(n, s)
    bias = a * (1 + a) / (1 - a) ** 2
    return Floors(a / (1 - a), bias, bias)


def floors_local(n: int, s: int) -> Floors:
    """EL-Local, exactly. Every direction is like every other."""
    b = beta(n, s)
    eta = b - mean_drift(n, s)
    noise = eta / (1 - eta)
    bias = noise * (1 + b) / (1 - b)
    return Floors(noise, bias, bias)


def floors(period: Sequence[FloatArray]) -> Floors:
    """Those of matrices that come in turn, for ever; one alone is that of a static graph. All are means over the period.

    Noise: the covariance C <- M (C + Pi) M^T, whose steady state over a whole period is summed up by doubling. Bias: X = S B with
    S <- M (S + Pi), solved for the S that a period brings back to itself. Time O((period + 40) n^3).
    """
    n = len(period[0])
    pi = _projection(n)
    moves = [w - w.mean(axis=0) for w in period]
    whole, noise, bias = pi, np.zeros_like(pi), np.zeros_like(pi)
    for move in moves:
        whole, noise, bias = move @ whole, move @ (noise + pi) @ move.T, move @ (bias + pi)
    steady = _summed(whole, noise)
    if steady is None:
        return Floors(math.inf, math.inf, math.inf)
    c, s = steady, np.linalg.solve(np.eye(n) - whole, bias)
    found = np.zeros(3)
    for move in moves:
        c, s = move @ (c + pi) @ move.T, move @ (s + pi)
        directions = np.linalg.norm(s, ord=2) ** 2  # the worst of them in this round
        found += np.trace(c) / (n - 1), (s**2).sum() / (n - 1), directions
    found[found < GONE**2 * len(moves)] = 0  # exact averaging, up to rounding
    return Floors(*(found / len(moves)).tolist())


def estimated_floors(n: int, matrices: Iterable[Mixes], warm_up: int) -> Floors:
    """Those of a random sequence of matrices of n nodes, as means over the rounds after the first `warm_up` ones.

    Noise and bias are exact for the sequence that was drawn. The worst direction is the worst one on average over these rounds; that of
    a short sequence is somewhat worse than that of the law it comes from.
    """
    pi = _projection(n)
    c, s, squares = (np.zeros_like(pi) for _ in range(3))
    noise, rounds = 0.0, 0
    for t, w in enumerate(matrices):
        half = _mixed(w, c + pi)
        c, s = _mixed(w, half.T), _mixed(w, s + pi)
        if t >= warm_up:
            noise, squares, rounds = noise + float(np.trace(c)) / (n - 1), squares + s.T @ s, rounds + 1
    if not rounds:
        raise BadInput(f"warm_up = {warm_up} must be less than the number of matrices")
    squares /= rounds
    worst = float(np.linalg.eigvalsh(squares)[-1])
    return Floors(noise / rounds, float(np.trace(squares)) / (n - 1), max(worst, 0.0))


def _projection(n: int) -> FloatArray:
    """Pi, which takes the mean away."""
    if n < 2:
        raise BadInput(f"nodes = {n} must be at least 2: a single one has no disagreement")
    return np.eye(n) - 1 / n


def _mixed(w: Mixes, x: FloatArray) -> FloatArray:
    """Return Pi W X: the models after mixing, minus their mean.   # (n, d)"""
    y: FloatArray = w @ x
    y = y - y.mean(axis=0)
    return y


def _summed(move: FloatArray, first: FloatArray) -> FloatArray | None:
    """sum over k of move^k first (move^k)^T, by doubling; None if it is infinite."""
    total = first
    for _ in range(DOUBLINGS):
        if np.abs(move).max() < GONE:
            return total
        total = total + move @ total @ move.T
        move = move @ move
    return None


# -- effective number of neighbours -----------------------------------------------------------------------------------


def neighbours(period: Sequence[FloatArray], g: float) -> float:
    """n_W(g) of matrices that come in turn: of how many independent nodes x <- W (sqrt(g) x + noise) has the variance.

    g in [0, 1) says how long noise is remembered. n for exact averaging in every round, 1 for nodes on their own.
    """
    _check_memory(g)
    n = len(period[0])
    whole, first = np.eye(n), np.zeros((n, n))
    for w in period:
        whole, first = math.sqrt(g) * (w @ whole), w @ (g * first + np.eye(n)) @ w.T
    c = _summed(whole, first)
    assert c is not None, "it is forgotten at the rate g"
    variance = 0.0
    for w in period:
        c = w @ (g * c + np.eye(n)) @ w.T
        variance += float(np.trace(c)) / n
    return len(period) / ((1 - g) * variance)


def neighbours_oracle(n: int, s: int, g: float) -> float:
    """n_W(g) of EL-Oracle, in expectation over its graphs."""
    return _neighbours(n, alpha(n, s), 0.0, g)


def neighbours_local(n: int, s: int, g: float) -> float:
    """n_W(g) of EL-Local, in expectation over its graphs; the drift of the mean counts as variance."""
    drift = mean_drift(n, s)
    return _neighbours(n, beta(n, s) - drift, drift, g)


def _neighbours(n: int, eta: float, drift: float, g: float) -> float:
    """From what a round leaves of disagreement (eta) and what it puts into the mean (drift)."""
    _check_memory(g)
    fresh = 1 - 1 / n
    apart = eta * fresh / (1 - g * eta)
    mean = (1 / n + drift * (g * apart + fresh)) / (1 - g)
    return 1 / ((1 - g) * (mean + apart))


def _check_memory(g: float) -> None:
    require_real("g", g, 0)
    if g >= 1:
        raise BadInput(f"g = {g:g} must be less than 1, or noise is never forgotten")

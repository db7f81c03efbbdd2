"""The convergence theorem of Epidemic Learning: step sizes, bounds, transient rounds.

Source: de Vos et al., NeurIPS 2023 (theorem 1 and the appendix's constants). Notation as in `epidemic.theory`; division by zero means
infinity, as in the paper's minima.
"""

from __future__ import annotations

import math

import msgspec

from epidemic.core.errors import BadInput, require_int, require_real
from epidemic.theory.contraction import alpha, beta


class Problem(msgspec.Struct, frozen=True):
    """The constants of the paper's assumptions."""

    smoothness: float = 1.0  # L: every local loss is L-smooth
    initial_gap: float = 1.0  # Delta_0 >= F(x_0) - min F
    noise: float = 1.0  # sigma^2: variance of the stochastic gradients
    heterogeneity: float = 1.0  # H^2: mean squared distance of local gradients to the global one

    @property
    def constants(self) -> tuple[float, float, float, float]:
        """Return the constants L, Delta_0, sigma^2 and H^2 of the theorem, in this order."""
        return self.smoothness, self.initial_gap, self.noise, self.heterogeneity

    def __post_init__(self) -> None:
        most = 1e60  # beyond, cubes and products leave the range of floats
        require_real("smoothness", self.smoothness, above=0, high=most)
        require_real("initial-gap", self.initial_gap, above=0, high=most)
        require_real("noise", self.noise, 0, most)
        require_real("heterogeneity", self.heterogeneity, 0, most)


def _over(a: float, b: float) -> float:
    return a / b if b > 0 else math.inf


def lr_oracle(n: int, s: int, rounds: int, problem: Problem) -> float:
    """The step size of the theorem for EL-Oracle."""
    require_int("rounds", rounds, 1)
    smooth, gap, noise, het = problem.constants
    return min(
        math.sqrt(_over(n * gap, rounds * smooth * noise)),
        math.cbrt(_over(gap, 100 * rounds * alpha(n, s) * smooth**2 * (noise + het))),
        1 / (20 * smooth),
    )


def lr_local(n: int, s: int, rounds: int, problem: Problem) -> float:
    """The step size of the theorem for EL-Local."""
    require_int("rounds", rounds, 1)
    smooth, gap, noise, het = problem.constants
    b = beta(n, s)
    return min(
        math.sqrt(_over(n * gap, rounds * smooth * (211 * noise + 332 * b * het))),
        math.cbrt(_over(gap, 250 * rounds * b * smooth**2 * (noise + het))),
        1 / (20 * smooth),
    )


def terms_oracle(n: int, s: int, rounds: int, problem: Problem) -> tuple[float, float, float]:
    """The three terms of the theorem's bound for EL-Oracle."""
    require_int("rounds", rounds, 1)
    smooth, gap, noise, het = problem.constants
    return (
        8 * math.sqrt(smooth * gap * noise / (n * rounds)),
        38 * math.cbrt(alpha(n, s) * smooth**2 * gap**2 * (noise + het) / rounds**2),
        80 * smooth * gap / rounds,
    )


def terms_local(n: int, s: int, rounds: int, problem: Problem) -> tuple[float, float, float]:
    """The three terms of the theorem's bound for EL-Local."""
    require_int("rounds", rounds, 1)
    smooth, gap, noise, het = problem.constants
    b = beta(n, s)
    return (
        8 * math.sqrt(smooth * gap * (211 * noise + 332 * b * het) / (n * rounds)),
        51 * math.cbrt(b * smooth**2 * gap**2 * (noise + het) / rounds**2),
        80 * smooth * gap / rounds,
    )


def bound_oracle(n: int, s: int, rounds: int, problem: Problem) -> float:
    """Bound on the mean over nodes and rounds of E||grad F(x)||^2 with the theorem's step size, EL-Oracle."""
    return math.fsum(terms_oracle(n, s, rounds, problem))


def bound_local(n: int, s: int, rounds: int, problem: Problem) -> float:
    """Bound on the mean over nodes and rounds of E||grad F(x)||^2 with the theorem's step size, EL-Local."""
    return math.fsum(terms_local(n, s, rounds, problem))


def bound_oracle_at(n: int, s: int, rounds: int, problem: Problem, lr: float) -> float:
    """The same bound for any step size up to 1 / (20 L), EL-Oracle."""
    _check_lr(lr, problem)
    smooth, gap, noise, het = problem.constants
    drift = 400 * alpha(n, s) * smooth**2 * lr**2 * (noise + het)
    return 4 * gap / (lr * rounds) + drift + 4 * smooth * lr * noise / n


def bound_local_tight(n: int, s: int, rounds: int, problem: Problem, lr: float) -> float:
    """The same bound for any step size up to 1 / (20 L), EL-Local; at s = n - 1 it is the centralised one."""
    _check_lr(lr, problem)
    smooth, gap, noise, het = problem.constants
    b = beta(n, s)
    extra = 15 * b + 500 * b**2
    drift = 1000 * b * smooth**2 * lr**2 * (noise + het)
    return 4 * gap / (lr * rounds) + 4 * smooth * lr / n * (noise * (1 + extra) + het * extra) + drift


def drift_bound(eta: float, problem: Problem, lr: float) -> float:
    """Drift lemma: bound on (1/n^2) sum_ij E||x_i - x_j||^2 = 2 E[D(X)], eta being alpha or beta."""
    _check_lr(lr, problem)
    return 20 * (1 + 3 * eta) / (1 - eta) ** 2 * eta * lr**2 * (problem.noise + problem.heterogeneity)


def gradient_drift_bound(problem: Problem) -> float:
    """Drift lemma: bound on (1/n^2) sum_ij E||g_i - g_j||^2 for any step size up to 1 / (20 L)."""
    return 15 * (problem.noise + problem.heterogeneity)


def transient_oracle(n: int, s: int, problem: Problem) -> float:
    """Rounds until the first term of the bound dominates the second, order form (no constants), EL-Oracle."""
    smooth, gap, noise, het = problem.constants
    return _over(n**3 * alpha(n, s) ** 2 * smooth * gap * (noise + het) ** 2, noise**3)


def transient_local(n: int, s: int, problem: Problem) -> float:
    """Rounds until the first term of the bound dominates the second, order form (no constants), EL-Local."""
    smooth, gap, noise, het = problem.constants
    b = beta(n, s)
    return _over(n**3 * b**2 * smooth * gap * (noise + het) ** 2, (noise + b * het) ** 3)


def transient_oracle_exact(n: int, s: int, problem: Problem) -> float:
    """The same with the theorem's constants: here the first two terms are equal."""
    return (38 / 8) ** 6 * transient_oracle(n, s, problem)


def transient_local_exact(n: int, s: int, problem: Problem) -> float:
    """The same with the theorem's constants: here the first two terms are equal."""
    smooth, gap, noise, het = problem.constants
    b = beta(n, s)
    return _over((51 / 8) ** 6 * n**3 * b**2 * smooth * gap * (noise + het) ** 2, (211 * noise + 332 * b * het) ** 3)


def transient_dpsgd(n: int, p: float, problem: Problem) -> float:
    """Rounds until linear speed-up for D-PSGD on a matrix with E||Pi W X||^2 <= (1 - p) ||Pi X||^2, order form."""
    require_real("p", p, 0, 1)
    smooth, gap, noise, het = problem.constants
    return _over(n**3 * smooth * gap * (p * noise + het) ** 2, p**4 * noise**3)


def rounds_past_third_term(n: int, problem: Problem) -> float:
    """Rounds from which the first term of the bound dominates the third, order form: n L Delta_0 / sigma^2."""
    return _over(n * problem.smoothness * problem.initial_gap, problem.noise)


def rate_dpsgd(n: int, p: float, rounds: int, problem: Problem) -> float:
    """The reference rate of D-SGD on a matrix with parameter p, order form (no constants)."""
    require_real("p", p, 0, 1)
    smooth, gap, noise, het = problem.constants
    return (
        math.sqrt(smooth * gap * noise / (n * rounds))
        + math.cbrt(_over(smooth**2 * gap**2 * (p * noise + het), p**2 * rounds**2))
        + _over(smooth * gap, p * rounds)
    )


def suggested_s(problem: Problem) -> float:
    """The paper's guidance for EL-Local: s of about H^2 / sigma^2."""
    return _over(problem.heterogeneity, problem.noise)


def _check_lr(lr: float, problem: Problem) -> None:
    require_real("lr", lr, above=0)
    limit = 1 / (20 * problem.smoothness)
    if lr > limit * (1 + 1e-12):
        raise BadInput(f"lr = {lr:g} must be at most 1 / (20 L) = {limit:g} for the bound to hold")

"""How many malicious models a node receives in a round: exact laws of n nodes of which b are malicious.

Messages count only along the links of the round's graph, once each and with their sender's signature, and the graph does not depend on who is
malicious. Then a receiver counts at most as many malicious models as it has malicious in-neighbours, whatever these do, and that number has a law
of its own, worked out here. Silence only lowers it.

    el-oracle, pull   s of the n - 1 others, every choice equally likely: hypergeometric
    el-local          every malicious node sends to this receiver with probability q = s / (n - 1), independently: binomial
    given a messages  hypergeometric with a instead of s, in every topology that treats all nodes alike

In pull all receivers and rounds are independent, in the others all rounds are. On a graph that never changes the law is over where the
malicious nodes are, which is drawn once.

Everything is kept as logarithms, worked out from ratios of neighbours outward from the mode, so that tails of 1e-1000 are right, too.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Literal

import msgspec
import numpy as np

from epidemic.core.errors import BadInput, require_choice, require_int
from epidemic.theory.contraction import FloatArray, check_size

Kind = Literal["el-oracle", "el-local", "pull"]
NOTHING = -80.0
"""Logarithm, relative to the mode, from which on probabilities do not count in a sum of all."""
KINDS: tuple[Kind, ...] = ("el-oracle", "el-local", "pull")


class MaliciousLaw(msgspec.Struct, frozen=True):
    """The law of a number of malicious models: its least possible value, and logarithms from there on."""

    least: int
    log_probability: FloatArray  # of least, least + 1, ...
    log_tail: FloatArray  # of more than least - 1, more than least, ...; the last is of more than there can be

    @property
    def most(self) -> int:
        """The largest number that is possible."""
        return self.least + len(self.log_probability) - 1

    @property
    def mean(self) -> float:
        """The expected number of malicious models."""
        counts = np.arange(self.least, self.most + 1)
        return math.fsum(counts * np.exp(self.log_probability))

    def exactly(self, k: int) -> float:
        """Return the probability of k malicious models."""
        inside = self.least <= k <= self.most
        return math.exp(self.log_probability[k - self.least]) if inside else 0.0

    def log_more_than(self, f: int) -> float:
        """Return the logarithm of the probability of more than f malicious models; minus infinity if there cannot be."""
        return float(self.log_tail[min(max(f - self.least + 1, 0), len(self.log_tail) - 1)])

    def more_than(self, f: int) -> float:
        """Return the probability of more than f malicious models."""
        return math.exp(self.log_more_than(f))

    def least_with(self, log_limit: float) -> int:
        """Return the least f that is exceeded with at most this probability, which is given as a logarithm."""
        within = np.flatnonzero(self.log_tail <= log_limit)
        return max(int(within[0]) + self.least - 1, 0)


def check_malicious(n: int, b: int) -> None:
    """n >= 2 and 0 <= b <= n - 1: at least one node is honest."""
    require_int("nodes", n, 2)
    require_int("malicious", b, 0)
    if b > n - 1:
        raise BadInput(f"malicious = {b} must be at most nodes - 1 = {n - 1}")


def malicious_law(n: int, b: int, s: int, kind: Kind = "pull") -> MaliciousLaw:
    """The number of malicious models that an honest node receives in a round.

    Args:
        n: Number of nodes.
        b: How many of them are malicious.
        s: Messages per node and round.
        kind: The kind of topology, "el-oracle", "el-local" or "pull".

    Returns:
        The law of one node and round, before anything is lost.

    Example:
        >>> malicious_law(96, 5, 7).more_than(3)   # 5.35e-05
    """
    check_malicious(n, b)
    check_size(n, s)
    require_choice("kind", kind, KINDS)
    return _binomial(n, b, s) if kind == "el-local" else _hypergeometric(n, b, s)


def malicious_among(n: int, b: int, received: int) -> MaliciousLaw:
    """The number of malicious models among those of `received` in-neighbours, every set of which is equally likely."""
    check_malicious(n, b)
    require_int("received", received, 0, n - 1)
    return _hypergeometric(n, b, received)


@lru_cache(maxsize=256)
def _hypergeometric(n: int, b: int, a: int) -> MaliciousLaw:
    """Of a of the n - 1 others, b of whom are malicious."""
    least, most = max(0, a - (n - 1 - b)), min(a, b)
    k = np.arange(least, most, dtype=np.float64)
    ratios = (b - k) * (a - k) / ((k + 1) * (n - 1 - b - a + k + 1))
    return _from_ratios(least, np.log(ratios))


@lru_cache(maxsize=256)
def _binomial(n: int, b: int, s: int) -> MaliciousLaw:
    """Each of b independently with probability s / (n - 1)."""
    if s == n - 1:
        return _from_ratios(b, np.zeros(0))
    k = np.arange(b, dtype=np.float64)
    return _from_ratios(0, np.log((b - k) / (k + 1) * (s / (n - 1 - s))))


def _from_ratios(least: int, steps: FloatArray) -> MaliciousLaw:
    """The law with these logarithms of p(k + 1) / p(k), which fall in k."""
    mode = int(np.count_nonzero(steps > 0))
    up = np.cumsum(steps[mode:])
    down = np.cumsum(-steps[:mode][::-1])[::-1]
    log_p = np.concatenate([down, [0.0], up])
    log_p -= math.log(math.fsum(np.exp(log_p[log_p > NOTHING])))
    tail = np.logaddexp.accumulate(log_p[::-1])[::-1]
    tail[0] = 0.0
    tail = np.concatenate([tail, [-math.inf]])
    log_p.flags.writeable = tail.flags.writeable = False  # laws are remembered
    return MaliciousLaw(least, log_p, tail)


# -- without a keyed graph, and without rounds -----------------------------------------------------------------------


def no_majority(n: int, b: int, s: int, kind: Literal["flooding", "el-oracle", "el-local", "pull"]) -> float:
    """Probability that honest models, the own one included, are not more than half of what a node holds in a round.

    `flooding` is EL-Local where receivers count whatever arrives, so that every malicious node writes to everybody.
    """
    check_malicious(n, b)
    check_size(n, s)
    require_choice("kind", kind, ["flooding", *KINDS])
    if kind in ("el-oracle", "pull"):
        return malicious_law(n, b, s).more_than(s // 2)
    honest = _binomial(n, n - 1 - b, s)  # honest models received
    if kind == "flooding":
        return math.fsum(honest.exactly(x) for x in range(b))
    law = _binomial(n, b, s)
    counts = range(honest.least, min(honest.most, law.most) + 1)
    return math.fsum(honest.exactly(x) * law.more_than(x) for x in counts)


def present_without_rounds(n: int, s: int, rate: float) -> float:
    """Probability that a node that sends `rate` times as often as this one is among its last messages, in asynchronous EL.

    A receiver counts the newest message of each sender; targets are keyed by the sender and the number of its message.
    """
    check_size(n, s)
    return -math.expm1(rate * math.log1p(-s / (n - 1))) if s < n - 1 else 1.0


def law_without_rounds(n: int, b: int, s: int, rate: float = 4.0) -> MaliciousLaw:
    """Malicious models that a node holds in asynchronous EL, where malicious nodes send `rate` times as often as it does."""
    check_malicious(n, b)
    present = present_without_rounds(n, s, rate)
    if present >= 1:
        return _from_ratios(b, np.zeros(0))
    k = np.arange(b, dtype=np.float64)
    return _from_ratios(0, np.log((b - k) / (k + 1) * (present / (1 - present))))

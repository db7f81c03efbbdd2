"""`[algorithm.schedule]`: what the learning rate is multiplied with, round by round.

It depends on the number of the round alone (without rounds: on how many trainings the node has behind it), never on how many rounds a
run has: a run that is made longer keeps its past.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from epidemic.core.config import build_kind
from epidemic.core.errors import require_int, require_real
from epidemic.core.settings import Settings


class Schedule(Settings, frozen=True, kw_only=True, tag_field="kind", forbid_unknown_fields=True):
    """Base of the schedules: `warmup` rounds from lr / warmup up to lr, then by kind."""

    warmup: int = 0

    def __post_init__(self) -> None:
        require_int("algorithm.schedule.warmup", self.warmup, 0)

    def factor(self, round: int) -> float:
        """What lr is multiplied with in this round; above 0."""
        return (round + 1) / self.warmup if round < self.warmup else self.after(round - self.warmup)

    def after(self, round: int) -> float:
        """The same so many rounds after the warm-up."""
        raise NotImplementedError


class ConstantRate(Schedule, frozen=True, tag="constant"):
    """A constant learning rate, after the warm-up."""

    def after(self, round: int) -> float:
        """The factor of the learning rate after the warm-up: 1."""
        return 1.0


class StepDecay(Schedule, frozen=True, kw_only=True, tag="step"):
    """Every `rounds` rounds after the warm-up the learning rate is multiplied with `by`."""

    rounds: int
    by: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        require_int("algorithm.schedule.rounds", self.rounds, 1)
        require_real("algorithm.schedule.by", self.by, 0, 1, above=0)

    def after(self, round: int) -> float:
        """A power of it; never so small that nothing is left to divide by."""
        return max(self.by ** (round // self.rounds), LEAST)


class CosineDecay(Schedule, frozen=True, kw_only=True, tag="cosine"):
    """Within `rounds` rounds after the warm-up the learning rate falls along half a cosine to `floor` times itself, and stays there."""

    rounds: int
    floor: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        require_int("algorithm.schedule.rounds", self.rounds, 1)
        require_real("algorithm.schedule.floor", self.floor, 0, 1, above=0)

    def after(self, round: int) -> float:
        """The factor of the learning rate, from 1 down to the floor."""
        along = min(round / self.rounds, 1.0)
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * along)) / 2


LEAST = 1e-9
"""The smallest factor: some methods divide by the learning rate."""

SCHEDULES: dict[str, type[Schedule]] = {"constant": ConstantRate, "step": StepDecay, "cosine": CosineDecay}


def schedule_from(given: Any, where: str = "algorithm.schedule") -> Schedule:
    """The schedule that a table describes; without a kind it is constant."""
    if isinstance(given, Mapping) and "kind" not in given:
        given = {"kind": "constant", **given}
    return build_kind(given, SCHEDULES, where)

"""What reproducing means: an item of the paper, our values beside its own, and an honest verdict on each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from epidemic.report.statistics import Interval
from epidemic.study.batch import Job

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCALES = {
    "smoke": "embedded data, seconds: shows that everything works, says little about the paper's values",
    "laptop": "the real data set, fewer rounds and seeds: hours on two cores",
    "paper": "the paper's settings exactly: 96 nodes, 3000 / 1000 / 1440 rounds, 5 seeds: days on two cores",
}
SCALE = Literal["smoke", "laptop", "paper"]

Verdict = Literal["agrees", "differs", "open", "not comparable"]
"""open: the measurement is too noisy to decide, or there is a single seed."""


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One of our values beside the expected one."""

    what: str
    ours: float | None  # None: there is none, for example a target that was not reached
    half_width: float | None = None  # of the 95 % interval over seeds, or 5 standard errors of a measurement
    expected: float | None = None  # a number that the paper or the theory gives
    claim: str = ""  # what is expected where it is not a number, or how the number is meant
    source: str = ""  # where the expected number is from, if not from where the item's others are
    verdict: Verdict
    reason: str = ""
    digits: int = 2

    @property
    def difference(self) -> float | None:
        """Our number minus the expected one, or None if one of them is missing."""
        return None if self.ours is None or self.expected is None else self.ours - self.expected


@dataclass(frozen=True, eq=False)
class ItemResult:
    """The results of an item."""

    checks: list[Check]
    rows: list[dict[str, Any]]  # the data of the figure or the table
    figure: Figure
    notes: list[str] = field(default_factory=list)
    table: tuple[str, list[dict[str, str]]] | None = (
        None  # what is printed besides the checks: a title, and rows by column
    )


@dataclass(frozen=True)
class Request:
    """How an item is to be reproduced."""

    scale: SCALE
    out: Path
    seeds: int | None = None  # None: as many as belong to the scale


@dataclass(frozen=True, eq=False)
class Item:
    """A table or figure. The jobs of `first` run before `jobs` is called, because they may decide its settings."""

    name: str
    title: str
    find: Callable[[Request, dict[str, str]], ItemResult]  # given what failed, by name
    jobs: Callable[[Request], Sequence[Job]] | None = None  # None: nothing is trained
    expected_from: str = "paper"  # or theory
    first: Callable[[Request], Sequence[Job]] | None = None

    @property
    def trains(self) -> bool:
        """Whether models must be trained for this item."""
        return self.jobs is not None

    def planned(self, request: Request) -> list[Job]:
        """The runs that it needs, as far as they are known."""
        return [job for stage in (self.first, self.jobs) if stage is not None for job in stage(request)]


def near(
    what: str, ours: float, expected: float, tolerance: float, *, digits: int = 2, reason: str = "", source: str = ""
) -> Check:
    """Agrees if the two are within the tolerance."""
    ours = float(ours)
    agrees = abs(ours - expected) <= tolerance
    verdict: Verdict = "agrees" if agrees else "differs"
    return Check(what=what, ours=ours, expected=expected, verdict=verdict, digits=digits, reason=reason, source=source)


def measured(what: str, values: Sequence[float], expected: float, *, digits: int = 5) -> Check:
    """The mean of independent measurements agrees with its exact expectation within five standard errors."""
    m = len(values)
    mean = sum(values) / m
    error = (sum((v - mean) ** 2 for v in values) / (m - 1) / m) ** 0.5
    allowed = 5 * error + 1e-12 * abs(expected)
    verdict: Verdict = "agrees" if abs(mean - expected) <= allowed else "differs"
    return Check(what=what, ours=mean, half_width=5 * error, expected=expected, verdict=verdict, digits=digits)


def ahead(what: str, ours: Interval, expected: float | None, *, claim: str = "", sign: int = 1) -> Check:
    """A lead of one method over another, seed by seed: what counts is its sign.

    `expected` is the paper's own lead; without one, `sign` is the direction that it claims in words.
    """
    wanted = sign if expected is None else (1 if expected > 0 else -1)
    same = "the same" if ours.mean * wanted > 0 else "the opposite"
    verdict: Verdict
    if ours.half_width is None:
        verdict, reason = "open", f"the sign is {same}, but one seed has no interval"
    elif abs(ours.mean) <= ours.half_width:
        verdict, reason = "open", f"the sign is {same}, but zero is inside the interval"
    else:
        verdict, reason = "agrees" if same == "the same" else "differs", "judged by its sign"
    return Check(
        what=what, ours=ours.mean, half_width=ours.half_width, expected=expected, claim=claim, verdict=verdict, reason=reason
    )  # fmt: skip

"""Settings that robust rules share: how many inputs may be anything, what happens where there are too few, and what comes before."""

from __future__ import annotations

from typing import ClassVar, Literal

from epidemic.aggregation.base import Aggregator
from epidemic.core.errors import BadInput, require_choice, require_int
from epidemic.core.settings import Settings

Few = Literal["own", "less"]
Before = Literal["nnm"]


class Tolerant(Aggregator, Settings, frozen=True):
    """A rule that bears `f` inputs which may be anything, as long as there are more than 2 f. f = 0 is the mean."""

    pairs: ClassVar[bool] = False

    f: int = 1
    few: Few = "own"
    """What happens with 2 f inputs or fewer. own: the node keeps its own model. less: as many are tolerated as can be, which is fewer than f."""

    def __post_init__(self) -> None:
        require_int("aggregation.f", self.f, 0)
        require_choice("aggregation.few", self.few, ("own", "less"))

    @property
    def linear(self) -> bool:  # type: ignore[override]
        """Whether no input is left out, so that the rule is an average."""
        return self.f == 0

    @property
    def fewest(self) -> int:  # type: ignore[override]
        """More good ones than f."""
        return 2 * self.f + 1 if self.few == "own" else 1

    def tolerated(self, m: int) -> int:
        """How many of m inputs are tolerated."""
        return min(self.f, (m - 1) // 2)


class Mixable(Tolerant, frozen=True):
    """One that may be preceded by nearest-neighbour mixing."""

    before: Before | None = None
    """nnm: each input is first replaced by the mean of itself and the m - f - 1 nearest to it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_before(self.before)


class MixableMedian(Aggregator, Settings, frozen=True):
    """A rule that needs no f, but for nearest-neighbour mixing before it."""

    pairs: ClassVar[bool] = False

    before: Before | None = None
    """nnm: each input is first replaced by the mean of itself and the m - f - 1 nearest to it."""
    f: int | None = None
    """How many inputs that mixing leaves out; 1, if not given."""
    few: Few = "own"
    """What happens with 2 f inputs or fewer, if there is mixing before. own: the node keeps its own model. less: fewer are left out."""

    def __post_init__(self) -> None:
        require_before(self.before)
        if self.f is not None:
            require_int("aggregation.f", self.f, 0)
        require_choice("aggregation.few", self.few, ("own", "less"))
        for name, given in {"f": self.f, "few": None if self.few == "own" else self.few}.items():
            if given is not None and self.before is None:
                raise BadInput(
                    f"aggregation.{name} = {given!r} has no meaning here, because a median leaves nothing out: give"
                    ' aggregation.before = "nnm", too, or leave it out'
                )

    @property
    def mixed(self) -> int:
        """How many inputs the mixing before leaves out; 0 without one."""
        return 0 if self.before is None else 1 if self.f is None else self.f

    @property
    def linear(self) -> bool:  # type: ignore[override]
        """All means before are the same."""
        return self.before is not None and self.mixed == 0

    @property
    def fewest(self) -> int:  # type: ignore[override]
        """Any number will do, but for the mixing before."""
        return 2 * self.mixed + 1 if self.few == "own" else 1

    def tolerated(self, m: int) -> int:
        """How many of m inputs the mixing leaves out."""
        return min(self.mixed, (m - 1) // 2)


def require_before(before: object) -> None:
    """Raise BadInput for what cannot come before a rule."""
    if before is not None:
        require_choice("aggregation.before", before, ("nnm",))

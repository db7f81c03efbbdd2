"""What a callback is told, and how several are told the same."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from epidemic.errors import BadInput

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from epidemic.host.plan import Plan
    from epidemic.host.setup import Setup
    from epidemic.learner import Learner
    from epidemic.record import Record, Summary


class Callback:
    """Who wants to know how a run goes on; this one does not care about anything. Derive from it what does.

    A callback is told, and changes nothing: what it is given must stay as it is.
    """

    def started(self, setup: Setup, learner: Learner, rounds_done: int) -> None:
        """A seed begins, or goes on after so many rounds."""

    def planned(self, plan: Plan, index: NDArray[np.int64]) -> None:
        """A round is about to be computed, on these samples.   # (n, r, b)"""

    def advanced(self, rounds_done: int, x: Tensor) -> None:
        """A round is done; these are the models.   # (n, d)"""

    def recorded(self, record: Record) -> None:
        """The models were evaluated."""

    def evaluating(self, what: str) -> None:
        """Something long without rounds begins."""

    def finished(self, summary: Summary) -> None:
        """A seed is done."""


class Callbacks(Callback):
    """Several, told in their order."""

    def __init__(self, those: Iterable[Callback]) -> None:
        self.those = tuple(those)

    def started(self, setup: Setup, learner: Learner, rounds_done: int) -> None:
        """A seed begins, or goes on."""
        for one in self.those:
            one.started(setup, learner, rounds_done)

    def planned(self, plan: Plan, index: NDArray[np.int64]) -> None:
        """A round is about to be computed."""
        for one in self.those:
            one.planned(plan, index)

    def advanced(self, rounds_done: int, x: Tensor) -> None:
        """A round is done."""
        for one in self.those:
            one.advanced(rounds_done, x)

    def recorded(self, record: Record) -> None:
        """The models were evaluated."""
        for one in self.those:
            one.recorded(record)

    def evaluating(self, what: str) -> None:
        """Something long without rounds begins."""
        for one in self.those:
            one.evaluating(what)

    def finished(self, summary: Summary) -> None:
        """A seed is done."""
        for one in self.those:
            one.finished(summary)


def all_of(callbacks: Callback | Iterable[Callback]) -> Callback:
    """One callback, or several as one."""
    if isinstance(callbacks, Callback):
        return callbacks
    those = tuple(callbacks) if isinstance(callbacks, Iterable) else (callbacks,)
    for one in those:
        if not isinstance(one, Callback):
            raise BadInput(
                f"callbacks = {one!r} is not a callback; derive its class from ep.Callback and give an instance"
            )
    return Callbacks(those)

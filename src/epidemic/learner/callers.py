"""The learner of a node whose training is somebody's own loop: it trains nothing and measures nothing, it asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from epidemic.learner import Learner
from epidemic.learner.rows import Layout
from epidemic.learner.task import Evaluation


class CallersLearner(Learner):
    """Asks the caller's code to train, and for the numbers that it found."""

    def __init__(
        self,
        layout: Layout,
        update: Callable[[int, Tensor, Callable[[], None]], Tensor],
        found: Callable[[], Evaluation | None],
    ) -> None:
        """Prepare it.

        Args:
            layout: Where each tensor that travels lies in a row.
            update: Waits until the caller has trained in a round, changes the row in place and returns the loss; what it is given last it
                calls now and then.   # (1, d) -> (1,)
            found: The numbers that the caller reported last; None before the first.
        """
        self.layout = layout
        self.strategy = "own-loop"
        self.draws_random_numbers = False
        self.meanwhile: Callable[[], None] = lambda: None
        """What is done now and then while the caller trains; the row is as it was then."""
        self._update = update
        self._found = found

    def update(self, round: int, x: Tensor) -> Tensor:
        """Let the caller train in a round, on this row in place; the loss.   # (1, d) -> (1,)"""
        return self._update(round, x, self.meanwhile)

    @property
    def at_once(self) -> int | None:
        """Rows that are worked on together: all, because a process has one."""
        return None

    @property
    def has_numbers(self) -> bool:
        """Whether the caller has reported any."""
        return self._found() is not None

    def evaluate(self, x: Tensor, samples: tuple[Tensor, Tensor], first: int = 0) -> Evaluation:
        """What the caller reported last, whatever the samples."""
        found = self._found()
        assert found is not None
        return found

    def sgd(self, *_: Any) -> Tensor:
        """Never called: the script trains, and `update` asks it to."""
        raise NotImplementedError

    def gradients(self, *_: Any) -> tuple[Tensor, Tensor]:
        """Never called: the script trains, and `update` asks it to."""
        raise NotImplementedError

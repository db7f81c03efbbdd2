"""Pace: how long to wait for letters, learnt from what rounds really take. It is told times and has no clock of its own.

The limit is the median of what a round took up to the wait, plus twice the third quartile of how long letters let themselves be
waited for, plus a little for the network; never more than the deadline. A single slow node hardly moves it; half of them do. Until
enough has been seen, the deadline itself counts.
"""

from __future__ import annotations

from collections import deque
from statistics import median

WARM_UP = 16
"""Letters to see before trusting what was seen."""
SLACK = 0.25
"""Seconds that are always granted."""


class Pace:
    """What the last rounds took, in seconds."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self._work: deque[float] = deque(maxlen=15)
        self._waits: deque[float] = deque(maxlen=128)

    def worked(self, seconds: float) -> None:
        """A round was computed and sent, in this time."""
        self._work.append(seconds)

    def waited(self, seconds: float) -> None:
        """A letter let itself be waited for; 0: it was there already. One that never came counts as the whole wait."""
        self._waits.append(max(0.0, seconds))

    @property
    def limit(self) -> float:
        """Seconds to wait for letters before closing a round."""
        if len(self._waits) < WARM_UP or not self._work:
            return self.deadline
        ordered = sorted(self._waits)
        third_quartile = ordered[(3 * len(ordered)) // 4]
        return min(self.deadline, SLACK + median(self._work) + 2 * third_quartile)

"""Pace: how long to wait for messages, learnt from what rounds really take. It is told times, in microseconds.

The limit is the median of what a round took up to the wait, plus three times the median of how long messages let themselves be waited
for, plus a little for the network; never more than the deadline. Until enough has been seen, the deadline itself counts; but where nobody
knows whom to expect every round would last that long, so then it is a few times what the round's work took: messages that come too late
are seen as well, and correct it.

Waiting spreads: who waits for a slow node is waited for in the next round. If a share f of the nodes is held up so in a round, at most
f (1 - f) <= 1/4 of all messages are late for that reason, so the median does not see it, and waits do not feed on themselves. Messages
that come too late are seen, too, so that the limit grows when more than half of them do; messages that never come are not. It takes more than half
(the lower median): of two neighbours, one cannot make this node wait for long in every round.
"""

from __future__ import annotations

from collections import deque
from statistics import median, median_low

from epidemic.protocol.events import SECOND

WARM_UP = 12
"""Messages to see before trusting what was seen."""
SLACK = SECOND // 4
"""Time that is always granted."""
AT_FIRST = 2 * SECOND
"""Time that is granted at first where nobody knows whom to expect, or eight times as long as the work of a round takes."""


class AdaptiveTimeout:
    """What the last rounds took."""

    def __init__(self, deadline: int, *, blind: bool = False) -> None:
        """`blind`: nobody knows whom to expect."""
        self.deadline = deadline
        self._blind = blind
        self._work: deque[int] = deque(maxlen=15)
        # where nobody knows whom to expect nodes do not wait for each other, and drift apart unless they notice soon
        self._waits: deque[int] = deque(maxlen=32 if blind else 128)
        self._limit: int | None = None  # worked out, until something is told

    def worked(self, took: int) -> None:
        """A round was computed and sent, in this time."""
        self._work.append(took)
        self._limit = None

    def waited(self, took: int) -> None:
        """A message came so long after this node was ready for it; 0: it was there already."""
        self._waits.append(max(0, took))
        self._limit = None

    @property
    def limit(self) -> int:
        """How long to wait for messages before closing a round."""
        if self._limit is None:
            if self._blind and self._work and len(self._waits) < WARM_UP:
                return min(self.deadline, max(AT_FIRST, int(8 * median(self._work))))
            if len(self._waits) < WARM_UP or not self._work:
                return self.deadline
            self._limit = min(self.deadline, int(SLACK + median(self._work) + 3 * median_low(self._waits)))
        return self._limit

    @property
    def grace(self) -> int:
        """How long somebody who is in the same round may still take to send its message."""
        return SLACK + (int(median(self._work)) if self._work else 0)

    @property
    def suspicious(self) -> int:
        """How long without a message until its sender is asked for it: much more than a round's work usually takes."""
        return max(SECOND, int(4 * median(self._work))) if self._work else SECOND

"""How long to wait for messages, estimated from how long recent rounds took. All times are given to it, in microseconds.

The limit is the median time from the opening of a round to the start of the wait, plus three times the median wait for a message, plus a small
constant; it never exceeds the deadline. Until enough messages have been seen, the limit is the deadline. Nodes that cannot know whom to expect would
then wait that long in every round, so they start with a few times the usual work of a round; messages that arrive late correct this value.

Delays spread: a node that waits for a slow peer makes others wait in the next round. If a share f of the nodes is delayed in this way, at most
f (1 - f) <= 1/4 of all messages are late for that reason, so the median is unaffected and delays do not reinforce themselves. Late messages are counted,
so the limit grows when more than half of the messages are late; messages that never arrive are not. The lower median is used, so one of two neighbours
cannot delay this node in every round.
"""

from __future__ import annotations

from collections import deque
from statistics import median, median_low

from epidemic.protocol.events import SECOND

WARM_UP = 12
"""Messages needed before the measured times are used."""
SLACK = SECOND // 4
"""Time that is always added."""
AT_FIRST = 2 * SECOND
"""Initial limit of nodes that cannot know whom to expect; or eight times the work of a round, if that is longer."""


class AdaptiveTimeout:
    """The time to wait for messages, from the durations of the last rounds."""

    def __init__(self, deadline: int, *, blind: bool = False) -> None:
        """Start without measurements.

        Args:
            deadline: The longest wait, in microseconds.
            blind: Whether the node cannot know whom to expect.
        """
        self.deadline = deadline
        self._blind = blind
        self._work: deque[int] = deque(maxlen=15)
        # Nodes that cannot know whom to expect do not wait for each other; a short memory keeps them from drifting apart.
        self._waits: deque[int] = deque(maxlen=32 if blind else 128)
        self._limit: int | None = None  # cached; None after a new measurement

    def worked(self, took: int) -> None:
        """Record the time from the opening of a round until its message was sent."""
        self._work.append(took)
        self._limit = None

    def waited(self, took: int) -> None:
        """Record how long this node waited for a message; 0 if it had already arrived."""
        self._waits.append(max(0, took))
        self._limit = None

    @property
    def limit(self) -> int:
        """The time to wait for messages before closing a round, in microseconds."""
        if self._limit is None:
            if self._blind and self._work and len(self._waits) < WARM_UP:
                return min(self.deadline, max(AT_FIRST, int(8 * median(self._work))))
            if len(self._waits) < WARM_UP or not self._work:
                return self.deadline
            self._limit = min(self.deadline, int(SLACK + median(self._work) + 3 * median_low(self._waits)))
        return self._limit

    @property
    def grace(self) -> int:
        """The time that a peer in the same round may still need to send its message, in microseconds."""
        return SLACK + (int(median(self._work)) if self._work else 0)

    @property
    def suspicious(self) -> int:
        """The silence after which a sender is asked for its message: well above the usual work of a round, in microseconds."""
        return max(SECOND, int(4 * median(self._work))) if self._work else SECOND

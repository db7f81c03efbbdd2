"""Limits on what one link may carry: a token bucket per link. No network; time (in microseconds) is an input.

Each received item costs some of the link's time; a bucket holds up to SECONDS of it and refills by one second per second. An empty bucket pauses the
link: items are dropped unread and counted, at the same cost, so the pause lasts until less arrives. A link that goes OWED into debt is closed for
CLOSED seconds.

The numbers are far above what an honest process sends: one message per node and round (`parts` if models are cut), and no model is so small that it is
trained 2000 times a second. Restarts, bursts after a standstill of the receiver (a silent link is dead after 5 seconds) and many nodes behind one link
are covered; the limits scale with the certified nodes that introduced themselves over the link.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from enum import Enum

from epidemic.protocol.events import SECOND

RATE = 2000
"""Messages per second of one node that never pause its link."""
SECONDS = 5
"""Seconds' worth of messages that may arrive at once."""
FULL = SECONDS * SECOND
OWED = SECOND
"""Debt at which a link is closed."""
MOST_RATE = 20_000
"""Most messages per second of one link, whatever number of nodes it carries: signing takes a process longer."""
CLOSED = 60
"""Seconds for which a link is closed."""
COSTS = {"handshake": 100, "exchange": 100, "model": 20, "status": 4, "again": 4}
"""Cost of other items, in messages: 20 greetings or exchanges of peers a second are more than any honest node sends."""
BAD = 100
"""Extra cost of what no honest node sends, such as a wrong signature or format."""
MOST_LINKS = 2**16
"""Most links remembered."""


class Verdict(Enum):
    """What happens to something received over a link."""

    TAKEN = "taken"
    DROPPED = "dropped"  # the link is paused or closed
    CLOSE = "close"  # dropped, and the link must be closed now


@dataclass(slots=True)
class _Link:
    left: int  # time left; negative: debt
    at: int  # when it was updated
    until: int = 0  # closed until then
    nodes: int = 1  # certified nodes that it carries


class Limits:
    """The limits on the links of a process. Thread-safe."""

    def __init__(self, each: int = 1) -> None:
        """Start with no links; `each`: messages that a node sends to this process per round."""
        self._each = max(1, each)
        self._links: dict[int, _Link] = {}
        self._dropped = 0
        self._lock = threading.Lock()

    def carries(self, link: int, nodes: int, now: int) -> None:
        """Note how many certified nodes a link carries."""
        with self._lock:
            if (state := self._of(link, now)) is not None:
                state.nodes = max(1, nodes)

    def admit(self, link: int, cost: int, now: int) -> Verdict:
        """Whether to accept something that arrives over a link at this time."""
        with self._lock:
            state = self._of(link, now)
            if state is not None and now >= state.until:
                state.left = min(FULL, state.left + now - state.at) - cost * self._pause(state)
                state.at = now
                if state.left >= 0:
                    return Verdict.TAKEN
                if state.left <= -OWED:
                    state.until = state.at = now + CLOSED * SECOND
                    state.left = FULL
                    self._dropped += 1
                    return Verdict.CLOSE
            self._dropped += 1
            return Verdict.DROPPED

    def charge(self, link: int, cost: int, now: int) -> None:
        """Charge more for something already accepted."""
        with self._lock:
            if (state := self._of(link, now)) is not None:
                state.left -= cost * self._pause(state)

    def closed(self, link: int, now: int) -> bool:
        """Whether a link is closed at this time."""
        with self._lock:
            state = self._links.get(link)
            return state is not None and now < state.until

    @property
    def dropped(self) -> int:
        """Messages dropped unread, over all links."""
        with self._lock:
            return self._dropped

    def _pause(self, state: _Link) -> int:
        """The usual time between two messages of a link, in microseconds."""
        return SECOND // min(MOST_RATE, RATE * self._each * state.nodes)

    def _of(self, link: int, now: int) -> _Link | None:
        state = self._links.get(link)
        if state is None and len(self._links) < MOST_LINKS:
            state = self._links[link] = _Link(FULL, now)
        return state

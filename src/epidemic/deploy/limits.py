"""Limits: how much may come over one link. A token bucket for each; no network, and the time (in microseconds) is an input.

Whatever comes costs some of the link's time: a bucket holds up to SECONDS of it and fills by a second each second. Who has none left is
paused: what comes is dropped unread and counted, and costs as before, so that the pause lasts until less comes. Who goes on until it
owes a second of it is closed for a minute.

The numbers are far above what an honest process sends: a node sends one message a round (`parts` of them, where models are cut), and no model
is so small that it is trained 2000 times a second. A restart, a burst after a standstill of the receiver (a silent link is dead after 5 seconds)
and many nodes behind one link are covered; what is counted for many nodes are certified nodes that introduced themselves over this link.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from enum import Enum

from epidemic.protocol.events import SECOND

RATE = 2000
"""Messages a second of one node that never pause its link."""
SECONDS = 5
"""Seconds' worth of messages that may come at once."""
FULL = SECONDS * SECOND
OWED = SECOND
"""Who owes so much is closed."""
MOST_RATE = 20_000
"""Messages a second of one link, whatever number of nodes is behind it: signing takes a process longer."""
CLOSED = 60
"""Seconds for which a link is closed."""
COSTS = {"handshake": 100, "exchange": 100, "model": 20, "status": 4, "again": 4}
"""What costs the receiver more than a message, in messages: 20 greetings, or exchanges of peers, a second are more than anybody sends."""
BAD = 100
"""What something costs besides that no honest node sends: a wrong signature, a wrong form."""
MOST_LINKS = 2**16
"""Links that are remembered."""


class Verdict(Enum):
    """What becomes of something that came over a link."""

    TAKEN = "taken"
    DROPPED = "dropped"  # the link is paused, or closed
    CLOSE = "close"  # dropped, and the link is to be closed now


@dataclass(slots=True)
class _Link:
    left: int  # the time that it has; negative: that it owes
    at: int  # when that was
    until: int = 0  # it is closed until then
    nodes: int = 1  # certified nodes behind it


class Limits:
    """The links of a process. Asked by all threads."""

    def __init__(self, each: int = 1) -> None:
        """`each`: how many messages a node sends to this process in a round."""
        self._each = max(1, each)
        self._links: dict[int, _Link] = {}
        self._dropped = 0
        self._lock = threading.Lock()

    def carries(self, link: int, nodes: int, now: int) -> None:
        """So many certified nodes are behind a link."""
        with self._lock:
            if (state := self._of(link, now)) is not None:
                state.nodes = max(1, nodes)

    def admit(self, link: int, cost: int, now: int) -> Verdict:
        """Whether something is taken that came over a link at this time."""
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
        """What was taken turned out to cost more."""
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
        """What was dropped unread, of all links."""
        with self._lock:
            return self._dropped

    def _pause(self, state: _Link) -> int:
        """The usual time between two messages of a link."""
        return SECOND // min(MOST_RATE, RATE * self._each * state.nodes)

    def _of(self, link: int, now: int) -> _Link | None:
        state = self._links.get(link)
        if state is None and len(self._links) < MOST_LINKS:
            state = self._links[link] = _Link(FULL, now)
        return state

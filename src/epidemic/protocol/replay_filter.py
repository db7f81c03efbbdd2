"""Which messages of an asynchronous method count: each once, and from each sender no more than a node can process.

A sender numbers its messages in increasing order, also over restarts. Messages may overtake each other a little on the way, so the filter knows the
largest number of each sender and which of the last WINDOW numbers have arrived. A sender that exceeds the rate of honest nodes harms only itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from epidemic.protocol.events import SECOND

WINDOW = 1024
"""By how many later messages a message may be overtaken; older numbers count as replays."""
MOST_A_SECOND = 200
"""Whole models accepted per sender and second, and at once."""


@dataclass(slots=True)
class _Sender:
    highest: int
    seen: int  # bit i: whether number highest - i has arrived
    room: int  # time credit in microseconds; each message costs one pause
    at: int  # when the credit was last updated


class ReplayFilter:
    """The message numbers seen from each sender, and its remaining credit."""

    def __init__(self, parts: int = 1) -> None:
        """Start empty; `parts` messages make a model."""
        self._senders: dict[int, _Sender] = {}
        self._pause = SECOND // (MOST_A_SECOND * parts) or 1
        self._burst = MOST_A_SECOND * parts * self._pause

    def put(self, sender: int, number: int, now: int) -> str:
        """Take in a message and return its outcome: "counted", "duplicate" or "flood"."""
        known = self._senders.get(sender)
        if known is None:
            known = self._senders[sender] = _Sender(number - 1, 0, self._burst, now)
        ahead = number - known.highest
        if ahead <= -WINDOW or (ahead <= 0 and known.seen >> -ahead & 1):
            return "duplicate"
        known.room = min(self._burst, known.room + max(0, now - known.at))
        known.at = now
        if known.room < self._pause:
            return "flood"
        known.room -= self._pause
        if ahead > 0:
            known.seen = (known.seen << ahead | 1) & ((1 << WINDOW) - 1) if ahead < WINDOW else 1
            known.highest = number
        else:
            known.seen |= 1 << -ahead
        return "counted"

"""Intake: which messages of a method without rounds count: each once, and of nobody more than a node can take.

A sender numbers its messages. Numbers grow, also over its restarts; on the way messages may overtake each other a little. So the largest number
of each sender is known, and which of the last few before it have come. Whoever sends more messages a second than any honest node harms itself only.
"""

from __future__ import annotations

from dataclasses import dataclass

from epidemic.protocol.events import SECOND

WINDOW = 1024
"""By so many messages of its sender a message may be overtaken; older ones are taken for somebody's old ones, said again."""
MOST_A_SECOND = 200
"""Messages of whole models that are taken of one sender a second; as many may come at once."""


@dataclass(slots=True)
class _Sender:
    highest: int
    seen: int  # bit i: whether the message of number highest - i has come
    room: int  # how many messages may come now, in microseconds of the usual pause between them
    at: int  # when that was


class ReplayFilter:
    """The messages of each sender, as far as they must be remembered."""

    def __init__(self, parts: int = 1) -> None:
        """`parts`: how many messages make a model."""
        self._senders: dict[int, _Sender] = {}
        self._pause = SECOND // (MOST_A_SECOND * parts) or 1
        self._burst = MOST_A_SECOND * parts * self._pause

    def put(self, sender: int, number: int, now: int) -> str:
        """What becomes of a message: "counted", "duplicate", or "flood"."""
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

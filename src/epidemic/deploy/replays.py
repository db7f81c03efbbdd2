"""Replays: which messages are worth checking a signature. This takes longer than all other checks together, so repeated messages are found first.

Verified messages are recognised by sender and number (the round, or the number of the message), and dropped. Messages far from the current rounds, or
more than a node counts of one sender, are verified only now and then. Only verified messages are remembered, so a forged message cannot make the true
one count as repeated. Thread-safe; the time (in microseconds) is an input.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from epidemic.protocol.events import SECOND
from epidemic.protocol.replay_filter import MOST_A_SECOND, WINDOW

FAR = 20
"""Messages per second of one sender from distant rounds that are verified: they show its round."""


@dataclass(slots=True)
class _Verified:
    room: int  # time credit in microseconds; each message costs one pause
    at: int  # when it was updated
    highest: int = -1  # highest verified number
    seen: dict[int, set[int]] = field(default_factory=dict)  # by number: receivers here


class Replays:
    """What was verified of each sender, as far as it must be remembered."""

    def __init__(self, near: Callable[[], tuple[int, int]] | None, parts: int = 1) -> None:
        """Start empty.

        Args:
            near: Returns the first and the last round of interest now; None for asynchronous methods, whose messages are numbered.
            parts: Messages that make a model.
        """
        self._near = near
        self._pause = SECOND // (FAR if near is not None else 2 * MOST_A_SECOND * parts) or 1
        self._senders: dict[int, _Verified] = {}
        self._lock = threading.Lock()

    def sort(self, sender: int, number: int, nodes: tuple[int, ...], now: int) -> str:
        """The outcome of a message for these nodes that is not verified yet: "new", or why it is not read, in the words of mailboxes.

        The sender must be a certified node, and the message must have come over its link.
        """
        first, last = (0, -1) if self._near is None else self._near()
        with self._lock:
            known = self._senders.get(sender)
            if known is None:
                known = self._senders[sender] = _Verified(2 * SECOND, now)
            if self._near is None and number <= known.highest - WINDOW:
                return "duplicate"
            if number in known.seen and known.seen[number].issuperset(nodes):
                return "duplicate"
            if first <= number <= last:
                return "new"
            known.room = min(2 * SECOND, known.room + max(0, now - known.at))
            known.at = now
            if known.room < self._pause:
                return "flood" if self._near is None else "beyond" if number > last else "duplicate"
            known.room -= self._pause
            return "new"

    def known(self, sender: int, number: int, nodes: tuple[int, ...]) -> bool:
        """Whether a message was verified for all of these nodes."""
        with self._lock:
            state = self._senders.get(sender)
            return state is not None and number in state.seen and state.seen[number].issuperset(nodes)

    def verified(self, sender: int, number: int, nodes: tuple[int, ...]) -> None:
        """Remember a message as verified."""
        first, last = (0, -1) if self._near is None else self._near()
        with self._lock:
            known = self._senders.get(sender)
            if known is None or not (self._near is None or first <= number <= last):
                return
            known.highest = max(known.highest, number)
            known.seen.setdefault(number, set()).update(nodes)
            if len(known.seen) > 2 * WINDOW or (self._near is not None and len(known.seen) > 2 * (last - first + 1)):
                oldest = known.highest - WINDOW if self._near is None else first - 1
                known.seen = {of: there for of, there in known.seen.items() if of > oldest}

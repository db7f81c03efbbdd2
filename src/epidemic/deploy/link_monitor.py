"""The link monitor: when to open the network again because a link is there and what it should carry is not. No clock, no network.

When several processes stand still for longer than the lease (a laptop sleeps, a machine swaps), they close and open all their links at once when
they wake up, and now and then Zenoh ends with a link on which one side has forgotten what the other declared: its token is
not in sight, messages to it find nobody, questions get no answer, and nothing ever mends it (7 of 8 processes stopped for 12 s while they
exchanged messages: in most trials one to three pairs stay blind). A new session mends it within a second (`Transport.renew`).
"""

from __future__ import annotations

from collections.abc import Set

BLIND = 10.0
"""Seconds for which a link may be there without the token of its other end; twice as long for the higher place of the two."""


CALM = 300.0
"""Seconds in sight after which it is forgotten how often that did not help."""


class LinkMonitor:
    """Which places are linked and not in sight, and since when."""

    def __init__(self, own: int) -> None:
        self._own = own
        self._since: dict[int, float] = {}
        self._tries: dict[int, int] = {}
        self._shown: dict[int, float] = {}  # since when a place is in sight

    def lost(self, unseen: Set[int], now: float) -> bool:
        """Whether to open the network again, given the places that are linked and not in sight now; ask it about once a second.

        A place for which that did not help is given twice as long each time: who holds a link and never shows itself harms little.
        """
        self._since = {node_id: self._since.get(node_id, now) for node_id in unseen}
        self._shown = {node_id: since for node_id, since in self._shown.items() if node_id not in unseen}
        due = [node_id for node_id, since in self._since.items() if now - since >= self._patience(node_id)]
        for node_id in due:
            self._tries[node_id] = self._tries.get(node_id, 0) + 1
        if due:
            self._since = {}
        return bool(due)

    def saw(self, node_id: int, now: float) -> None:
        """A place is in sight; only who has been so for long is trusted again: who blinks must not make others open their networks anew."""
        if now - self._shown.setdefault(node_id, now) >= CALM:
            self._tries.pop(node_id, None)
        self._since.pop(node_id, None)

    def _patience(self, node_id: int) -> float:
        first = BLIND if self._own < node_id else 2 * BLIND  # two that do not see each other do not both start anew
        return float(first * 2 ** self._tries.get(node_id, 0))

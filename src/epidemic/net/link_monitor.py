"""The link monitor: when to open the network again because a link is there and what it should carry is not. No clock, no network.

When several processes stand still for longer than the lease (a laptop sleeps, a machine swaps), they close and open all their links at once when
they wake up, and now and then Zenoh ends with a link on which one side has forgotten what the other declared: its token is
not in sight, letters to it find nobody, questions get no answer, and nothing ever mends it (7 of 8 processes stopped for 12 s while they
exchanged letters: in most trials one to three pairs stay blind). A new session mends it within a second (`Transport.renew`).
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
        self._since = {place: self._since.get(place, now) for place in unseen}
        self._shown = {place: since for place, since in self._shown.items() if place not in unseen}
        due = [place for place, since in self._since.items() if now - since >= self._patience(place)]
        for place in due:
            self._tries[place] = self._tries.get(place, 0) + 1
        if due:
            self._since = {}
        return bool(due)

    def saw(self, place: int, now: float) -> None:
        """A place is in sight; only who has been so for long is trusted again: who blinks must not make others open their networks anew."""
        if now - self._shown.setdefault(place, now) >= CALM:
            self._tries.pop(place, None)
        self._since.pop(place, None)

    def _patience(self, place: int) -> float:
        first = BLIND if self._own < place else 2 * BLIND  # two that do not see each other do not both start anew
        return float(first * 2 ** self._tries.get(place, 0))

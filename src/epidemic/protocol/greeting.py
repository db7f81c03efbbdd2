"""Greeting: whom to introduce oneself to, and when again. Who cannot be understood is asked less and less often."""

from __future__ import annotations

from epidemic.protocol.events import SECOND

FIRST, LONGEST = SECOND // 20, 5 * SECOND
"""The first and the longest pause between two tries."""
PATIENCE = 4 * SECOND
"""After this time without any word of the answer it is tried again."""


class Greeting:
    """Who has been greeted and has not answered."""

    def __init__(self) -> None:
        self._tries: dict[int, int] = {}
        self._next: dict[int, int] = {}  # when to greet somebody (again)

    def strangers(self, places: list[int], now: int) -> list[int]:
        """Whom of these to greet now; those who have gone are forgotten."""
        wanted = set(places)
        self._next = {place: at for place, at in self._next.items() if place in wanted}
        self._tries = {place: tries for place, tries in self._tries.items() if place in wanted}
        for place in places:
            self._next.setdefault(place, now)
        return self.due(now)

    def due(self, now: int) -> list[int]:
        """Whom to greet now."""
        found = [place for place, at in self._next.items() if at <= now]
        for place in found:
            self._next[place] = now + PATIENCE
        return found

    def failed(self, place: int, now: int) -> list[int]:
        """Somebody did not answer, or not intelligibly."""
        if place in self._next:
            tries = self._tries[place] = min(self._tries.get(place, 0) + 1, 16)
            self._next[place] = now + min(LONGEST, FIRST * 2**tries)
        return []

    def known(self, place: int) -> None:
        """Somebody was introduced."""
        self._next.pop(place, None)
        self._tries.pop(place, None)

    def next_time(self) -> int | None:
        """When somebody is to be greeted next."""
        return min(self._next.values(), default=None)

"""Greeting: whom to introduce oneself to, and when again. Who cannot be understood is asked less and less often.

Nobody is greeted faster than the pauses below allow, whatever it shows and says: not who comes and goes, nor who answers and stays a stranger.
"""

from __future__ import annotations

from epidemic.protocol.events import SECOND

FIRST, LONGEST = SECOND // 20, 5 * SECOND
"""The first and the longest pause between two tries."""
PATIENCE = 4 * SECOND
"""After this time without any word of the answer it is tried again."""
MOST_TRIES = 16
"""Pauses grow no more after so many tries."""


class Greeting:
    """Who is to be greeted, and when each may be greeted again."""

    def __init__(self) -> None:
        self._wanted: list[int] = []
        self._tries: dict[int, int] = {}
        self._next: dict[
            int, int
        ] = {}  # not before then; kept for those who have gone, too: they may come back at once

    def look_for(self, strangers: list[int]) -> None:
        """These are not known."""
        self._wanted = strangers

    def due(self, now: int) -> list[int]:
        """Whom to greet now."""
        found = [node_id for node_id in self._wanted if self._next.get(node_id, 0) <= now]
        for node_id in found:
            self._next[node_id] = now + PATIENCE
        return found

    def failed(self, node_id: int, now: int) -> None:
        """Somebody did not answer, or not intelligibly, or remained a stranger."""
        if node_id in self._wanted:
            tries = self._tries[node_id] = min(self._tries.get(node_id, 0) + 1, MOST_TRIES)
            self._next[node_id] = now + min(LONGEST, FIRST * 2**tries)

    def known(self, node_id: int, now: int) -> None:
        """Somebody was introduced; who comes anew then is greeted soon."""
        self._tries.pop(node_id, None)
        self._next[node_id] = now + FIRST

    def next_time(self) -> int | None:
        """When somebody is to be greeted next."""
        return min((self._next.get(node_id, 0) for node_id in self._wanted), default=None)

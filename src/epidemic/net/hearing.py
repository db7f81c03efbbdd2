"""Hearing: small keepers of order between Zenoh's threads and ours: one answer to a question, and who is in sight."""

from __future__ import annotations

import threading
from collections.abc import Callable

Presence = Callable[[int, str, bool], None]
"""A place, the token of one start of it, whether it is there."""


class Once:
    """Of several threads that want to call back, lets one."""

    def __init__(self, answered: Callable[[bytes | None], None]) -> None:
        self._answered = answered
        self._free = threading.Lock()

    def claim(self) -> bool:
        """Whether the caller is the one."""
        return self._free.acquire(blocking=False)

    def give_up(self) -> None:
        """There is no answer, unless there was one."""
        if self.claim():
            self._answered(None)


class Watch:
    """Who is in sight: what the watcher was told, so that it can be taken back."""

    def __init__(self, changed: Presence) -> None:
        self._changed = changed
        self._seen: set[tuple[int, str]] = set()
        self._lock = threading.Lock()

    @property
    def places(self) -> set[int]:
        """Who is in sight."""
        with self._lock:
            return {place for place, _ in self._seen}

    def noticed(self, place: int, token: str, there: bool) -> None:
        """Tell of one who came or went."""
        with self._lock:
            if there:
                self._seen.add((place, token))
            else:
                self._seen.discard((place, token))
        self._changed(place, token, there)

    def lost_sight(self) -> None:
        """Nobody is in sight any more."""
        with self._lock:
            seen, self._seen = self._seen, set()
        for place, token in sorted(seen):
            self._changed(place, token, False)

"""Hearing: small keepers of order between Zenoh's threads and ours: one answer to a question, and who is in sight."""

from __future__ import annotations

import threading
from collections.abc import Callable

Presence = Callable[[int, str, bool], None]
"""A place, the token of one start of it, whether it is there. Called under a lock: it must return at once."""


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
    """Who is in sight, over which line: what the watcher was told, so that it can be taken back.

    Who is in sight over two lines is gone when both no longer show it.
    """

    def __init__(self, changed: Presence) -> None:
        self._changed = changed
        self._seen: dict[tuple[int, str], set[int]] = {}  # over which lines a token is shown
        self._lock = threading.Lock()

    @property
    def places(self) -> set[int]:
        """Who is in sight."""
        with self._lock:
            return {place for place, _ in self._seen}

    def lines_to(self, place: int) -> set[int]:
        """Over which lines a place is in sight."""
        with self._lock:
            return {line for (of, _), lines in self._seen.items() if of == place for line in lines}

    def at_end_of(self, line: int) -> set[int]:
        """Who is in sight over a line."""
        with self._lock:
            return {place for (place, _), lines in self._seen.items() if line in lines}

    def noticed(self, line: int, place: int, token: str, there: bool) -> None:
        """Tell of one who came or went."""
        with self._lock:
            lines = self._seen.setdefault((place, token), set())
            before = bool(lines)
            (lines.add if there else lines.discard)(line)
            changed = before != bool(lines)
            if not lines:
                del self._seen[place, token]
            if changed or there:  # under the lock, so that what is told last is how it is
                self._changed(place, token, there)

    def lost_sight(self, line: int | None = None) -> None:
        """Nobody is in sight any more over this line, or over any."""
        with self._lock:
            seen = sorted((*key, of) for key, lines in self._seen.items() for of in lines if line in (None, of))
        for place, token, of in seen:
            self.noticed(of, place, token, False)

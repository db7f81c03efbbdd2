"""Which peers to send a handshake to, and when to retry. Peers that give no valid answer are tried less and less often.

No peer is greeted more often than the pauses below allow, whether it keeps reconnecting or answers without becoming known.
"""

from __future__ import annotations

from epidemic.protocol.events import SECOND

FIRST, LONGEST = SECOND // 20, 5 * SECOND
"""The first and the longest pause between two tries."""
PATIENCE = 4 * SECOND
"""The time after which a greeting without any answer is repeated."""
MOST_TRIES = 16
"""Number of tries after which the pauses no longer grow."""


class Greeting:
    """The peers to greet, and the earliest time of the next try for each."""

    def __init__(self) -> None:
        self._wanted: list[int] = []
        self._tries: dict[int, int] = {}
        self._next: dict[int, int] = {}  # earliest next try; also kept for peers that left, which may return at once

    def look_for(self, strangers: list[int]) -> None:
        """Set the peers that are still to be introduced."""
        self._wanted = strangers

    def due(self, now: int) -> list[int]:
        """Return the peers to greet now, and note the time."""
        found = [node_id for node_id in self._wanted if self._next.get(node_id, 0) <= now]
        for node_id in found:
            self._next[node_id] = now + PATIENCE
        return found

    def failed(self, node_id: int, now: int) -> None:
        """Note that a peer gave no valid answer, or is still unknown after it."""
        if node_id in self._wanted:
            tries = self._tries[node_id] = min(self._tries.get(node_id, 0) + 1, MOST_TRIES)
            self._next[node_id] = now + min(LONGEST, FIRST * 2**tries)

    def known(self, node_id: int, now: int) -> None:
        """Note that a peer is known; if it restarts it will be greeted soon."""
        self._tries.pop(node_id, None)
        self._next[node_id] = now + FIRST

    def next_time(self) -> int | None:
        """When to greet the next peer; None if all are known."""
        return min((self._next.get(node_id, 0) for node_id in self._wanted), default=None)

"""The link monitor: decides when to reopen the network because a link exists but carries nothing. No clock, no network.

When several processes stand still for longer than the lease (a laptop sleeps, a machine swaps), they close and reopen all links at once on waking.
Zenoh then sometimes ends with a link on which one side has forgotten the other's declarations: its token is not visible, messages to it reach nobody,
questions get no answer, and this never recovers (with 7 of 8 processes stopped for 12 s while exchanging messages, most trials leave one to three pairs
blind). A new session repairs it within a second (`Transport.renew`).
"""

from __future__ import annotations

from collections.abc import Set

BLIND = 10.0
"""Seconds for which a link may exist without the token of its other end; twice as long for the higher node id of the two."""


CALM = 300.0
"""Seconds of visibility after which unsuccessful reopenings are forgotten."""


class LinkMonitor:
    """Tracks which peers have a link but are not visible, and since when."""

    def __init__(self, own: int) -> None:
        self._own = own
        self._since: dict[int, float] = {}
        self._tries: dict[int, int] = {}
        self._shown: dict[int, float] = {}  # since when a peer is visible

    def lost(self, unseen: Set[int], now: float) -> bool:
        """Whether to reopen the network, given the peers that have a link but are not visible; call it about once a second.

        If reopening does not help, a peer is given twice as long each time, so one that never shows itself does little harm.
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
        """Note that a peer is visible. Only lasting visibility resets its count: a peer that flickers must not make others reopen their networks."""
        if now - self._shown.setdefault(node_id, now) >= CALM:
            self._tries.pop(node_id, None)
        self._since.pop(node_id, None)

    def _patience(self, node_id: int) -> float:
        first = (
            BLIND if self._own < node_id else 2 * BLIND
        )  # so that two peers that do not see each other do not both reopen
        return float(first * 2 ** self._tries.get(node_id, 0))

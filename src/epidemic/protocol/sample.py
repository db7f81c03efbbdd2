"""A few peers drawn uniformly from all that a node has ever heard of, however often it heard of each.

Each slot has a secret random key and holds the seen peer with the smallest keyed hash (min-wise sampling, as in Brahms, Bortnikov et al., 2009, and
BASALT, Auvolat et al., 2023). Seeing a peer again changes nothing, so a node that floods others with its own entries gains no slots; without the key
nobody can tell which peers a slot prefers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b

from epidemic.protocol.rules import Draw

SLOTS = 16
"""Number of slots in a sample."""
KEY_BYTES = 16
"""Length of a slot's key in bytes."""
MOST_FAILURES = 3
"""Failed probes in a row after which a peer leaves the sample."""

Saved = tuple[bytes, int, int]
"""A saved slot: its key, its peer and the number of failed probes of that peer."""


@dataclass(slots=True)
class _Slot:
    key: bytes
    peer: int | None = None
    rank: bytes = b""  # the hash of the peer

    def see(self, peer: int) -> None:
        """Hold a peer if no other one that was seen has a smaller hash."""
        rank = blake2b(peer.to_bytes(8, "little"), digest_size=16, key=self.key).digest()
        if self.peer is None or rank < self.rank:
            self.peer, self.rank = peer, rank


class PeerSample:
    """The sample of one node: peers that no flood of entries can replace."""

    def __init__(self, node: int, draw: Draw, saved: Iterable[Saved] = ()) -> None:
        """Start with the slots `saved` before a restart, as far as their peers are still valid; `node` is never in its own sample."""
        self._node = node
        self._draw = draw
        self._failures: dict[int, int] = {}  # failed probes in a row
        self._slots: list[_Slot] = []
        for key, peer, failures in list(saved)[:SLOTS]:
            slot = _Slot(key)
            slot.see(peer)
            self._slots.append(slot)
            if failures:
                self._failures[peer] = failures
        self._slots += [_Slot(self._key()) for _ in range(SLOTS - len(self._slots))]
        self.see(list(self.peers))

    def _key(self) -> bytes:
        return bytes(self._draw(256) for _ in range(KEY_BYTES))

    @property
    def peers(self) -> set[int]:
        """All peers held by a slot."""
        return {slot.peer for slot in self._slots if slot.peer is not None}

    @property
    def saved(self) -> list[Saved]:
        """The slots to keep over a restart."""
        return [(s.key, s.peer, self._failures.get(s.peer, 0)) for s in self._slots if s.peer is not None]

    def see(self, peers: Iterable[int]) -> None:
        """Offer peers to all slots; each keeps the one with the smallest hash."""
        for peer in set(peers) - {self._node}:
            for slot in self._slots:
                slot.see(peer)

    def pick(self, without: Iterable[int] = ()) -> int | None:
        """A random peer of the sample other than these; None if there is none."""
        among = sorted(self.peers - set(without))
        return among[self._draw(len(among))] if among else None

    def answered(self, peer: int) -> None:
        """Note that a probed peer answered: its slots stay."""
        self._failures.pop(peer, None)

    def failed(self, peer: int) -> None:
        """Note a failed probe; after MOST_FAILURES in a row the peer's slots get new keys and are filled from the rest of the sample."""
        failures = self._failures.get(peer, 0) + 1
        if failures < MOST_FAILURES:
            self._failures[peer] = failures
            return
        self.forget(peer)

    def forget(self, peer: int) -> None:
        """Remove a peer; its slots get new keys, so that it does not return at its next mention."""
        self._failures.pop(peer, None)
        left = self.peers - {peer}
        for i, slot in enumerate(self._slots):
            if slot.peer == peer:
                self._slots[i] = _Slot(self._key())
        self.see(left)
        self._failures = {node_id: count for node_id, count in self._failures.items() if node_id in self.peers}

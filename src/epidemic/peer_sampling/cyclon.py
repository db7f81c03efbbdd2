"""Cyclon (Voulgaris, Gavidia, van Steen, 2005): exchanges with the oldest entry keep in-degrees even and remove dead peers."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from epidemic.core.errors import BadInput, require_int
from epidemic.core.graph import IntArray
from epidemic.core.rng import Stream
from epidemic.peer_sampling.base import FREE, FixedSize, Mask, Views, equal, picked, shuffled
from epidemic.protocol.peer_sampler import Entries, Entry, PeerSampler
from epidemic.protocol.rules import Draw


class Cyclon(FixedSize, frozen=True, tag="cyclon"):
    """A node removes its oldest entry q, sends q itself and `shuffle - 1` random entries, and gets as many of q's.

    New entries fill free slots first, then the slots of sent entries. If nothing was new, the node keeps q, which has just answered: full views stay full,
    and the number of entries in the network is constant.
    """

    shuffle: int = 8
    """Entries sent each way in an exchange."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_int("topology.view.shuffle", self.shuffle, 1)
        if self.shuffle > self.size:
            raise BadInput(f"topology.view.shuffle = {self.shuffle} must be at most topology.view.size = {self.size}")

    def exchange(
        self, views: Views, p: IntArray, q: IntArray, slot: IntArray, stream: Stream
    ) -> tuple[IntArray, IntArray]:
        """Swap random entries; the initiator sends itself instead of q."""
        mine, my_ages = views.ids[p], views.ages[p] + 1  # (m, w)
        theirs, their_ages = views.ids[q], views.ages[q]
        mine[np.arange(len(p)), slot] = FREE
        ours = _Chosen(mine, my_ages, self.shuffle - 1, stream)
        answer = _Chosen(theirs, their_ages, self.shuffle, stream)
        asked_ids = np.concatenate([p[:, None].astype(theirs.dtype), ours.ids], axis=1)  # the node itself, with age 0
        asked_ages = np.concatenate([np.zeros((len(p), 1), dtype=their_ages.dtype), ours.ages], axis=1)

        found = _merge(mine, my_ages, p, ours.order, answer.ids, answer.ages)
        _merge(theirs, their_ages, q, answer.order, asked_ids, asked_ages)
        kept = np.flatnonzero(~found)
        mine[kept, ours.order[kept, 0]], my_ages[kept, ours.order[kept, 0]] = q[kept], 0
        views.ids[p], views.ages[p] = mine, my_ages
        views.ids[q], views.ages[q] = theirs, their_ages
        return 1 + (ours.ids != FREE).sum(axis=1), (answer.ids != FREE).sum(axis=1)

    def unanswered(self, views: Views, p: IntArray, slot: IntArray, stream: Stream) -> IntArray:
        """Remove the partner from the view."""
        views.ages[p] += 1
        views.ids[p, slot] = FREE
        sent: IntArray = np.minimum(1 + (views.ids[p] != FREE).sum(axis=1), self.shuffle)
        return sent

    def sampler(self, n: int, node_id: int, draw: Draw) -> PeerSampler:
        """The side of one node, which sees its own view only."""
        return CyclonSampler(node_id, draw, self.slots(n), self.shuffle)


class CyclonSampler(PeerSampler):
    """One node's side of Cyclon. Other exchanges may change its view between its question and the answer."""

    def __init__(self, node_id: int, draw: Draw, size: int, shuffle: int) -> None:
        super().__init__(node_id, draw, shuffle, size)
        self._size = size
        self._sent: list[int] = []  # peers sent in the exchange that it started

    def ask(self, reachable: Iterable[int]) -> tuple[int, Entries] | None:
        """Start an exchange with the oldest peer, which leaves the view unless it is an anchor."""
        self.age()
        partner = self.oldest(reachable)
        if partner is None:
            return None
        kept = partner in self.anchors
        self.drop(partner)
        chosen = self.shuffled(self.entries)[: self.most - 1]
        self._sent = [node_id for node_id, _ in chosen]
        if kept:
            self.entries.append((partner, 0))
        return partner, ((self.node_id, 0), *chosen)

    def reply(self, by: int, got: Entries) -> Entries:
        """Answer with as many random entries."""
        chosen = self.shuffled(self.entries)[: self.most]
        self._merge(self.of_others(got, by, 1), [node_id for node_id, _ in chosen])
        return tuple(chosen)

    def take(self, partner: int, got: Entries) -> None:
        """Take in what is new; if nothing is, keep the partner, which has just answered."""
        if not self._merge(self.of_others(got, partner, 0), self._sent):
            self.meet(partner)

    def _merge(self, got: list[Entry], sent: list[int]) -> bool:
        """Put new entries into free slots, then into those of sent entries, up to half of the view; returns whether any was new."""
        known = dict(self.entries)
        old = [node_id for node_id in sent if node_id in known and node_id not in self.anchors][: (self._size + 1) // 2]
        new = False
        for node_id, age in got:
            if node_id in known:
                continue
            if len(known) >= self._size:
                if not old:
                    break
                del known[old.pop(0)]
            known[node_id] = age
            new = True
        self.entries = list(known.items())
        return new

    def refused(self, partner: int) -> None:
        """Keep the partner, but ask others before it."""
        self.admit(partner)

    def drop(self, node_id: int) -> None:
        """Remove a peer from the view."""
        self.entries = [entry for entry in self.entries if entry[0] != node_id]

    def meet(self, node_id: int) -> None:
        """Add a peer if there is room."""
        if node_id not in self.node_ids and node_id != self.node_id and len(self.entries) < self._size:
            self.entries.append((node_id, 0))


class _Chosen:
    """Random entries of each row to send, and the order in which slots are filled: free ones, those sent, the rest."""

    def __init__(self, ids: IntArray, ages: IntArray, most: int, stream: Stream) -> None:
        w = ids.shape[1]
        self.order = shuffled(ids != FREE, stream)  # (m, w)
        behind = (ids == FREE).sum(axis=1)[:, None] + np.arange(most)  # (m, most)
        slots = picked(self.order, np.minimum(behind, w - 1))
        self.ids = np.where(behind < w, picked(ids, slots), FREE)
        self.ages = picked(ages, slots)


def _merge(ids: IntArray, ages: IntArray, owners: IntArray, order: IntArray, got: IntArray, got_ages: IntArray) -> Mask:
    """Put new entries into the slots in this order; returns whether there were any.   # (m,)"""
    known = equal(ids, got).any(axis=0).T  # (m, l)
    new = (got != FREE) & (got != owners[:, None]) & ~known
    row, at = np.nonzero(new)
    to = order[row, (np.cumsum(new, axis=1) - 1)[row, at]]
    ids[row, to], ages[row, to] = got[row, at], got_ages[row, at]
    found: Mask = new.any(axis=1)
    return found

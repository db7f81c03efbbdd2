"""The gossip-based peer sampling framework (Jelasity, Voulgaris, Guerraoui, Kermarrec, van Steen, 2007).

Three choices span many services: which partner a node asks, whether it is answered, and which entries are discarded from views that are too large.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Literal

import numpy as np

from epidemic.core.errors import BadInput, require_choice, require_int
from epidemic.core.graph import IntArray
from epidemic.core.rng import Stream
from epidemic.peer_sampling.base import FREE, FixedSize, Mask, Views, at_random, equal, oldest, picked, shuffled
from epidemic.protocol.peer_sampler import Entries, Entry, PeerSampler
from epidemic.protocol.rules import Draw

DISCARDS = ("blind", "healer", "swapper")


class Jelasity(FixedSize, frozen=True, tag="jelasity"):
    """A node sends itself and half of its view; views that become too large discard the oldest, those just sent, or random entries.

    An unreachable partner is always dropped: otherwise a node that asks the oldest and discards those sent would ask a dead one for ever.
    """

    fewest: ClassVar[int] = 2

    discard: Literal["blind", "healer", "swapper"] | tuple[int, int] = "swapper"
    """What to discard. healer: size / 2 of the oldest first. swapper: size / 2 of those just sent first. blind: random. Or two numbers [H, S]: up to H of
    the oldest, then up to S of those just sent, then random.
    """
    select: Literal["tail", "rand"] = "tail"
    """Which partner to ask. tail: the oldest. rand: a random one."""
    propagation: Literal["pushpull", "push"] = "pushpull"
    """push: without an answer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice("topology.view.select", self.select, ["tail", "rand"])
        require_choice("topology.view.propagation", self.propagation, ["pushpull", "push"])
        if isinstance(self.discard, str):
            require_choice("topology.view.discard", self.discard, DISCARDS)
            return
        h, s = self.discard
        require_int("topology.view.discard[0]", h, 0, self.size // 2)
        require_int("topology.view.discard[1]", s, 0)
        if s > self.size // 2 - h:
            raise BadInput(
                f"topology.view.discard = [{h}, {s}] must add up to at most size / 2 = {self.size // 2}, which is what is sent"
            )

    def cautions(self, n: int, s: int) -> list[str]:
        """Warn of random discarding, which makes in-degrees uneven."""
        if self.discard not in ("blind", (0, 0)):
            return []
        return [
            "el-local over blind views: some nodes are in no view for many rounds, and their models do not spread;"
            ' topology.view.discard = "swapper" keeps views even'
        ]

    def partners(self, views: Views, rows: IntArray, stream: Stream) -> IntArray:
        """The slot of each node's partner: the oldest entry, or a random one.   # (m,)"""
        return oldest(views, rows, stream) if self.select == "tail" else at_random(views, rows, stream)

    def exchange(
        self, views: Views, p: IntArray, q: IntArray, slot: IntArray, stream: Stream
    ) -> tuple[IntArray, IntArray | None]:
        """Both sides, or q alone, add the entries sent to them and discard what is too much; all entries age."""
        healing, swap = self._numbers(views.ids.shape[1])
        push = self.propagation == "push"
        mine, theirs = _Side(views, p, healing, stream), _Side(views, q, healing, stream, stands=push)
        theirs.take(mine, healing, swap, stream)
        if not push:
            mine.take(theirs, healing, swap, stream)
        mine.keep(views)
        theirs.keep(views)
        return mine.sent, None if push else theirs.sent

    def unanswered(self, views: Views, p: IntArray, slot: IntArray, stream: Stream) -> IntArray:
        """Drop the partner from the view."""
        known = (views.ids[p] != FREE).sum(axis=1)
        views.ids[p, slot] = FREE
        views.ages[p] += 1
        sent: IntArray = 1 + np.minimum(known, _half(views.ids.shape[1]) - 1)
        return sent

    def sampler(self, n: int, node_id: int, draw: Draw) -> PeerSampler:
        """The side of one node, which sees its own view only."""
        width = self.slots(n)
        return JelasitySampler(
            node_id, draw, width, *self._numbers(width), tail=self.select == "tail", pull=self.propagation == "pushpull"
        )

    def _numbers(self, w: int) -> tuple[int, int]:
        """H and S for views of w slots."""
        half = _half(w)
        if isinstance(self.discard, str):
            return {"blind": (0, 0), "healer": (half, 0), "swapper": (0, half)}[self.discard]
        healing = min(self.discard[0], half)
        return healing, min(self.discard[1], half - healing)


def _half(w: int) -> int:
    return max(w // 2, 1)


class JelasitySampler(PeerSampler):
    """One node's side of the framework. The paper's list is: entries sent, the rest, entries received."""

    def __init__(self, node_id: int, draw: Draw, size: int, healing: int, swap: int, *, tail: bool, pull: bool) -> None:
        super().__init__(node_id, draw, _half(size), size)
        self._size, self._healing, self._swap = size, healing, swap
        self._tail, self._pull = tail, pull
        self._sent: set[int] = set()  # peers sent in the exchange that it started ...
        self._partner: int | None = None  # ... and its partner

    def ask(self, reachable: Iterable[int]) -> tuple[int, Entries] | None:
        """Start an exchange with the oldest peer, or a random one."""
        there = sorted(self.node_ids & set(reachable))
        if not there:
            self.age()
            return None
        partner = self.oldest(there) if self._tail else there[self.draw(len(there))]
        assert partner is not None
        order = self._order()
        head = order[: self.most - 1]
        self._sent, self._partner = {node_id for node_id, _ in head}, partner
        if not self._pull:
            self.entries = order  # what was sent stays at the head of the list, for the exchanges that others begin
            self.age()
        return partner, ((self.node_id, 0), *head)

    def _order(self) -> list[Entry]:
        """Its view in random order, the oldest `healing` of them last; the first are sent."""
        order = self.shuffled(self.entries)
        old = set(sorted(range(len(order)), key=lambda i: -order[i][1])[: self._healing])
        return [e for i, e in enumerate(order) if i not in old] + [e for i, e in enumerate(order) if i in old]

    def reply(self, by: int, got: Entries) -> Entries:
        """As much, unless nothing is asked for."""
        if not self._pull:
            self._select(self.of_others(got, by, 1), set())
            return ()
        head = self._order()[: self.most - 1]
        self._select(self.of_others(got, by, 1), {node_id for node_id, _ in head})
        return ((self.node_id, 0), *head)

    def take(self, partner: int, got: Entries) -> None:
        """Take in the answer, if there is one."""
        if self._pull:
            self._select(self.of_others(got, partner, 1), self._sent)

    def _select(self, got: list[Entry], sent: set[int]) -> None:
        """Add what came, then part with entries until they fit, but not with anchors: the oldest, those sent, any; all get older.

        Without `sent` the list is as it stands, so that its head is swapped out.
        """
        listed = [e for e in self.entries if e[0] in sent] + [e for e in self.entries if e[0] not in sent]
        youngest = dict(listed)
        for node_id, age in got:
            if age < youngest.get(node_id, age + 1):  # the younger of two entries stays, in its place
                youngest.pop(node_id, None)
                youngest[node_id] = age
        kept = [entry for entry in youngest.items() if entry[0] in self.anchors]
        found = [entry for entry in youngest.items() if entry[0] not in self.anchors]
        room = self._size - len(kept)
        excess = max(0, len(found) - room)
        for _ in range(min(self._healing, excess)):
            found.remove(max(self.shuffled(found), key=lambda entry: entry[1]))
        excess = max(0, len(found) - room)
        found = found[min(self._swap, excess) :]
        while len(found) > room:
            del found[self.draw(len(found))]
        self.entries = found + kept
        self.age()

    def refused(self, partner: int) -> None:
        """Keep the partner as a new entry, and age the others."""
        self.entries = [(node_id, 0 if node_id == partner else age) for node_id, age in self.entries]
        self._partner = None
        self.age()

    def drop(self, node_id: int) -> None:
        """Remove a peer from the view."""
        self.entries = [entry for entry in self.entries if entry[0] != node_id]
        if node_id == self._partner and self._pull:
            self._partner = None
            self.age()

    def meet(self, node_id: int) -> None:
        """Add a peer if there is room."""
        if node_id not in self.node_ids and node_id != self.node_id and len(self.entries) < self._size:
            self.entries.append((node_id, 0))


class _Side:
    """One of the two in each of m exchanges: its view in the order of the paper's list, and what it sends.

    `stands`: it sends nothing, and its list stays as it is: at the head is what it sent last, in an exchange of its own.
    """

    def __init__(self, views: Views, rows: IntArray, healing: int, stream: Stream, *, stands: bool = False) -> None:
        ids, ages = views.ids[rows], views.ages[rows]
        self.stands = stands
        if stands:
            self.rows, self.width, self.ids, self.ages = rows, ids.shape[1], ids, ages
            return
        free = ids == FREE
        order = shuffled(2 * free + (_oldest(ages, ~free, healing, stream) if healing else 0), stream)
        self.rows, self.width = rows, ids.shape[1]
        # The paper's list: what is sent at the head, the oldest and then free slots last.   # (m, w)
        self.ids, self.ages = picked(ids, order), picked(ages, order)
        head = _half(self.width) - 1
        own = np.zeros((len(rows), 1), dtype=ages.dtype)
        self.out_ids = np.concatenate(
            [rows[:, None].astype(ids.dtype), self.ids[:, :head]], axis=1
        )  # itself, with age 0
        self.out_ages = np.concatenate([own, self.ages[:, :head]], axis=1)
        self.sent: IntArray = (self.out_ids != FREE).sum(axis=1)

    def take(self, other: _Side, healing: int, swap: int, stream: Stream) -> None:
        """Add what the other side sends, then discard entries until the rest fits."""
        got, got_ages = other.out_ids, other.out_ages
        slot, at, row = np.nonzero(equal(self.ids, got))  # entries known to both, and free slots
        younger = got_ages[row, at] < self.ages[row, slot]
        ids, ages = np.concatenate([self.ids, got], axis=1), np.concatenate([self.ages, got_ages], axis=1)
        ids[row, np.where(younger, slot, self.width + at)] = FREE
        ids[:, self.width :][got == self.rows[:, None]] = FREE
        excess = np.maximum((ids != FREE).sum(axis=1) - self.width, 0)  # (m,)
        if healing:
            old = _oldest(ages, ids != FREE, np.minimum(healing, excess), stream)
            excess = excess - old.sum(axis=1)
            ids[old] = FREE
        if swap:
            here = ids != FREE
            head = here & (np.cumsum(here, axis=1) <= np.minimum(swap, excess)[:, None])
            ids[head] = FREE
        order = shuffled(ids == FREE, stream)[:, : self.width]  # any of those left, as many as fit
        order = np.sort(order, axis=1) if self.stands else order
        self.ids, self.ages = picked(ids, order), picked(ages, order)

    def keep(self, views: Views) -> None:
        """Store the new views, one cycle older."""
        views.ids[self.rows], views.ages[self.rows] = self.ids, self.ages + 1


def _oldest(ages: IntArray, among: Mask, most: IntArray | int, stream: Stream) -> Mask:
    """Mark the `most` oldest entries of each row, at random among equals.   # (m, w)"""
    m, w = ages.shape
    key = ((ages.astype(np.int64) + 1) << 32) | (stream.words(m * w).reshape(m, w) >> np.uint64(32)).astype(np.int64)
    key[~among] = 0
    most = np.asarray(np.minimum(most, among.sum(axis=1)))
    least = picked(np.sort(key, axis=1), np.minimum(w - most, w - 1)[:, None])  # (m, 1)
    found: Mask = (key >= least) & (most > 0)[:, None] & among
    return found

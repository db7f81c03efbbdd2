"""Spray (Nedelec, Tanke, Frey, Molli, Mostefaoui, 2018): views whose size adapts to the size of the network.

A view is a multiset. Exchanges move arcs and never create or lose one, so the joins decide their number: n * (a ln n + b).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

import numpy as np

from epidemic.core.errors import BadInput, require_int
from epidemic.core.graph import IntArray
from epidemic.core.memory import require_memory
from epidemic.core.rng import Stream
from epidemic.peer_sampling.base import FREE, Control, PeerSampling, ReachableLinks, Views, picked, shuffled
from epidemic.protocol.peer_sampler import Entries, Entry, PeerSampler
from epidemic.protocol.rules import Draw

EULER = 0.5772156649015329

MOST_COPIES = 2
"""Most arcs from a deployed node to one peer."""
OFTEN = 16
"""Up to this many nodes, a cycle of exchanges follows every join."""


class Spray(PeerSampling, frozen=True, tag="spray"):
    """Views of about `a` ln n + `b` entries, some of them twice; both sides of an exchange send half of theirs.

    Nodes join one after the other: the newcomer gets `a` arcs, the first of them to its contact, and each peer in the contact's view (with multiplicity) gets
    an arc to the newcomer. a = 1 and b = 0 is the service as published.
    """

    a: int = 1
    b: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_int("topology.view.a", self.a, 1, 100)
        require_int("topology.view.b", self.b, 0, 1000)

    def mean_size(self, n: int) -> float:
        """The average number of arcs of a node."""
        return self.a * math.log(n) + self.b

    def check(self, n: int, s: int) -> None:
        """Raise BadInput if the mean view is smaller than s."""
        size = self.mean_size(n)
        if s > size:
            enough = math.ceil((s - self.b) / math.log(n))
            raise BadInput(
                f"topology.s = {s} must be at most the size of a view, which is a ln n + b = {size:.1f} for spray among"
                f" nodes = {n}; use topology.view.a = {max(enough, self.a)} or a smaller s"
            )
        require_memory("topology.view", int(256 * n * size), "use fewer nodes")

    def cautions(self, n: int, s: int) -> list[str]:
        """Warn of mixing rules that need views of equal size."""
        return [
            f"el-local over spray: views have about {self.mean_size(n):.1f} entries, some of them twice; a node that knows fewer than"
            f" s = {s} others sends to all of them"
        ]

    def start(self, n: int, stream: Stream) -> Views:
        """The views after all nodes have joined, each through a random contact among the earlier ones.

        Exchanges continue meanwhile, one cycle whenever the network has doubled, at first after every join. Otherwise early nodes would have far larger views
        than the others, and the number of arcs would be a matter of luck.
        """
        u = stream.uniforms(n, self.a)
        pair = max(1, round(self.a * (1.5 - EULER) + self.b))  # then the mean grows by a / k with the k-th node
        known: list[list[int]] = [[1] * pair, [0] * pair]
        for i in range(2, n):
            if i < OFTEN or i & (i - 1) == 0:
                views = _as_views(known)
                self.cycle(views, stream)
                known = [[j for j in row if j != FREE] for row in views.ids.tolist()]
            contacts = (u[i] * i).astype(np.int64).tolist()
            for j in known[contacts[0]]:
                known[j].append(i)
            known.append(contacts)
        return _as_views(known)

    def exchange(
        self, views: Views, p: IntArray, q: IntArray, slot: IntArray, stream: Stream
    ) -> tuple[IntArray, IntArray]:
        """Each side sends half of its arcs and takes the other's; the initiator sends an arc to itself instead of the one to q."""
        mine, my_ages = views.ids[p], views.ages[p] + 1
        theirs, their_ages = views.ids[q], views.ages[q]
        halves = [((rows != FREE).sum(axis=1) + 1) // 2 for rows in (mine, theirs)]  # (m,) each
        mine[np.arange(len(p)), slot] = FREE
        ours, answer = _Cut(mine, my_ages, halves[0] - 1, stream), _Cut(theirs, their_ages, halves[1], stream)
        ours.readdress(q, p)
        answer.readdress(p, q)
        own = p[:, None].astype(mine.dtype), np.zeros((len(p), 1), dtype=my_ages.dtype)  # itself, with age 0
        _store(views, p, [ours.kept, answer.sent])
        _store(views, q, [answer.kept, ours.sent, own])
        return halves[0], halves[1]

    def unanswered(self, views: Views, p: IntArray, slot: IntArray, stream: Stream) -> IntArray:
        """Remove all arcs to a dead peer; replace each by a second arc to another peer, except a fraction that depends on the view's size."""
        views.ages[p] += 1
        ids, ages = views.ids[p], views.ages[p]
        before = (ids != FREE).sum(axis=1)  # (m,)
        gone = ids == ids[np.arange(len(p)), slot][:, None]  # (m, w)
        left = before - gone.sum(axis=1)
        u = stream.uniforms(2, *ids.shape)
        again = gone & (u[0] < 1 - 1 / before[:, None]) & (left > 0)[:, None]
        ids[gone] = FREE
        order = np.argsort(ids == FREE, axis=1, kind="stable")  # (m, w) remaining arcs first
        source = picked(order, (u[1] * left[:, None]).astype(np.int64))
        views.ids[p] = np.where(again, picked(ids, source), ids)
        views.ages[p] = np.where(again, picked(ages, source), ages)
        sent: IntArray = (before + 1) // 2
        return sent

    def sampler(self, n: int, node_id: int, draw: Draw) -> PeerSampler:
        """The side of one node, which sees its own view only."""
        usual = max(1, round(self.mean_size(n)))
        return SpraySampler(node_id, draw, usual, n - 1)

    def cycle(self, views: Views, stream: Stream, links: ReachableLinks | None = None) -> Control:
        """Run one exchange per node, then trim slots to the largest view."""
        done = super().cycle(views, stream, links)
        order = np.argsort(views.ids == FREE, axis=1, kind="stable")
        order = order[:, : max(int((views.ids != FREE).sum(axis=1).max()), 1)]
        views.ids, views.ages = picked(views.ids, order), picked(views.ages, order)
        return done


class SpraySampler(PeerSampler):
    """One node's side of Spray. Sent arcs are no longer its own, unless the partner does not answer or gives arcs that cannot be taken.

    A view has at most two arcs to one peer, more only if it may be larger than the network. It keeps a sent arc rather than take a further one, so one peer
    cannot fill it, and the number of arcs stays that of the published service.
    """

    def __init__(self, node_id: int, draw: Draw, usual: int, others: int) -> None:
        """Start empty; `usual`: average number of arcs, of which at most four times as many are kept; `others`: number of peers."""
        super().__init__(node_id, draw, 2 * usual, usual)
        self.copies = max(MOST_COPIES, -(-4 * usual // others))
        self._partner: int | None = None  # the partner of the exchange that it started ...
        self._sent: list[Entry] = []  # ... and the arcs sent in it
        self._extra = False  # whether the partner is an anchor, so that its arc was kept

    def ask(self, reachable: Iterable[int]) -> tuple[int, Entries] | None:
        """Start an exchange with the oldest: half of the arcs at random, with itself in place of the arc to the partner."""
        self.age()
        partner = self.oldest(reachable)
        if partner is None:
            return None
        half = (len(self.entries) + 1) // 2
        arc = next(entry for entry in self.entries if entry[0] == partner)
        self.entries.remove(arc)
        self._extra = partner in self.anchors and partner not in self.node_ids
        chosen, self.entries = self._cut(half - 1)
        self._partner, self._sent = partner, [arc, *chosen]
        if self._extra:
            self._sent.remove(arc)
            self.entries.append((partner, 0))
        return partner, ((self.node_id, 0), *self._readdressed(chosen, partner))

    def reply(self, by: int, got: Entries) -> Entries:
        """Answer with half of the arcs, at random."""
        chosen, self.entries = self._cut((len(self.entries) + 1) // 2)
        self._add(by, got, chosen)
        return tuple(self._readdressed(chosen, by))

    def take(self, partner: int, got: Entries) -> None:
        """Take in the partner's arcs."""
        sent, self._partner, self._sent = self._sent, None, []
        self._add(partner, got, sent, int(self._extra))

    def _cut(self, count: int) -> tuple[list[Entry], list[Entry]]:
        """Split the arcs at random: (to send, to keep); an arc to each anchor is kept."""
        order = self.shuffled(self.entries)
        kept = []
        for anchor in self.anchors:
            at = next((i for i, entry in enumerate(order) if entry[0] == anchor), None)
            if at is not None:
                kept.append(order.pop(at))
        count = min(count, self.most)
        return order[:count], order[count:] + kept

    def _readdressed(self, entries: list[Entry], receiver: int) -> list[Entry]:
        """Turn arcs to the receiver into arcs to the sender."""
        return [(self.node_id, 0) if entry[0] == receiver else entry for entry in entries]

    def _add(self, partner: int, got: Entries, sent: list[Entry], extra: int = 0) -> None:
        """Add as many arcs as came, less `extra`: those that may be taken, then some that were sent."""
        most = len(self.entries) + len(got[: self.most]) - extra
        least = min(len(self.entries) + len(sent), 2)  # a partner that gives nothing does not empty the view
        most = min(max(most, least), 4 * self.usual)
        copies = Counter(node_id for node_id, _ in self.entries)

        def fill(arcs: list[Entry], bound: int) -> list[Entry]:
            """Add arcs while there is room; returns the others."""
            left = []
            for arc in arcs:
                if len(self.entries) < most and copies[arc[0]] < bound:
                    copies[arc[0]] += 1
                    self.entries.append(arc)
                else:
                    left.append(arc)
            return left

        second = fill(self.of_others(got, partner, self.copies), 1)
        fill(sent, self.copies)
        fill(second, self.copies)

    def refused(self, partner: int) -> None:
        """Leave the view unchanged, but ask others before the partner."""
        self._take_back()
        self.entries = [(node_id, 0 if node_id == partner else age) for node_id, age in self.entries]

    def _take_back(self) -> None:
        """Take back the sent arcs, which did not arrive."""
        sent, self._partner, self._sent = self._sent, None, []
        copies = Counter(node_id for node_id, _ in self.entries)
        for entry in sent:
            copies[entry[0]] += 1
            if copies[entry[0]] <= self.copies:
                self.entries.append(entry)

    @property
    def saved(self) -> list[Entry]:
        """The view, including arcs on their way."""
        return self.entries + self._sent

    def drop(self, node_id: int) -> None:
        """Remove all arcs to a peer; replace each by a second arc to another peer, except a fraction that depends on the view's size."""
        if node_id == self._partner:
            self._take_back()
        before = len(self.entries)
        left = [entry for entry in self.entries if entry[0] != node_id]
        copies = Counter(peer for peer, _ in left)
        for _ in range(before - len(left)):
            once = [entry for entry in left if copies[entry[0]] < self.copies]
            if once and self.draw(before) > 0:
                left.append(once[self.draw(len(once))])
                copies[left[-1][0]] += 1
        self.entries = left

    def meet(self, node_id: int) -> None:
        """Add an arc to a peer while there are fewer than usual."""
        if node_id not in self.node_ids and node_id != self.node_id and len(self.entries) < self.usual:
            self.entries.append((node_id, 0))


Slots = tuple[IntArray, IntArray]
"""Ids and ages.   # (m, k) each"""


class _Cut:
    """The entries of each row split at random in two parts: sent and kept."""

    def __init__(self, ids: IntArray, ages: IntArray, sent: IntArray, stream: Stream) -> None:
        order = shuffled(ids == FREE, stream)
        ids, ages = picked(ids, order), picked(ages, order)
        goes = np.arange(ids.shape[1]) < sent[:, None]
        most = int(sent.max())
        self.kept: Slots = np.where(goes, FREE, ids), ages
        self.sent: Slots = np.where(goes, ids, FREE)[:, :most], ages[:, :most]

    def readdress(self, receivers: IntArray, senders: IntArray) -> None:
        """Turn arcs to the receiver into arcs to the sender, so that no node gets one to itself."""
        ids, ages = self.sent
        own = ids == receivers[:, None]
        self.sent = np.where(own, senders[:, None].astype(ids.dtype), ids), np.where(own, 0, ages)


def _as_views(known: list[list[int]]) -> Views:
    """Lists of arcs as views, all of age 0."""
    sizes = np.array([len(view) for view in known])
    ids = np.full((len(known), sizes.max()), FREE, dtype=np.int32)
    ids[np.arange(ids.shape[1]) < sizes[:, None]] = [j for view in known for j in view]
    return Views(ids, np.zeros_like(ids))


def _store(views: Views, rows: IntArray, parts: list[Slots]) -> None:
    """Store these entries as the views of the rows, adding slots if necessary."""
    ids, ages = (np.concatenate([part[i] for part in parts], axis=1) for i in (0, 1))
    order = np.argsort(ids == FREE, axis=1, kind="stable")
    most, w = int((ids != FREE).sum(axis=1).max()), views.ids.shape[1]
    if most > w:
        more = np.full((len(views.ids), most - w), FREE, dtype=views.ids.dtype)
        views.ids = np.concatenate([views.ids, more], axis=1)
        views.ages = np.concatenate([views.ages, np.zeros_like(more)], axis=1)
    order = order[:, : views.ids.shape[1]]
    views.ids[rows, : order.shape[1]], views.ages[rows, : order.shape[1]] = picked(ids, order), picked(ages, order)
    views.ids[rows, order.shape[1] :] = FREE

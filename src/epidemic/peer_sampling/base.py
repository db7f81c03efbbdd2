"""What a peer sampling service is: every node knows a few others, its view, and exchanges parts of it with them.

A cycle lets every node that is up start one exchange, one after the other in random order, as in the papers. Exchanges of different
nodes do not touch each other, so those whose turn it is among all that touch their two nodes are worked out at once; what comes out is
that of some order, to the bit, and every law of the sequential service holds.

Shapes: n nodes, w slots of a view, m exchanges that are worked out at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from epidemic.core.errors import BadInput, require_choice, require_int
from epidemic.core.graph import IntArray
from epidemic.core.memory import require_memory
from epidemic.core.rng import Stream, distinct
from epidemic.core.settings import Settings
from epidemic.protocol.peer_sampler import PeerSampler
from epidemic.protocol.rules import Draw

Mask = NDArray[np.bool_]

FREE = -1
"""The id in a slot that is free."""

MOST_CYCLES = 1000
"""In a round; more take seconds even for a few nodes."""
SLOT_BITS = 16
"""So many low bits of a key say which slot it belongs to."""

MOST_SLOTS = 2**SLOT_BITS
SLOT_MASK = np.uint64(MOST_SLOTS - 1)


@dataclass
class Views:
    """Whom every node knows, and since when it has not heard of them; free slots have id -1. Changed in place."""

    ids: IntArray  # (n, w)
    ages: IntArray  # (n, w)


class Control(NamedTuple):
    """What each node sent to find its peers: messages without a model, and entries of views in them.   # (n,) each"""

    messages: IntArray
    entries: IntArray


class ReachableLinks(Protocol):
    """Who can talk to whom in a round."""

    @property
    def alive(self) -> Mask:
        """Who is up.   # (n,)"""
        ...

    def open(self, senders: IntArray, receivers: IntArray) -> Mask:
        """Whether each sender can reach the receiver beside it."""
        ...


class PeerSampling(Settings, frozen=True, kw_only=True, tag_field="kind", forbid_unknown_fields=True):
    """Base of the services. A service says how views start, whom a node asks, and what an exchange does."""

    cycles: int = 1
    """Exchanges that every node starts in a round."""

    def __post_init__(self) -> None:
        require_int("topology.view.cycles", self.cycles, 1, MOST_CYCLES)

    def check(self, n: int, s: int) -> None:
        """Raise BadInput if views of n nodes cannot be had, or are too small to draw s targets from."""

    def cautions(self, n: int, s: int) -> list[str]:
        """What is allowed but worth knowing."""
        return []

    def start(self, n: int, stream: Stream) -> Views:
        """Whom nodes know before the first cycle."""
        raise NotImplementedError

    def partners(self, views: Views, rows: IntArray, stream: Stream) -> IntArray:
        """For each of these nodes, the slot of the one that it asks: the oldest, at random among equals.   # (m,)"""
        return oldest(views, rows, stream)

    def exchange(
        self, views: Views, p: IntArray, q: IntArray, slot: IntArray, stream: Stream
    ) -> tuple[IntArray, IntArray | None]:
        """Let each p, which knows q in its slot, exchange entries with it; all of them different nodes.

        Gives how many entries each p sent, and each q in its answer; None: there are no answers.   # (m,) each
        """
        raise NotImplementedError

    def unanswered(self, views: Views, p: IntArray, slot: IntArray, stream: Stream) -> IntArray:
        """What each p does whose partner is not there; gives how many entries it sent in vain.   # (m,)"""
        raise NotImplementedError

    def sampler(self, n: int, node_id: int, draw: Draw) -> PeerSampler:
        """What one of n nodes does that is deployed, and sees its own view only; `draw` gives random whole numbers below its argument."""
        raise NotImplementedError

    def cycle(self, views: Views, stream: Stream, links: ReachableLinks | None = None) -> Control:
        """One exchange started by everybody who is up; without `links` all are, and reach each other."""
        n = len(views.ids)
        messages, entries = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
        up = np.arange(n) if links is None else np.flatnonzero(links.alive)
        _introduce(views, up, stream)
        turn = stream.permutation(n)
        waiting = up[(views.ids[up] != FREE).any(axis=1)]
        slots, choosing = np.zeros(n, dtype=np.int64), waiting
        first = np.empty(n, dtype=np.int64)  # the first turn that touches each node
        while waiting.size:
            slots[choosing] = self.partners(views, choosing, stream)
            slot = slots[waiting]
            other = views.ids[waiting, slot]
            answers = np.ones(len(waiting), dtype=bool) if links is None else links.open(waiting, other)
            mine = turn[waiting]
            first.fill(n)
            first[waiting] = mine
            np.minimum.at(first, other[answers], mine[answers])
            ready = (first[waiting] == mine) & (~answers | (first[other] == mine))
            now, vain = ready & answers, ready & ~answers
            if vain.any():
                p = waiting[vain]
                messages[p] += 1
                entries[p] += self.unanswered(views, p, slot[vain], stream)
            if now.any():
                p, q = waiting[now], other[now]
                sent, answered = self.exchange(views, p, q, slot[now], stream)
                messages[p] += 1
                entries[p] += sent
                if answered is not None:
                    messages[q] += 1
                    entries[q] += answered
            waiting = waiting[~ready]
            asked = np.zeros(n, dtype=bool)
            asked[other[now]] = True
            choosing = waiting[asked[waiting]]  # the views of the others are as they were
        return Control(messages, entries)


class FixedSize(PeerSampling, frozen=True):
    """Services whose views have a fixed number of slots."""

    fewest: ClassVar[int] = 1

    size: int = 20
    """How many others a node knows."""
    bootstrap: Literal["random", "ring"] = "random"
    """Whom nodes know at first: random others, or the next ones on a ring."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_int("topology.view.size", self.size, self.fewest, MOST_SLOTS // 4)
        require_choice("topology.view.bootstrap", self.bootstrap, ["random", "ring"])

    def check(self, n: int, s: int) -> None:
        """Raise BadInput if views are smaller than s, or too large for the memory."""
        if s > self.size:
            raise BadInput(
                f"topology.s = {s} must be at most topology.view.size = {self.size}: targets are drawn from the view"
            )
        require_memory(f"topology.view.size = {self.size}", 64 * n * self.slots(n), "use a smaller view or fewer nodes")

    def slots(self, n: int) -> int:
        """Slots of a view among n nodes: nobody can know more than all others."""
        return min(self.size, n - 1)

    def start(self, n: int, stream: Stream) -> Views:
        """Full views, of entries that are all new."""
        w = self.slots(n)
        own = np.arange(n)[:, None]
        if self.bootstrap == "ring":
            ids: IntArray = (own + 1 + np.arange(w)) % n
        else:
            others = distinct(stream, n, n - 1, w)
            ids = others + (others >= own)
        return Views(ids.astype(np.int32), np.zeros((n, w), dtype=np.int32))


def oldest(views: Views, rows: IntArray, stream: Stream) -> IntArray:
    """The slot of the entry with the largest age, at random among equals.   # (m,)"""
    ids, ages = views.ids[rows], views.ages[rows]
    key = (ages.astype(np.int64) << 32) | (stream.words(ids.size).reshape(ids.shape) >> np.uint64(32)).astype(np.int64)
    return _largest(key, ids)


def at_random(views: Views, rows: IntArray, stream: Stream) -> IntArray:
    """The slot of any entry.   # (m,)"""
    ids = views.ids[rows]
    key = (stream.words(ids.size).reshape(ids.shape) >> np.uint64(1)).astype(np.int64)
    return _largest(key, ids)


def _largest(key: NDArray[np.int64], ids: IntArray) -> IntArray:
    """The slot of the largest key, free slots aside."""
    key[ids == FREE] = -1
    slot: IntArray = np.argmax(key, axis=1)
    return slot


def shuffled(part: NDArray[Any], stream: Stream) -> IntArray:
    """The slots of each row in random order: those of part 0 first, then those of parts 1 and 2.   # (m, w)"""
    m, w = part.shape
    key = stream.words(m * w).reshape(m, w) >> np.uint64(2)
    key &= ~SLOT_MASK
    key |= np.arange(w, dtype=np.uint64)  # sorting keys that carry their slot is faster than sorting slots by keys
    key |= part.astype(np.uint64) << np.uint64(62)
    key.sort(axis=1)
    order: IntArray = (key & SLOT_MASK).astype(np.int64)
    return order


def equal(rows: IntArray, others: IntArray) -> Mask:
    """Which slots of each row have the id of which of the others; rows last, which is five times as fast.   # (w, k, m)"""
    found: Mask = np.ascontiguousarray(rows.T)[:, None, :] == np.ascontiguousarray(others.T)[None, :, :]
    return found


def picked(rows: IntArray, order: IntArray) -> IntArray:
    """The entries of each row in this order of slots.   # (m, k)"""
    found: IntArray = np.take_along_axis(rows, order, axis=1)
    return found


def _introduce(views: Views, up: IntArray, stream: Stream) -> None:
    """Who knows nobody any more is told of somebody who is up, as when it first came."""
    alone = up[(views.ids[up] == FREE).all(axis=1)]
    if alone.size and len(up) > 1:
        node_id = np.searchsorted(up, alone)
        drawn = stream.integers(len(up) - 1, len(alone))
        views.ids[alone, 0] = up[drawn + (drawn >= node_id)]
        views.ages[alone, 0] = 0


def distinct_entries(ids: IntArray) -> tuple[IntArray, IntArray]:
    """Each view's different ids, ascending behind free slots, and how many they are.   # (n, w), (n,)"""
    ordered = np.sort(ids, axis=1)
    ordered[:, 1:][ordered[:, 1:] == ordered[:, :-1]] = FREE
    ordered.sort(axis=1)
    return ordered, (ordered != FREE).sum(axis=1)

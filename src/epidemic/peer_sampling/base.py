"""The interface of peer sampling services: every node knows a few peers, its view, and exchanges parts of it with them.

In a cycle every node that is up starts one exchange, one after the other in random order, as in the papers. Exchanges of disjoint pairs of nodes do not
affect each other, so those that come first for both of their nodes are computed at once. The result equals, to the bit, that of a sequential order, and
every law of the sequential service holds.

Shapes: n nodes, w slots of a view, m exchanges computed at once.
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
"""The id in a free slot."""

MOST_CYCLES = 1000
"""Most cycles per round; more take seconds even for a few nodes."""
SLOT_BITS = 16
"""Low bits of a key that hold its slot."""

MOST_SLOTS = 2**SLOT_BITS
SLOT_MASK = np.uint64(MOST_SLOTS - 1)


@dataclass
class Views:
    """The view of every node: ids and ages of entries; free slots have id -1. Changed in place."""

    ids: IntArray  # (n, w)
    ages: IntArray  # (n, w)


class Control(NamedTuple):
    """What each node sent to find peers: messages without a model, and entries of views in them.   # (n,) each"""

    messages: IntArray
    entries: IntArray


class ReachableLinks(Protocol):
    """Which nodes can reach each other in a round."""

    @property
    def alive(self) -> Mask:
        """Which nodes are up.   # (n,)"""
        ...

    def open(self, senders: IntArray, receivers: IntArray) -> Mask:
        """Whether each sender can reach the receiver at the same position.   # (m,)"""
        ...


class PeerSampling(Settings, frozen=True, kw_only=True, tag_field="kind", forbid_unknown_fields=True):
    """Base of the services: initial views, choice of partners, and the effect of an exchange."""

    cycles: int = 1
    """Exchanges that every node starts per round."""

    def __post_init__(self) -> None:
        require_int("topology.view.cycles", self.cycles, 1, MOST_CYCLES)

    def check(self, n: int, s: int) -> None:
        """Raise BadInput if views of n nodes are impossible, or too small to draw s targets from."""

    def cautions(self, n: int, s: int) -> list[str]:
        """Warnings about settings that are allowed but unwise."""
        return []

    def start(self, n: int, stream: Stream) -> Views:
        """The views before the first cycle."""
        raise NotImplementedError

    def partners(self, views: Views, rows: IntArray, stream: Stream) -> IntArray:
        """For each of these nodes, the slot of its partner: the oldest entry, at random among equals.   # (m,)"""
        return oldest(views, rows, stream)

    def exchange(
        self, views: Views, p: IntArray, q: IntArray, slot: IntArray, stream: Stream
    ) -> tuple[IntArray, IntArray | None]:
        """Let each p exchange entries with the peer q in its slot; all of them are different nodes.

        Returns:
            The entries that each p sent, and each q in its answer; None: there are no answers.   # (m,) each
        """
        raise NotImplementedError

    def unanswered(self, views: Views, p: IntArray, slot: IntArray, stream: Stream) -> IntArray:
        """Handle partners that are down; returns how many entries each p sent in vain.   # (m,)"""
        raise NotImplementedError

    def sampler(self, n: int, node_id: int, draw: Draw) -> PeerSampler:
        """The side of one of n deployed nodes, which sees its own view only; `draw` returns random integers below its argument."""
        raise NotImplementedError

    def cycle(self, views: Views, stream: Stream, links: ReachableLinks | None = None) -> Control:
        """Run one cycle: every node that is up starts one exchange. Without `links` all nodes are up and reach each other."""
        n = len(views.ids)
        messages, entries = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
        up = np.arange(n) if links is None else np.flatnonzero(links.alive)
        _introduce(views, up, stream)
        turn = stream.permutation(n)
        waiting = up[(views.ids[up] != FREE).any(axis=1)]
        slots, choosing = np.zeros(n, dtype=np.int64), waiting
        first = np.empty(n, dtype=np.int64)  # the first turn that involves each node
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
            choosing = waiting[asked[waiting]]  # the views of the others are unchanged
        return Control(messages, entries)


class FixedSize(PeerSampling, frozen=True):
    """Base of services whose views have a fixed number of slots."""

    fewest: ClassVar[int] = 1

    size: int = 20
    """Number of peers that a node knows."""
    bootstrap: Literal["random", "ring"] = "random"
    """Initial views: random peers, or the next ones on a ring."""

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
        """Slots of a view among n nodes, at most all others."""
        return min(self.size, n - 1)

    def start(self, n: int, stream: Stream) -> Views:
        """Full views with entries of age 0."""
        w = self.slots(n)
        own = np.arange(n)[:, None]
        if self.bootstrap == "ring":
            ids: IntArray = (own + 1 + np.arange(w)) % n
        else:
            others = distinct(stream, n, n - 1, w)
            ids = others + (others >= own)
        return Views(ids.astype(np.int32), np.zeros((n, w), dtype=np.int32))


def oldest(views: Views, rows: IntArray, stream: Stream) -> IntArray:
    """The slot of the oldest entry, at random among equals.   # (m,)"""
    ids, ages = views.ids[rows], views.ages[rows]
    key = (ages.astype(np.int64) << 32) | (stream.words(ids.size).reshape(ids.shape) >> np.uint64(32)).astype(np.int64)
    return _largest(key, ids)


def at_random(views: Views, rows: IntArray, stream: Stream) -> IntArray:
    """The slot of a random entry.   # (m,)"""
    ids = views.ids[rows]
    key = (stream.words(ids.size).reshape(ids.shape) >> np.uint64(1)).astype(np.int64)
    return _largest(key, ids)


def _largest(key: NDArray[np.int64], ids: IntArray) -> IntArray:
    """The slot of the largest key, without free slots."""
    key[ids == FREE] = -1
    slot: IntArray = np.argmax(key, axis=1)
    return slot


def shuffled(part: NDArray[Any], stream: Stream) -> IntArray:
    """The slots of each row in random order: those of part 0 first, then parts 1 and 2.   # (m, w)"""
    m, w = part.shape
    key = stream.words(m * w).reshape(m, w) >> np.uint64(2)
    key &= ~SLOT_MASK
    key |= np.arange(w, dtype=np.uint64)  # sorting keys that contain their slot is faster than sorting slots by keys
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
    """Give each node with an empty view the id of a node that is up."""
    alone = up[(views.ids[up] == FREE).all(axis=1)]
    if alone.size and len(up) > 1:
        node_id = np.searchsorted(up, alone)
        drawn = stream.integers(len(up) - 1, len(alone))
        views.ids[alone, 0] = up[drawn + (drawn >= node_id)]
        views.ages[alone, 0] = 0


def distinct_entries(ids: IntArray) -> tuple[IntArray, IntArray]:
    """The distinct ids of each view, ascending behind free slots, and their number.   # (n, w), (n,)"""
    ordered = np.sort(ids, axis=1)
    ordered[:, 1:][ordered[:, 1:] == ordered[:, :-1]] = FREE
    ordered.sort(axis=1)
    return ordered, (ordered != FREE).sum(axis=1)

"""When nodes are online: answers questions about any time in any order, from little memory.

A session is half-open, [a, b): at a the node is online, at b it is offline. All times are microseconds.
"""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from epidemic.clock.draws import BLOCK, FloatArray, TimeArray
from epidemic.core.rng import Stream


class Timeline(Protocol):
    """When each node is online, as a kind of churn generates it."""

    def on_at(self, node: int, time: int) -> bool:
        """Whether the node is online at this time."""
        ...

    def next_change(self, node: int, after: int) -> int | None:
        """The first time after `after` at which it changes; None: never again."""
        ...

    def availability(self) -> FloatArray:
        """The long-run share of time that each node is online.   # (n,)"""
        ...


class Cycle:
    """One node's sessions, repeated with a period if there is one.

    Changes are stored by their time within the period, so any question is one binary search however far ahead.
    """

    def __init__(self, sessions: Sequence[tuple[int, int]], period: int | None) -> None:
        """Build from sorted, disjoint sessions [a, b); touching ones are merged, also across the end of the period."""
        edges = array("q")
        for start, end in sessions:
            if edges and edges[-1] == start:
                edges[-1] = end
            else:
                edges.extend((start, end))
        self.on_time = sum(edges[1::2]) - sum(edges[::2])
        self.length = period if period is not None else (edges[-1] if edges else 0)
        self._on_at_zero = bool(edges) and edges[0] == 0
        self._period = period
        if self._on_at_zero:
            del edges[0]
        if period is not None and edges and edges[-1] == period:
            del edges[-1]  # online at the end: a change there only if the period begins offline
            if not self._on_at_zero:
                edges.insert(0, 0)
        elif period is not None and self._on_at_zero:
            edges.insert(0, 0)
        # Online at zero and a change at zero have the same parity: this is the state just before zero.
        self._on_before = self._on_at_zero != (bool(edges) and edges[0] == 0)
        self._changes = edges

    def on_at(self, time: int) -> bool:
        """Whether the node is online at this time."""
        place = time if self._period is None else time % self._period
        return self._on_before ^ (bisect_right(self._changes, place) % 2 == 1)

    def next_change(self, after: int) -> int | None:
        """The first change after this time; None: never."""
        changes, period = self._changes, self._period
        if not changes:
            return None
        if period is None:
            number = bisect_right(changes, after)
            return changes[number] if number < len(changes) else None
        place = after % period
        number = bisect_right(changes, place)
        return after - place + (changes[number] if number < len(changes) else period + changes[0])


class Cycles:
    """A cycle per node; nodes without one are always online."""

    def __init__(self, cycles: Sequence[Cycle | None]) -> None:
        self._cycles = cycles

    def on_at(self, node: int, time: int) -> bool:
        """Whether the node is online at this time."""
        cycle = self._cycles[node]
        return cycle is None or cycle.on_at(time)

    def next_change(self, node: int, after: int) -> int | None:
        """The first change after this time; None: never."""
        cycle = self._cycles[node]
        return None if cycle is None else cycle.next_change(after)

    def availability(self) -> FloatArray:
        """Time online over the period; without a period, over the time until the last session ends.   # (n,)"""
        shares = [1.0 if c is None else c.on_time / c.length if c.length else 0.0 for c in self._cycles]
        return np.array(shares)


class Renewals:
    """Alternating sessions and pauses of random lengths, independent for each node.

    Lengths are drawn in blocks, of which each node keeps one; a question about an earlier time starts again from the first.
    """

    def __init__(self, starts_on: Sequence[bool], lengths: Callable[[int, int], TimeArray], share: float) -> None:
        """Start; `lengths(node, block)` returns BLOCK alternating lengths, the first of block 0 in the state at the start."""
        self._starts_on, self._lengths, self._share = starts_on, lengths, share
        self._number = [-1] * len(starts_on)  # index of the block that each node keeps
        self._began = [0] * len(starts_on)  # when that block begins
        self._changes = [array("q", [0])] * len(starts_on)  # its changes, ascending

    def on_at(self, node: int, time: int) -> bool:
        """Whether the node is online at this time."""
        return self._starts_on[node] ^ (self._position(node, time) % 2 == 1)

    def next_change(self, node: int, after: int) -> int:
        """The first change after this time."""
        position = self._position(node, after)  # generates the block that is read here
        return self._changes[node][position]

    def availability(self) -> FloatArray:
        """The same share for all nodes.   # (n,)"""
        return np.full(len(self._starts_on), self._share)

    def _position(self, node: int, time: int) -> int:
        """How many changes of the block around `time` are not later than it. Every block begins in the same state, because BLOCK is even."""
        if time < self._began[node]:
            self._number[node], self._began[node], self._changes[node] = -1, 0, array("q", [0])
        while self._changes[node][-1] <= time:
            number, began = self._number[node] + 1, self._changes[node][-1]
            changes = np.cumsum(self._lengths(node, number)) + began
            self._number[node], self._began[node] = number, began
            self._changes[node] = array("q", changes.tobytes())
        return bisect_right(self._changes[node], time)


class Shifts:
    """A constant number of online nodes: one that leaves is replaced at once by a random one that is offline.

    One process for all nodes, simulated as far as needed; each node keeps its changes since its last question. A question about an earlier time simulates
    from the start again.
    """

    def __init__(
        self, first: Sequence[int], n: int, lengths: Callable[[int, int], TimeArray], lots: Callable[[int], Stream]
    ) -> None:
        """Start; `first` are online at the start, `lengths(node, block)` returns BLOCK sessions of a node, `lots(block)` draws the replacements."""
        self._first, self._n, self._lengths, self._lots = first, n, lengths, lots
        self._restart()

    def on_at(self, node: int, time: int) -> bool:
        """Whether the node is online at this time."""
        self._go_to(node, time)
        return self._was_on[node]

    def next_change(self, node: int, after: int) -> int:
        """The first change after this time."""
        self._go_to(node, after)
        while not self._ahead[node]:
            self._play()
        return self._ahead[node][0]

    def _go_to(self, node: int, time: int) -> None:
        """Simulate past this time, and drop the node's changes up to it."""
        if time < self._asked[node]:
            self._restart()
        self._asked[node] = time
        while self._ends[0][0] <= time:
            self._play()
        ahead = self._ahead[node]
        while ahead and ahead[0] <= time:
            ahead.popleft()
            self._was_on[node] = not self._was_on[node]

    def availability(self) -> FloatArray:
        """The same share for all nodes.   # (n,)"""
        return np.full(self._n, len(self._first) / self._n)

    def _restart(self) -> None:
        on = set(self._first)
        self._was_on = [node in on for node in range(self._n)]  # at the time of the node's last question
        self._asked = [0] * self._n
        self._ahead: list[deque[int]] = [deque() for _ in range(self._n)]
        self._off = [node for node in range(self._n) if node not in on]
        self._sessions = [0] * self._n  # number begun so far
        self._drawn: list[array[int]] = [array("q")] * self._n
        self._changes = 0
        self._shares = [0.0] * BLOCK
        self._ends = [(self._session(node), node) for node in self._first]
        heapq.heapify(self._ends)

    def _session(self, node: int) -> int:
        """The length of the node's next session, in microseconds."""
        block, place = divmod(self._sessions[node], BLOCK)
        if place == 0:
            self._drawn[node] = array("q", self._lengths(node, block).tobytes())
        self._sessions[node] += 1
        return self._drawn[node][place]

    def _play(self) -> None:
        """End the next session, and begin another node's."""
        block, place = divmod(self._changes, BLOCK)
        if place == 0:
            self._shares = self._lots(block).uniforms(BLOCK).tolist()
        self._changes += 1
        now, leaving = self._ends[0]
        lot = int(self._shares[place] * len(self._off))
        coming, self._off[lot] = self._off[lot], leaving
        heapq.heapreplace(self._ends, (now + self._session(coming), coming))
        self._ahead[leaving].append(now)
        self._ahead[coming].append(now)

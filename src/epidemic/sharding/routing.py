"""How the rows of one rank come to the others when they are mixed: the ways, what each of them moves, and which one is taken.

  rows      every rank receives those rows of others that its own nodes hear, and mixes its own rows
  columns   rows become columns, every rank applies the whole matrix to its own columns, and they go back
  sum       of a complete graph: the members' rows become columns, each is added up on one rank, and the sums go back, one row for all

Each adds up every number in the order of one process, so the choice is about bytes alone. It is a function of the round's matrix, of how many
nodes each rank has and of the length of a row, and so the same on every rank. A sum of partial sums (a plain all-reduce) would move less, but
not give the same bits.

Shapes: n nodes of a round, r ranks, d numbers of a row.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from epidemic.core.graph import IntArray
from epidemic.mixing import Weights
from epidemic.runtime.mixing_arithmetic import UNIT

ROWS, COLUMNS, SUM, MESSAGES = "rows", "columns", "sum", "messages"
"""The ways, and what is done for algorithms that ask for the messages themselves: as by rows, but nothing is mixed."""


def bounds_of(nodes: int, ranks: int) -> IntArray:
    """Where the blocks of nodes begin that ranks host, and where the last one ends.   # (r + 1,)"""
    return np.array([nodes * rank // ranks for rank in range(ranks + 1)])


def cuts_of(width: int, parts: int, unit: int, *, full: bool = False) -> list[slice]:
    """0..width in as many slices, at multiples of the unit; `full`: each of one whole unit, as long as there are some.

    Otherwise a single column at the end stays with those before it: alone it would be added up in another order.
    """
    units = max(1, width // unit) if not full and width % unit == 1 else -(-width // unit)
    at = [min(r, units) if full else units * r // parts for r in range(parts + 1)]
    ends = [width if a == units else min(a * unit, width) for a in at]
    return [slice(a, b) for a, b in itertools.pairwise(ends)]


@dataclass(frozen=True, eq=False)
class Needs:
    """Which rows of other ranks the nodes of each rank hear in a round."""

    bounds: IntArray  # (r + 1,) where each rank's nodes begin among those of the round
    which: tuple[IntArray, ...]  # for each rank, ascending
    sizes: IntArray  # (r, r) how many rows the one rank gets from the other

    @staticmethod
    def of(weights: Weights, counts: Sequence[int]) -> Needs:
        """Those of a round; `counts`: how many of its nodes each rank has."""
        bounds = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        which, sizes = [], []
        for first, last in itertools.pairwise(bounds.tolist()):
            heard = np.zeros(weights.n, dtype=bool)
            if weights.matrix is not None:
                heard[weights.matrix.indices[weights.matrix.indptr[first] : weights.matrix.indptr[last]]] = True
            elif weights.clique is not None and ((weights.clique >= first) & (weights.clique < last)).any():
                heard[weights.clique] = True
            heard[first:last] = False
            which.append(np.flatnonzero(heard))
            sizes.append(np.diff(np.searchsorted(which[-1], bounds)))
        return Needs(bounds, tuple(which), np.array(sizes))

    def of_mine(self, rank: int, other: int) -> IntArray:
        """The rows of a rank, by their places there, that the other one needs."""
        first, last = np.searchsorted(self.which[other], self.bounds[rank : rank + 2])
        mine: IntArray = self.which[other][first:last] - self.bounds[rank]
        return mine

    def places(self, rank: int) -> IntArray:
        """Where each node's row stands on a rank that has its own rows and then those that it needs; -1: nowhere.   # (n,)"""
        first, last = self.bounds[rank], self.bounds[rank + 1]
        places = np.full(self.bounds[-1], -1)
        places[first:last] = np.arange(last - first)
        places[self.which[rank]] = last - first + np.arange(len(self.which[rank]))
        return places

    def matrix(self, weights: Weights, rank: int) -> csr_array:
        """A rank's part of a sparse matrix, over its own rows and those that it needs; each row in the order of the whole.   # (k, k + m)"""
        assert weights.matrix is not None
        indptr = weights.matrix.indptr[self.bounds[rank] : self.bounds[rank + 1] + 1]
        edges = slice(indptr[0], indptr[-1])
        indices = self.places(rank)[weights.matrix.indices[edges]]
        shape = (len(indptr) - 1, len(indptr) - 1 + len(self.which[rank]))
        return csr_array((weights.matrix.data[edges], indices, indptr - indptr[0]), shape=shape)

    @property
    def largest(self) -> int:
        """The most rows that a rank has to hold, or to send, at once."""
        held = np.diff(self.bounds) + self.sizes.sum(1)
        return int(max(held.max(), self.sizes.sum(0).max(), 1))


def by_rows(needs: Needs, d: int) -> int:
    """Numbers that the busiest rank sends or receives, whichever is more."""
    return d * int(max(needs.sizes.sum(0).max(), needs.sizes.sum(1).max()))


def by_columns(counts: Sequence[int], d: int) -> int:
    """The same by columns, there and back."""
    widths = _widths(d, len(counts))
    return max(k * (d - w) + (sum(counts) - k) * w for k, w in zip(counts, widths, strict=True))


def by_sum(members: Sequence[int], d: int) -> int:
    """The same of a complete graph, of which each rank has so many members."""
    there = [(m * (d - w), (sum(members) - m) * w) for m, w in zip(members, _widths(d, len(members)), strict=True)]
    back = [((len(members) - 1) * w, d - w) for w in _widths(d, len(members))]
    return max(a + b for one, two in zip(there, back, strict=True) for a, b in zip(one, two, strict=True))


def choose(needs: Needs | None, counts: Sequence[int], d: int) -> str:
    """The way for rows of d numbers; `needs` is None for a complete graph. Of two that move as much, the one that goes there but not back."""
    if needs is None:
        return SUM
    return ROWS if by_rows(needs, d) <= by_columns(counts, d) else COLUMNS


def moved(weights: Weights, nodes: int, ranks: int, d: int) -> int:
    """Numbers that the busiest rank sends or receives in a round of all nodes, by the way that is chosen."""
    counts = np.diff(bounds_of(nodes, ranks)).tolist()
    if weights.clique is not None:
        return by_sum(members_of(weights, counts), d)
    needs = Needs.of(weights, counts)
    return by_rows(needs, d) if choose(needs, counts, d) == ROWS else by_columns(counts, d)


def members_of(weights: Weights, counts: Sequence[int]) -> list[int]:
    """How many members of a complete graph each rank has."""
    assert weights.clique is not None
    found: list[int] = np.diff(np.searchsorted(weights.clique, np.concatenate([[0], np.cumsum(counts)]))).tolist()
    return found


def _widths(d: int, ranks: int) -> list[int]:
    return [part.stop - part.start for part in cuts_of(d, ranks, UNIT)]

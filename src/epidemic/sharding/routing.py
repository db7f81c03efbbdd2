"""How rows of one rank reach the others for mixing: the routings, what each of them moves, and which one is used.

  rows      every rank receives the rows of others that its own nodes receive, and mixes its own rows
  columns   rows become columns, every rank applies the whole matrix to its own columns, and they are sent back
  sum       for a complete graph: the members' rows become columns, each is summed on one rank, and the sums go back, one row for all

Each adds up every number in the order of one process, so the choice only affects traffic. It is a function of the round's matrix, the nodes per rank and
the length of a row, and so the same on every rank. Sums of partial sums (a plain all-reduce) would move less, but give different bits.

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
"""The routings; `messages` is that of algorithms that read single messages: as rows, but nothing is mixed."""


def bounds_of(nodes: int, ranks: int) -> IntArray:
    """The first node of each rank's block, and the end of the last one.   # (r + 1,)"""
    return np.array([nodes * rank // ranks for rank in range(ranks + 1)])


def cuts_of(width: int, parts: int, unit: int, *, full: bool = False) -> list[slice]:
    """Cut 0..width into `parts` slices at multiples of the unit; `full`: each of one whole unit, as long as there are some.

    Otherwise a single last column stays with those before it, because alone it would be summed in another order.
    """
    units = max(1, width // unit) if not full and width % unit == 1 else -(-width // unit)
    at = [min(r, units) if full else units * r // parts for r in range(parts + 1)]
    ends = [width if a == units else min(a * unit, width) for a in at]
    return [slice(a, b) for a, b in itertools.pairwise(ends)]


@dataclass(frozen=True, eq=False)
class Needs:
    """The rows of other ranks that each rank needs in a round."""

    bounds: IntArray  # (r + 1,) first node of each rank among those of the round
    which: tuple[IntArray, ...]  # for each rank, ascending
    sizes: IntArray  # (r, r) rows that one rank gets from another

    @staticmethod
    def of(weights: Weights, counts: Sequence[int]) -> Needs:
        """The needs of a round; `counts`: how many of its nodes are on each rank."""
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
        """The rows of a rank, by position there, that the other one needs."""
        first, last = np.searchsorted(self.which[other], self.bounds[rank : rank + 2])
        mine: IntArray = self.which[other][first:last] - self.bounds[rank]
        return mine

    def places(self, rank: int) -> IntArray:
        """The position of each node's row on a rank that holds its own rows, then the needed ones; -1: absent.   # (n,)"""
        first, last = self.bounds[rank], self.bounds[rank + 1]
        places = np.full(self.bounds[-1], -1)
        places[first:last] = np.arange(last - first)
        places[self.which[rank]] = last - first + np.arange(len(self.which[rank]))
        return places

    def matrix(self, weights: Weights, rank: int) -> csr_array:
        """A rank's part of a sparse matrix, over its own rows and the needed ones; each row in the order of the whole.   # (k, k + m)"""
        assert weights.matrix is not None
        indptr = weights.matrix.indptr[self.bounds[rank] : self.bounds[rank + 1] + 1]
        edges = slice(indptr[0], indptr[-1])
        indices = self.places(rank)[weights.matrix.indices[edges]]
        shape = (len(indptr) - 1, len(indptr) - 1 + len(self.which[rank]))
        return csr_array((weights.matrix.data[edges], indices, indptr - indptr[0]), shape=shape)

    @property
    def largest(self) -> int:
        """The most rows that a rank holds or sends at once."""
        held = np.diff(self.bounds) + self.sizes.sum(1)
        return int(max(held.max(), self.sizes.sum(0).max(), 1))


def by_rows(needs: Needs, d: int) -> int:
    """Numbers that the busiest rank sends or receives by rows, whichever is more."""
    return d * int(max(needs.sizes.sum(0).max(), needs.sizes.sum(1).max()))


def by_columns(counts: Sequence[int], d: int) -> int:
    """Numbers that the busiest rank sends or receives by columns, there and back."""
    widths = _widths(d, len(counts))
    return max(k * (d - w) + (sum(counts) - k) * w for k, w in zip(counts, widths, strict=True))


def by_sum(members: Sequence[int], d: int) -> int:
    """Numbers that the busiest rank sends or receives by sum; `members`: nodes of the complete graph per rank."""
    there = [(m * (d - w), (sum(members) - m) * w) for m, w in zip(members, _widths(d, len(members)), strict=True)]
    back = [((len(members) - 1) * w, d - w) for w in _widths(d, len(members))]
    return max(a + b for one, two in zip(there, back, strict=True) for a, b in zip(one, two, strict=True))


def choose(needs: Needs | None, counts: Sequence[int], d: int) -> str:
    """The routing for rows of d numbers that moves least; `needs` is None for a complete graph. Ties go to the routing with one transfer."""
    if needs is None:
        return SUM
    return ROWS if by_rows(needs, d) <= by_columns(counts, d) else COLUMNS


def moved(weights: Weights, nodes: int, ranks: int, d: int) -> int:
    """Numbers that the busiest rank sends or receives in a round of all nodes, by the chosen routing."""
    counts = np.diff(bounds_of(nodes, ranks)).tolist()
    if weights.clique is not None:
        return by_sum(members_of(weights, counts), d)
    needs = Needs.of(weights, counts)
    return by_rows(needs, d) if choose(needs, counts, d) == ROWS else by_columns(counts, d)


def members_of(weights: Weights, counts: Sequence[int]) -> list[int]:
    """How many members of a complete graph are on each rank."""
    assert weights.clique is not None
    found: list[int] = np.diff(np.searchsorted(weights.clique, np.concatenate([[0], np.cumsum(counts)]))).tolist()
    return found


def _widths(d: int, ranks: int) -> list[int]:
    return [part.stop - part.start for part in cuts_of(d, ranks, UNIT)]

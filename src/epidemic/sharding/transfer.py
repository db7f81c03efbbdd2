"""Moving rows of other ranks here for mixing, by one of the routings (routing.py).

Every number is summed on one rank, in the order of one process.
Columns are cut at multiples of `UNIT`, where vector instructions give the same result, one slab at a time.

Shapes: n nodes of a round, k of them on this rank, m that it needs of others, d columns, w of them on this rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from epidemic.core.workers import Workers
from epidemic.mixing import Weights
from epidemic.runtime.mixing_arithmetic import UNIT, column_blocks, shared_row, taken
from epidemic.sharding.communicator import Communicator
from epidemic.sharding.routing import Needs, cuts_of, members_of

SLAB = 24 << 20
"""Bytes of rows mixed at once. The system zeroes allocations above 32 MiB anew each time, which takes longer than filling them."""


Use = Callable[[Tensor, Tensor], object]
"""Computes new rows from given ones, into the second tensor; each column may depend on the same column only."""


class Transfer:
    """Mixes the rows of this rank with those of the others."""

    def __init__(self, communicator: Communicator) -> None:
        self.rank, self.count = communicator.rank, communicator.count
        self.routings: Counter[str] = Counter()  # how many aggregations used each routing
        self._communicator = communicator

    def by_rows(self, x: Tensor, needs: Needs, use: Use, out: Tensor) -> None:
        """New rows of this rank, into `out`, from its own and those that its nodes receive.   # (k, d) -> (k, d); use: (k + m, w) -> (k, w)"""
        for slab in self._slabs(x, needs.largest):
            use(self._with_others(x[:, slab], needs), out[:, slab])

    def by_columns(self, x: Tensor, counts: list[int], use: Use, out: Tensor) -> None:
        """New rows of this rank, into `out`, from all rows on each rank's columns.   # (k, d) -> (k, d); use: (n, w) -> (n, w)"""
        for slab in self._slabs(x, max(*counts, 1)):
            cuts = cuts_of(slab.stop - slab.start, self.count, UNIT)
            columns = self._communicator.to_columns(x[:, slab], cuts, counts)
            if columns.numel():
                mixed = torch.empty_like(columns)
                use(columns, mixed)
                columns = mixed
            self._communicator.to_rows(columns, cuts, counts, out[:, slab])

    def by_sum(self, weights: Weights, x: Tensor, counts: list[int], workers: Workers, out: Tensor) -> None:
        """W @ X for a complete graph: columns are summed on their rank, and one row comes back.   # (k, d) -> (k, d)"""
        assert weights.clique is not None
        members, first = members_of(weights, counts), sum(counts[: self.rank])
        own = weights.clique[(weights.clique >= first) & (weights.clique < first + len(x))] - first
        who = slice(None) if len(own) == len(x) else torch.from_numpy(own).to(x.device)
        for slab in self._slabs(x, max(*members, 1)):
            cuts = cuts_of(slab.stop - slab.start, self.count, UNIT)
            columns = self._communicator.to_columns(x[who, slab], cuts, members)
            parts = column_blocks(columns.shape[1])
            sums = workers.map(lambda part: shared_row(weights, columns[:, part]), parts, size=columns.numel())  # noqa: B023
            row = torch.cat([columns.new_empty(1, 0), *sums], 1)
            everywhere = x.new_empty(1, slab.stop - slab.start)
            self._communicator.to_rows(row.expand(self.count, -1), cuts, [1] * self.count, everywhere)
            if len(own) < len(x):
                out[:, slab] = x[:, slab]
            out[who, slab] = taken(weights, everywhere, x[who, slab])

    def with_others(self, x: Tensor, needs: Needs) -> Tensor:
        """This rank's rows, and those that it needs of others.   # (k, d) -> (k + m, d)"""
        found = x.new_empty(len(x) + len(needs.which[self.rank]), x.shape[1])
        for slab in self._slabs(x, needs.largest):
            found[:, slab] = self._with_others(x[:, slab], needs)
        return found

    def _with_others(self, x: Tensor, needs: Needs) -> Tensor:
        """The same for one slab.   # (k, w) -> (k + m, w)"""
        k, w = x.shape
        found = x.new_empty(k + len(needs.which[self.rank]), w)
        found[:k] = x
        if needs.sizes.any():
            wanted = np.concatenate([needs.of_mine(self.rank, other) for other in range(self.count)])
            send = x[torch.from_numpy(wanted).to(x.device)]
            sent, received = needs.sizes[:, self.rank] * w, needs.sizes[self.rank] * w
            self._communicator.passed(send, sent.tolist(), received.tolist(), found[k:])
        return found

    @staticmethod
    def _slabs(x: Tensor, rows: int) -> list[slice]:
        """Slabs of columns, each small enough to hold `rows` rows at once."""
        return column_blocks(x.shape[1], max(1, SLAB // (x.element_size() * rows) // UNIT) * UNIT)

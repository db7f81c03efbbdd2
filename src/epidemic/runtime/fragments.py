"""The exchange of fragments: each part of the models is mixed by its own weights.

Shapes: k hosted nodes, d numbers of a model, d' of a part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from epidemic.aggregation import Aggregator, Heard
from epidemic.algorithms import Rows
from epidemic.core.errors import RunFailed
from epidemic.core.workers import Workers, blocks
from epidemic.mixing import Weights
from epidemic.runtime.aggregating import MEAN
from epidemic.runtime.inbox import InboxOfRows, aggregate_by
from epidemic.runtime.message_coding import Memory
from epidemic.runtime.mixing_arithmetic import mix_parts

PARTS = ".parts"
"""Suffix of the message entry that holds mixed parts, one after the other: memory reused in the next round."""
PIECE = 1 << 17
"""Numbers reordered at a time."""


class FragmentsInbox(InboxOfRows):
    """The inboxes of all nodes for messages whose parts have different receivers."""

    def __init__(
        self,
        message: Rows,
        weights: Sequence[Weights],
        parts: Sequence[Tensor],
        workers: Workers,
        memory: Memory,
        rule: Aggregator = MEAN,
    ) -> None:
        """Start; `parts`: the coordinates that belong to each of the weights.   # (d',) each"""
        super().__init__(message, workers, rule)
        self._weights = weights
        self._parts = parts
        self._memory = memory

    def mean(self, column: str) -> Tensor:
        """The average by the round's weights, part by part.   # (k, d)"""
        return self._part_by_part(column, lambda cuts, x, out: mix_parts(self._weights, cuts, x, self._workers, out))

    def _aggregated(self, column: str) -> Tensor:
        def use(cuts: Sequence[slice], x: Tensor, out: Tensor) -> None:
            ids = np.arange(len(x))  # not used by coordinatewise rules
            for weights, cut in zip(self._weights, cuts, strict=True):
                block = x[:, cut]
                aggregate_by(self._rule, weights, ids, block, block, self._workers, out[:, cut])

        return self._part_by_part(column, use)

    def _part_by_part(self, column: str, use: Callable[[Sequence[slice], Tensor, Tensor], object]) -> Tensor:
        """New rows of all parts; `use` gets each part as a block of columns.   # (k, d)"""
        rows = self._message[column]
        order = torch.cat(list(self._parts))  # (d,) one part after the other
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order), device=order.device)
        ends = np.cumsum([len(part) for part in self._parts]).tolist()
        cuts = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
        out, mixed = self._memory(column, rows), self._memory(column + PARTS, rows)
        self._message[column + PARTS] = mixed  # so that this memory is reused
        some, size = blocks(len(rows), max(1, PIECE // max(1, rows.shape[1]))), rows.numel() * 8
        self._workers.map(partial(_reordered, rows, order, out), some, size=size)
        use(cuts, out, mixed)
        self._workers.map(partial(_reordered, mixed, back, out), some, size=size)
        return out

    def sum(self, column: str) -> Tensor:
        """Refuse: a node has no complete messages to sum."""
        raise self._only_means()

    def each(self, column: str) -> Iterator[Heard]:
        """Refuse: no message holds a whole model."""
        raise self._only_means()

    @staticmethod
    def _only_means() -> RunFailed:
        return RunFailed(
            'algorithm: of topology.kind = "fragments" only averages can be had, because no message holds a whole model; use its inner'
            " topology alone"
        )


def _reordered(rows: Tensor, order: Tensor, out: Tensor, some: slice) -> None:
    """Reorder the coordinates of some rows."""
    torch.index_select(rows[some], 1, order, out=out[some])

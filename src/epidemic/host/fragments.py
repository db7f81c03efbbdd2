"""The exchange of fragments: each part of the models is mixed by its own weights.

Shapes: k hosted nodes, d numbers of a model, d' of a part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from epidemic.algorithms import Heard, Rows
from epidemic.errors import RunFailed
from epidemic.host.inbox import Memory
from epidemic.host.mixture import mix
from epidemic.mixing import Weights
from epidemic.workers import Workers, blocks


class Mosaic:
    """The inboxes of all nodes of a message whose parts came by different ways."""

    def __init__(
        self, message: Rows, weights: Sequence[Weights], parts: Sequence[Tensor], workers: Workers, memory: Memory
    ) -> None:
        """`parts`: which coordinates belong to each of the weights.   # (d',) each"""
        self._message = message
        self._weights = weights
        self._parts = parts
        self._workers = workers
        self._memory = memory

    def own(self, column: str) -> Tensor:
        """Everybody's own part.   # (k, d)"""
        return self._message[column]

    def mean(self, column: str) -> Tensor:
        """The average by the round's weights, part by part.   # (k, d)"""
        rows = self._message[column]
        out = self._memory(column, rows)
        some = blocks(len(rows), max(1, len(rows) // 8))
        for part, weights in zip(self._parts, self._weights, strict=True):
            piece = torch.empty(len(rows), len(part), dtype=rows.dtype, device=rows.device)
            size = piece.numel() * 8
            self._workers.map(partial(_take, rows, part, piece), some, size=size)
            mixed = mix(weights, piece, self._workers, torch.empty_like(piece))
            self._workers.map(partial(_put, mixed, part, out), some, size=size)
        return out

    def sum(self, column: str) -> Tensor:
        """Nobody has all parts of the same letters."""
        raise self._only_means()

    def each(self, column: str) -> Iterator[Heard]:
        """There are no letters that hold a whole model."""
        raise self._only_means()

    @staticmethod
    def _only_means() -> RunFailed:
        return RunFailed(
            'algorithm: of topology.kind = "fragments" only averages can be had, because no letter holds a whole model; use its inner'
            " topology alone"
        )


def _take(rows: Tensor, part: Tensor, piece: Tensor, some: slice) -> None:
    """The coordinates of a part, of some rows."""
    torch.index_select(rows[some], 1, part, out=piece[some])


def _put(piece: Tensor, part: Tensor, out: Tensor, some: slice) -> None:
    """Back to where they belong."""
    out[some].index_copy_(1, part, piece[some])

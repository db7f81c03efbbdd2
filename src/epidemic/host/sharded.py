"""The exchange on one of several ranks: what its nodes hold when a round's letters have come, from wherever they live.

All ranks ask for the same columns in the same order, because each answer needs all of them.

Shapes: n nodes of a round, k of them on this rank, d numbers of a row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from epidemic.algorithms import Heard, Rows
from epidemic.graph import IntArray
from epidemic.host.coding import Memory
from epidemic.host.ways import COLUMNS, LETTERS, ROWS, Needs, choose
from epidemic.mixing import Weights
from epidemic.workers import Workers

if TYPE_CHECKING:
    from epidemic.host.crossing import Crossing


class Sharded:
    """The inboxes of the hosted nodes, as one of several ranks has them."""

    def __init__(
        self,
        crossing: Crossing,
        message: Rows,
        weights: Weights,
        counts: list[int],
        who: IntArray | None,
        workers: Workers,
        memory: Memory,
    ) -> None:
        """`weights` are those of all nodes of the round, who are `who` (None: everybody); `counts`: how many of them each rank has."""
        self._crossing = crossing
        self._message = message
        self._weights = weights
        self._counts = counts
        self._who = who
        self._workers = workers
        self._memory = memory

    def own(self, column: str) -> Tensor:
        """Everybody's own part.   # (k, d)"""
        return self._message[column]

    def mean(self, column: str) -> Tensor:
        """The average by the round's weights.   # (k, d)"""
        return self._apply(self._weights, column)

    def sum(self, column: str) -> Tensor:
        """The own part plus the letters.   # (k, d)"""
        return self._apply(self._weights.ones, column)

    def each(self, column: str) -> Iterator[Heard]:
        """The letters themselves, receiver by receiver; they are fetched now, not when somebody looks."""
        rows = self._message[column]
        needs = self._needs
        found = self._crossing.with_others(_flat(rows), needs)
        self._crossing.ways[LETTERS] += 1
        return self._heard(rows, found.view(len(found), *rows.shape[1:]), needs.places(self._crossing.rank))

    def _heard(self, rows: Tensor, found: Tensor, places: IntArray) -> Iterator[Heard]:
        first = sum(self._counts[: self._crossing.rank])
        for own, (at, share) in zip(rows, self._weights.by_row(range(first, first + len(rows))), strict=True):
            letters = found[torch.from_numpy(places[at[1:]]).to(rows.device)]
            senders = at[1:] if self._who is None else self._who[at[1:]]
            yield Heard(own, letters, senders.astype(np.int64), share, np.zeros(len(senders), dtype=np.int64))

    @cached_property
    def _needs(self) -> Needs:
        return Needs.of(self._weights, self._counts)

    def _apply(self, weights: Weights, column: str) -> Tensor:
        rows = self._message[column]
        out = self._memory(column, rows)
        x, into, workers = _flat(rows), _flat(out), self._workers
        way = choose(None if weights.matrix is None else self._needs, self._counts, x.shape[1])
        self._crossing.ways[way] += 1
        if way == ROWS:
            self._crossing.by_rows(weights, x, self._needs, workers, into)
        elif way == COLUMNS:
            self._crossing.by_columns(weights, x, self._counts, workers, into)
        else:
            self._crossing.by_sum(weights, x, self._counts, workers, into)
        return out


def _flat(rows: Tensor) -> Tensor:
    """# (k, ...) -> (k, d)"""
    return rows.view(len(rows), math.prod(rows.shape[1:]))

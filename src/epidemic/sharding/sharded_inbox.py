"""The exchange on one of several ranks: the inbox of its nodes, with rows from all ranks.

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

from epidemic.aggregation import Aggregator, Coordinatewise, Heard
from epidemic.algorithms import Rows
from epidemic.core.graph import IntArray
from epidemic.core.workers import Workers
from epidemic.mixing import Weights
from epidemic.runtime.aggregating import MEAN, Receiver, aggregate_all
from epidemic.runtime.inbox import MatrixInbox, aggregate_by, receivers_of
from epidemic.runtime.message_coding import Memory
from epidemic.runtime.mixing_arithmetic import added, mix
from epidemic.sharding.routing import COLUMNS, MESSAGES, ROWS, Needs, choose

if TYPE_CHECKING:
    from epidemic.sharding.transfer import Transfer


class ShardedInbox(MatrixInbox):
    """The inboxes of the nodes on one of several ranks."""

    def __init__(
        self,
        transfer: Transfer,
        message: Rows,
        weights: Weights,
        counts: list[int],
        who: IntArray | None,
        workers: Workers,
        memory: Memory,
        rule: Aggregator = MEAN,
    ) -> None:
        """Start; `weights` are those of all nodes of the round, `who` (None: all); `counts`: how many of them are on each rank."""
        super().__init__(message, weights, np.arange(weights.n) if who is None else who, workers, memory, rule=rule)
        self._transfer = transfer
        self._counts = counts

    def each(self, column: str) -> Iterator[Heard]:
        """The messages, receiver by receiver; rows are fetched now, not when they are read."""
        rows = self._message[column]
        found = self._messages(rows)
        return (
            Heard(
                own,
                found[torch.from_numpy(one.at).to(rows.device)],
                one.senders.astype(np.int64),
                one.weights,
                np.zeros(len(one.at), dtype=np.int64),
            )
            for own, one in zip(rows, self._receivers, strict=True)
        )

    def _messages(self, rows: Tensor) -> Tensor:
        """This rank's rows and those that its nodes receive.   # (k, ...) -> (k + m, ...)"""
        found = self._transfer.with_others(_flat(rows), self._needs)
        self._transfer.routings[MESSAGES] += 1
        return found.view(len(found), *rows.shape[1:])

    @cached_property
    def _receivers(self) -> list[Receiver]:
        """What the nodes of this rank receive, as positions of rows in `_messages`."""
        first, places = sum(self._counts[: self._transfer.rank]), self._needs.places(self._transfer.rank)
        here = range(first, first + self._counts[self._transfer.rank])
        return [
            Receiver(places[one.at], one.senders, one.weights) for one in receivers_of(self._weights, self._ids, here)
        ]

    @cached_property
    def _needs(self) -> Needs:
        return Needs.of(self._weights, self._counts)

    def _apply(self, weights: Weights, column: str) -> Tensor:
        rows = self._message[column]
        out = self._memory(column, rows)
        x, into, workers = _flat(rows), _flat(out), self._workers
        way = choose(None if weights.matrix is None else self._needs, self._counts, x.shape[1])
        self._transfer.routings[way] += 1
        if way == ROWS:
            matrix = self._needs.matrix(weights, self._transfer.rank)
            self._transfer.by_rows(x, self._needs, lambda found, to: added(matrix, found, workers, to), into)
        elif way == COLUMNS:
            self._transfer.by_columns(x, self._counts, lambda found, to: mix(weights, found, workers, to), into)
        else:
            self._transfer.by_sum(weights, x, self._counts, workers, into)
        return out

    def _aggregated(self, column: str) -> Tensor:
        rows, rule, workers = self._message[column], self._rule, self._workers
        out = self._memory(column, rows)
        if not isinstance(rule, Coordinatewise):
            return aggregate_all(rule, self._receivers, rows, self._messages(rows), workers, out)
        x, into = _flat(rows), _flat(out)
        way = choose(self._needs, self._counts, x.shape[1])
        self._transfer.routings[way] += 1

        def of_rows(found: Tensor, to: Tensor) -> None:
            aggregate_all(rule, self._receivers, found[: len(x)], found, workers, to)

        def of_columns(found: Tensor, to: Tensor) -> None:
            aggregate_by(rule, self._weights, self._ids, found, found, workers, to)

        if way == ROWS:
            self._transfer.by_rows(x, self._needs, of_rows, into)
        else:
            self._transfer.by_columns(x, self._counts, of_columns, into)
        return out


def _flat(rows: Tensor) -> Tensor:
    """# (k, ...) -> (k, d)"""
    return rows.view(len(rows), math.prod(rows.shape[1:]))

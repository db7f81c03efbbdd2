"""The exchange of a round in which some nodes send what an adversary wrote: other rows than they hold, perhaps another one to each receiver.

What is written are further rows of the message, and the matrix of weights refers to them where a malicious node sends to an honest one. So an
average stays one product of a matrix, and everything is added in the order of an exchange without an adversary.

Shapes: t nodes take part, e rows are written, d numbers of a row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from epidemic.aggregation import Aggregator, Heard
from epidemic.algorithms import Rows
from epidemic.core.graph import IntArray
from epidemic.core.workers import Workers
from epidemic.runtime.aggregating import Receiver, aggregate_all
from epidemic.runtime.inbox import InboxOfRows
from epidemic.runtime.message_coding import Memory
from epidemic.runtime.mixing_arithmetic import added


@dataclass(frozen=True, eq=False)
class Written:
    """What malicious nodes send in a round, and who hears what."""

    rows: Tensor  # (e, d)
    matrix: csr_array  # (t, t + e) the weights; each row its own first, then those that are heard, by ascending sender
    senders: IntArray  # (entries of the matrix,) the node of each entry


class HostileInbox(InboxOfRows):
    """The inboxes of those who take part in a round."""

    def __init__(self, message: Rows, written: Written, workers: Workers, memory: Memory, rule: Aggregator) -> None:
        super().__init__(message, workers, rule)
        self._written = written
        self._memory = memory

    def mean(self, column: str) -> Tensor:
        """The average by the round's weights.   # (t, d)"""
        return self._added(column, self._written.matrix)

    def sum(self, column: str) -> Tensor:
        """The own part plus the messages.   # (t, d)"""
        m = self._written.matrix
        return self._added(column, csr_array((np.ones(len(m.data)), m.indices, m.indptr), shape=m.shape))

    def each(self, column: str) -> Iterator[Heard]:
        """The messages themselves, receiver by receiver."""
        rows = self._rows(column)
        for own, one in zip(self._message[column], self._receivers(), strict=True):
            found = rows[torch.from_numpy(one.at).to(rows.device)]
            ages = np.zeros(len(one.at), dtype=np.int64)
            yield Heard(own, found, one.senders.astype(np.int64), one.weights, ages)

    def _aggregated(self, column: str) -> Tensor:
        own = self._message[column]
        out = self._memory(column, own)
        return aggregate_all(self._rule, list(self._receivers()), own, self._rows(column), self._workers, out)

    def _added(self, column: str, matrix: csr_array) -> Tensor:
        own = self._message[column]
        return added(matrix, self._rows(column), self._workers, self._memory(column, own))

    def _rows(self, column: str) -> Tensor:
        """Those of the message, then those that were written.   # (t + e, d)"""
        return torch.cat([self._message[column], self._written.rows])

    def _receivers(self) -> Iterator[Receiver]:
        matrix, senders = self._written.matrix, self._written.senders
        for start, end in zip(matrix.indptr[:-1].tolist(), matrix.indptr[1:].tolist(), strict=True):
            rest = slice(start + 1, end)
            yield Receiver(
                matrix.indices[rest].astype(np.int64), senders[rest].astype(np.int64), matrix.data[start:end]
            )

"""Ranks: the processes that together host the nodes of one simulation, as the run loop and the recorder see them.

`Alone` is one process that hosts all nodes. `ShardedRanks` (sharding/shard.py) is one of several, each with a block of the nodes. Both have the same
interface: whatever concerns all nodes is answered for all of them, in the order of their ids, on every rank.

Shapes: n nodes, k of them hosted here, d numbers of a model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from epidemic.aggregation import Aggregator
from epidemic.algorithms import Inbox, Rows
from epidemic.core.graph import IntArray
from epidemic.core.workers import Workers
from epidemic.learner import Evaluation
from epidemic.mixing import Weights
from epidemic.runtime import mixing_arithmetic
from epidemic.runtime.checkpoint import Found
from epidemic.runtime.inbox import MatrixInbox
from epidemic.runtime.interrupt import Stop
from epidemic.runtime.message_coding import Coder, Memory
from epidemic.runtime.tensor_files import PIECE, Put, portions


class Ranks(Protocol):
    """What a host needs from the processes that share its nodes."""

    rank: int
    count: int

    def hosted(self) -> NDArray[np.int64]:
        """The nodes on this rank.   # (k,)"""
        ...

    def own(self, who: IntArray | None) -> IntArray | None:
        """Those of these nodes that are on this rank, by position among the hosted; None (all) stays None.   # (k',)"""
        ...

    def together(self) -> AbstractContextManager[None]:
        """An exception inside on one rank is raised on all of them, with the same message."""
        ...

    def told(self, word: bytes) -> bytes:
        """The first rank's word, on every rank."""
        ...

    def any(self, flag: bool) -> bool:
        """Whether the flag is true on any rank."""
        ...

    def heed(self, stop: Stop) -> None:
        """Stop if any rank was interrupted, so that all stop after the same round."""
        ...

    def gathered_values(self, values: Tensor, who: IntArray | None) -> Tensor:
        """The values of all these nodes, of which each rank has its own.   # (k', ...) -> (n', ...)"""
        ...

    def evaluations(self, found: Evaluation, who: IntArray | None = None) -> Evaluation:
        """The evaluations of all these nodes, from all ranks."""
        ...

    def alike(self, x: Tensor) -> bool:
        """Whether all rows are equal.   # (k, d)"""
        ...

    def mean_row(self, x: Tensor, workers: Workers) -> Tensor:
        """The average of all rows.   # (k, d) -> (1, d)"""
        ...

    def disagreement(self, x: Tensor, workers: Workers) -> float:
        """D(X) of all rows.   # (k, d)"""
        ...

    def height(self, x: Tensor) -> int:
        """The number of rows on all ranks together.   # (k, ...)"""
        ...

    def gathered(self, x: Tensor) -> Tensor:
        """All rows on the first rank; elsewhere the rank's own.   # (k, ...) -> (n, ...)"""
        ...

    def streamed(self, x: Tensor, put: Put) -> None:
        """Send all rows to the first rank, whose `put` receives them in pieces, in the order of the nodes.   # (k, ...)"""
        ...

    def restored(self, found: Found | None) -> Rows:
        """This rank's rows of a state loaded by the first rank.   # (n, ...) -> (k, ...)"""
        ...

    def carried(self, given: Rows, donors: IntArray, takers: IntArray) -> Rows:
        """For each taker on this rank, the rows of its donor; `given` has the rows of the donors on this rank, in order."""
        ...

    def inbox(
        self,
        message: Rows,
        weights: Weights,
        ids: NDArray[np.int64],
        who: IntArray | None,
        workers: Workers,
        memory: Memory,
        coder: Coder | None,
        rule: Aggregator,
    ) -> Inbox:
        """The inbox of those nodes of `who` that are hosted; `weights` are those of all of them, `ids` the hosted ones."""
        ...


class Alone:
    """A single process that hosts all nodes."""

    rank, count = 0, 1

    def __init__(self, nodes: int) -> None:
        self._nodes = nodes

    def hosted(self) -> NDArray[np.int64]:
        """All nodes of the experiment.   # (n,)"""
        return np.arange(self._nodes)

    def own(self, who: IntArray | None) -> IntArray | None:
        """Return the input unchanged: all nodes are local."""
        return who

    @contextmanager
    def together(self) -> Iterator[None]:
        """Do nothing: there is no other process that can fail."""
        yield

    def told(self, word: bytes) -> bytes:
        """Return the input unchanged: there is no other rank."""
        return word

    def any(self, flag: bool) -> bool:
        """Return the flag itself: there is no other rank."""
        return flag

    def heed(self, stop: Stop) -> None:
        """Stop if an interrupt was lost; no agreement is needed."""
        stop.heed()

    def gathered_values(self, values: Tensor, who: IntArray | None) -> Tensor:
        """Return the input unchanged: all nodes are local."""
        return values

    def evaluations(self, found: Evaluation, who: IntArray | None = None) -> Evaluation:
        """Return the input unchanged: all nodes are local."""
        return found

    def alike(self, x: Tensor) -> bool:
        """Whether all rows are equal.   # (n, d)"""
        return bool((x == x[0]).all())

    def mean_row(self, x: Tensor, workers: Workers) -> Tensor:
        """The average of all rows.   # (n, d) -> (1, d)"""
        return mixing_arithmetic.mean_row(x, workers)

    def disagreement(self, x: Tensor, workers: Workers) -> float:
        """D(X) of all rows.   # (n, d)"""
        return mixing_arithmetic.disagreement(x, workers)

    def height(self, x: Tensor) -> int:
        """The number of rows.   # (n, ...)"""
        return len(x)

    def gathered(self, x: Tensor) -> Tensor:
        """Return the input unchanged: all nodes are local."""
        return x

    def streamed(self, x: Tensor, put: Put) -> None:
        """Pass all rows to `put`: all nodes are local."""
        for rows, _ in portions(len(x), max(1, min(PIECE, math.prod(x.shape[1:]) * x.element_size()))):
            put(x[rows])

    def restored(self, found: Found | None) -> Rows:
        """The rows of the state that was loaded, of all nodes."""
        assert found is not None
        return found.whole()

    def carried(self, given: Rows, donors: IntArray, takers: IntArray) -> Rows:
        """For each taker, the rows of its donor: all nodes are local."""
        return given

    def inbox(
        self,
        message: Rows,
        weights: Weights,
        ids: NDArray[np.int64],
        who: IntArray | None,
        workers: Workers,
        memory: Memory,
        coder: Coder | None,
        rule: Aggregator,
    ) -> Inbox:
        """The inbox of all nodes, by one matrix."""
        return MatrixInbox(message, weights, ids, workers, memory, coder, rule)

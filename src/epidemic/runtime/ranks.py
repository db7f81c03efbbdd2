"""Ranks: the processes that host the nodes of one simulation together, as the run loop and the journal see them.

`Alone` is one process that hosts all nodes. `Shards` (shards.py) is one of several, each with a block of the nodes. What is asked of either
is the same: whatever concerns all nodes is answered for all of them, in the order of their numbers, on every rank.

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
    """What a host asks of the processes that share its nodes."""

    rank: int
    count: int

    def hosted(self) -> NDArray[np.int64]:
        """The nodes that live on this rank.   # (k,)"""
        ...

    def own(self, who: IntArray | None) -> IntArray | None:
        """Those of these nodes that live here, by their place among the hosted; None stays everybody.   # (k',)"""
        ...

    def together(self) -> AbstractContextManager[None]:
        """What fails inside on one rank fails on all of them, with the same words."""
        ...

    def told(self, word: bytes) -> bytes:
        """What the first rank says."""
        ...

    def any(self, flag: bool) -> bool:
        """Whether it holds on any rank."""
        ...

    def heed(self, stop: Stop) -> None:
        """Stop here if somebody wants it on any rank, so that all stop after the same round."""
        ...

    def everyones(self, values: Tensor, who: IntArray | None) -> Tensor:
        """A number (or several) of each of these nodes, of whom each rank has its own.   # (k', ...) -> (n', ...)"""
        ...

    def evaluations(self, found: Evaluation, who: IntArray | None = None) -> Evaluation:
        """What was found of each of these nodes."""
        ...

    def alike(self, x: Tensor) -> bool:
        """Whether all rows are the same.   # (k, d)"""
        ...

    def mean_row(self, x: Tensor, workers: Workers) -> Tensor:
        """The average of all rows.   # (k, d) -> (1, d)"""
        ...

    def disagreement(self, x: Tensor, workers: Workers) -> float:
        """D(X) of all rows.   # (k, d)"""
        ...

    def height(self, x: Tensor) -> int:
        """How many rows there are on all ranks together.   # (k, ...)"""
        ...

    def gathered(self, x: Tensor) -> Tensor:
        """All rows, on the first rank; elsewhere those that live there.   # (k, ...) -> (n, ...)"""
        ...

    def streamed(self, x: Tensor, put: Put) -> None:
        """Hand all rows over to the first rank, to whose `put` they are given in pieces, in the order of the nodes.   # (k, ...)"""
        ...

    def restored(self, found: Found | None) -> Rows:
        """The rows of a state that the first rank has found: those that live here.   # (n, ...) -> (k, ...)"""
        ...

    def carried(self, given: Rows, donors: IntArray, takers: IntArray) -> Rows:
        """What each taker that lives here is given by its donor; `given` has the rows of the donors that live here, in their order."""
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
        """What the hosted ones of the nodes `who` hold; `weights` are those of all of them, `ids` the hosted ones."""
        ...


class Alone:
    """One process that hosts all nodes."""

    rank, count = 0, 1

    def __init__(self, nodes: int) -> None:
        self._nodes = nodes

    def hosted(self) -> NDArray[np.int64]:
        """All of them.   # (n,)"""
        return np.arange(self._nodes)

    def own(self, who: IntArray | None) -> IntArray | None:
        """All of these live here."""
        return who

    @contextmanager
    def together(self) -> Iterator[None]:
        """Nobody else can fail."""
        yield

    def told(self, word: bytes) -> bytes:
        """What it says itself."""
        return word

    def any(self, flag: bool) -> bool:
        """Whether it holds."""
        return flag

    def heed(self, stop: Stop) -> None:
        """An interrupt needs nobody's consent here; one that got lost is honoured now."""
        stop.heed()

    def everyones(self, values: Tensor, who: IntArray | None) -> Tensor:
        """They are here."""
        return values

    def evaluations(self, found: Evaluation, who: IntArray | None = None) -> Evaluation:
        """It is of all nodes."""
        return found

    def alike(self, x: Tensor) -> bool:
        """Whether all rows are the same."""
        return bool((x == x[0]).all())

    def mean_row(self, x: Tensor, workers: Workers) -> Tensor:
        """The average of all rows.   # (n, d) -> (1, d)"""
        return mixing_arithmetic.mean_row(x, workers)

    def disagreement(self, x: Tensor, workers: Workers) -> float:
        """D(X)."""
        return mixing_arithmetic.disagreement(x, workers)

    def height(self, x: Tensor) -> int:
        """They are here."""
        return len(x)

    def gathered(self, x: Tensor) -> Tensor:
        """They are here."""
        return x

    def streamed(self, x: Tensor, put: Put) -> None:
        """They are here."""
        for rows, _ in portions(len(x), max(1, min(PIECE, math.prod(x.shape[1:]) * x.element_size()))):
            put(x[rows])

    def restored(self, found: Found | None) -> Rows:
        """They all live here."""
        assert found is not None
        return found.whole()

    def carried(self, given: Rows, donors: IntArray, takers: IntArray) -> Rows:
        """Donors and takers are here."""
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
        """By one matrix over the rows of all."""
        return MatrixInbox(message, weights, ids, workers, memory, coder, rule)

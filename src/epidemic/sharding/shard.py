"""Shards: one simulation on several processes of `torch.distributed`, each of which hosts a block of the nodes.

Rows are trained on their own rank. For mixing, they travel by one of the routings (`routing.py`) through the communicator (`communicator.py`). Every
number is summed on one rank in the order of one process, so results are the same to the last bit. Sums over blocks of columns, as in D(X), use the blocks
of one process.

Shapes: n nodes (those of a round, where it is a round's), k of them on this rank, d columns, w of them on this rank, r ranks.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import TypeVar

import msgspec
import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from epidemic.aggregation import Aggregator
from epidemic.algorithms import Inbox, Rows
from epidemic.core.errors import BadInput
from epidemic.core.graph import IntArray
from epidemic.core.workers import Workers, blocks
from epidemic.learner import Evaluation
from epidemic.mixing import Weights
from epidemic.runtime.checkpoint import Found
from epidemic.runtime.interrupt import Stop
from epidemic.runtime.message_coding import Coder, Memory
from epidemic.runtime.mixing_arithmetic import columns_for, mean_of_block, spread_of_block
from epidemic.runtime.tensor_files import Put, portions
from epidemic.sharding import communicator
from epidemic.sharding.routing import bounds_of, cuts_of
from epidemic.sharding.sharded_inbox import ShardedInbox
from epidemic.sharding.transfer import Transfer

T = TypeVar("T")


class ShardedRanks:
    """One rank of several, which host the nodes of an experiment in contiguous blocks."""

    def __init__(self, nodes: int) -> None:
        self._communicator = communicator.Communicator()
        self.rank, self.count = self._communicator.rank, self._communicator.count
        if self.count > nodes:
            raise BadInput(f"{self.count} ranks are more than nodes = {nodes}; use at most {nodes}")
        self._transfer = Transfer(self._communicator)
        self._bounds = bounds_of(nodes, self.count)

    @property
    def routings(self) -> Counter[str]:
        """How many aggregations used each routing."""
        return self._transfer.routings

    # -- who lives where ----------------------------------------------------------------------------------------------

    def hosted(self) -> NDArray[np.int64]:
        """The nodes of this rank's block.   # (k,)"""
        return np.arange(self._bounds[self.rank], self._bounds[self.rank + 1])

    def own(self, who: IntArray | None) -> IntArray | None:
        """Those of these nodes that are on this rank, by position in the block.   # (k',)"""
        if who is None:
            return None
        first, last = self._bounds[self.rank], self._bounds[self.rank + 1]
        here: IntArray = who[(who >= first) & (who < last)] - first
        return here

    def _counts(self, who: IntArray | None) -> list[int]:
        """How many of these (ascending) nodes are on each rank.   # (r,)"""
        places = self._bounds if who is None else np.searchsorted(who, self._bounds)
        counts: list[int] = np.diff(places).tolist()
        return counts

    def _home(self, ids: IntArray) -> IntArray:
        """The rank of each of these nodes."""
        return np.searchsorted(self._bounds, ids, side="right") - 1

    # -- agreeing -----------------------------------------------------------------------------------------------------

    def together(self) -> AbstractContextManager[None]:
        """An exception inside on one rank is raised on all of them, with the message of the first that failed."""
        return self._communicator.together()

    def told(self, word: bytes) -> bytes:
        """The first rank's word, on every rank."""
        return self._communicator.told(word)

    def any(self, flag: bool) -> bool:
        """Whether the flag is true on any rank."""
        return self._communicator.any(flag)

    def heed(self, stop: Stop) -> None:
        """Stop if any rank was interrupted."""
        if self.any(stop.wanted):
            raise KeyboardInterrupt

    # -- numbers of all nodes -----------------------------------------------------------------------------------------

    def gathered_values(self, values: Tensor, who: IntArray | None) -> Tensor:
        """The values of all these nodes, from all ranks, in order.   # (k', ...) -> (n', ...)"""
        return self._communicator.from_all(values, self._counts(who))

    def evaluations(self, found: Evaluation, who: IntArray | None = None) -> Evaluation:
        """The evaluations of all these nodes, from all ranks."""
        every = torch.stack([found.loss, *found.metrics.values()], dim=1)
        loss, *metrics = self.gathered_values(every, who).unbind(1)
        return Evaluation(loss, dict(zip(found.metrics, metrics, strict=True)))

    def alike(self, x: Tensor) -> bool:
        """Whether all rows equal the first one.   # (k, d)"""
        first = x[0].cpu().contiguous().clone()
        with self._communicator.connected():
            dist.broadcast(first, 0)
        return not self.any(not bool((x == first.to(x.device)).all()))

    def mean_row(self, x: Tensor, workers: Workers) -> Tensor:
        """The average of all rows, block by block as in one process.   # (k, d) -> (1, d)"""
        mean = torch.empty(1, x.shape[1], dtype=x.dtype, device=x.device)
        for slab, cuts, found in self._of_blocks(x, mean_of_block):
            part = x.new_empty(1, 0) if found is None else found[None]
            self._communicator.to_rows(part.expand(self.count, -1), cuts, [1] * self.count, mean[:, slab])
        return mean

    def disagreement(self, x: Tensor, workers: Workers) -> float:
        """D(X) of all rows, summed block by block as in one process."""
        rows = sum(self._heads(x))
        columns = columns_for(rows)
        found = torch.zeros(-(-x.shape[1] // columns), dtype=torch.float64)
        for slab, cuts, spread in self._of_blocks(x, spread_of_block):
            if spread is not None:
                found[(slab.start + cuts[self.rank].start) // columns] = spread
        with self._communicator.connected():
            dist.all_reduce(found)  # one rank has the number, all others 0
        return math.fsum(found.tolist()) / rows

    def _heads(self, x: Tensor) -> list[int]:
        """The number of rows on every rank."""
        counts: list[int] = self._communicator.from_all(torch.tensor([len(x)]), [1] * self.count).tolist()
        return counts

    def _of_blocks(self, x: Tensor, what: Callable[[Tensor], T]) -> Iterator[tuple[slice, list[slice], T | None]]:
        """Apply a function to blocks of columns of all rows, one per rank at a time: (block, cuts, this rank's result).

        A block is freed before the next one is fetched.
        """
        counts = self._heads(x)
        columns = columns_for(sum(counts))

        def found(slab: slice, cuts: list[slice]) -> T | None:
            block = self._communicator.to_columns(x[:, slab], cuts, counts)
            return what(block) if block.shape[1] else None

        for slab in blocks(x.shape[1], columns * self.count):
            cuts = cuts_of(slab.stop - slab.start, self.count, columns, full=True)
            yield slab, cuts, found(slab, cuts)

    # -- all rows on the first rank -----------------------------------------------------------------------------------

    def gathered(self, x: Tensor) -> Tensor:
        """All rows on the first rank; elsewhere the rank's own.   # (k, ...) -> (n, ...)"""
        flat = x.reshape(len(x), math.prod(x.shape[1:]))
        every = self._communicator.to_columns(flat, self._all_first(flat.shape[1]), self._counts(None))
        return every.view(len(every), *x.shape[1:]) if self.rank == 0 else x

    def height(self, x: Tensor) -> int:
        """The number of nodes on all ranks."""
        return int(self._bounds[-1])

    def streamed(self, x: Tensor, put: Put) -> None:
        """Send all rows to the first rank, whose `put` receives them in pieces.   # (k, ...)"""
        width = math.prod(x.shape[1:]) * x.element_size()
        for nodes, columns in portions(self.height(x), width, communicator.LIMIT):
            here, counts = self._overlap(nodes)
            own, w = _as_bytes(x[here].contiguous())[:, columns].contiguous(), columns.stop - columns.start
            received = [count * w if self.rank == 0 else 0 for count in counts]
            got = self._communicator.passed(own, [own.numel(), *[0] * (self.count - 1)], received)
            with self.together():
                if self.rank == 0:
                    put(got)

    def restored(self, found: Found | None) -> Rows:
        """This rank's rows of a state loaded by the first rank.   # (n, ...) -> (k, ...)"""
        heads = {} if found is None else found.state
        said = {name: (str(head.dtype).removeprefix("torch."), head.shape[1:]) for name, head in heads.items()}
        about = msgspec.json.decode(self.told(msgspec.json.encode(said)), type=dict[str, tuple[str, list[int]]])
        state: Rows = {}
        for name, (dtype, shape) in about.items():
            state[name] = torch.empty(len(self.hosted()), *shape, dtype=getattr(torch, dtype))
            self._receive(_as_bytes(state[name]), None if found is None else partial(found.rows, name))
        return state

    def _receive(self, rows: Tensor, read: Callable[[slice], Tensor] | None) -> None:
        """Fill this rank's rows from those of all nodes that the first one reads.   # (k, w) bytes"""
        none = [0] * self.count
        for nodes, columns in portions(int(self._bounds[-1]), rows.shape[1], communicator.LIMIT):
            here, counts = self._overlap(nodes)
            w = columns.stop - columns.start
            piece = rows.new_empty(0)
            with self.together():
                if read is not None:
                    piece = _as_bytes(read(nodes))[:, columns].contiguous()
            sent = none if read is None else [count * w for count in counts]
            got = self._communicator.passed(piece, sent, [counts[self.rank] * w, *none[1:]])
            rows[here, columns] = got.view(counts[self.rank], w)

    def _overlap(self, nodes: slice) -> tuple[slice, list[int]]:
        """This rank's rows among these nodes', and how many each rank has of them."""
        bounds = np.clip(self._bounds, nodes.start, nodes.stop)
        first = bounds[self.rank : self.rank + 2] - self._bounds[self.rank]
        counts: list[int] = np.diff(bounds).tolist()
        return slice(int(first[0]), int(first[1])), counts

    def _all_first(self, width: int) -> list[slice]:
        return [slice(0, width), *[slice(width, width)] * (self.count - 1)]

    def carried(self, given: Rows, donors: IntArray, takers: IntArray) -> Rows:
        """For each taker on this rank, the rows of its donor."""
        source, target, found = self._home(donors), self._home(takers), {}
        mine, wanted = np.flatnonzero(source == self.rank), np.flatnonzero(target == self.rank)
        sent = [int(((source == self.rank) & (target == q)).sum()) for q in range(self.count)]
        got = [int(((source == q) & (target == self.rank)).sum()) for q in range(self.count)]
        out = torch.from_numpy(np.argsort(target[mine], kind="stable"))
        back = torch.from_numpy(np.argsort(np.argsort(source[wanted], kind="stable")))
        for name, rows in given.items():
            width = math.prod(rows.shape[1:])
            flat = rows.reshape(len(rows), width)
            arrived = flat.new_empty(sum(got), width)
            step = max(1, communicator.LIMIT // (flat.element_size() * max(1, len(donors))))
            for part in blocks(width, step):
                piece, w = flat[out.to(flat.device), part], part.stop - part.start
                arrived[:, part] = self._communicator.passed(piece, [s * w for s in sent], [g * w for g in got]).view(
                    sum(got), w
                )
            found[name] = arrived[back.to(flat.device)].view(sum(got), *rows.shape[1:])
        return found

    # -- mixing -------------------------------------------------------------------------------------------------------

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
        """The inbox of those nodes of `who` that are on this rank."""
        assert coder is None  # refused before
        return ShardedInbox(self._transfer, message, weights, self._counts(who), who, workers, memory, rule)


def _as_bytes(x: Tensor) -> Tensor:
    """A view of the same memory as bytes of each row.   # (k, ...) -> (k, w) uint8"""
    return x.reshape(len(x), math.prod(x.shape[1:])).view(torch.uint8)

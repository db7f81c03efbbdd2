"""Shards: one simulation on several processes of `torch.distributed`, each of which hosts a block of the nodes.

Rows are trained where they live. To mix, they travel by one of three ways (ways.py), and every number is added up on one rank in the order in
which one process adds it up: results are the same to the last bit.

Columns are cut where vector instructions cannot tell (multiples of `UNIT`); sums over whole blocks, as in D(X), are of the blocks that one
process takes. What travels is cut into pieces of at most `LIMIT` bytes, because gloo fails on very large ones.

Shapes: n nodes (those of a round, where it is a round's), k of them on this rank, m that it needs of others, d columns, w of them on this rank,
r ranks.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

import msgspec
import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from epidemic import errors
from epidemic.algorithms import Inbox, Rows
from epidemic.errors import BadInput, EpidemicError, RankLost, RunFailed
from epidemic.graph import IntArray
from epidemic.host.checkpoint import Found
from epidemic.host.coding import Coder, Memory
from epidemic.host.interrupt import Stop
from epidemic.host.joining import why_lost
from epidemic.host.mixture import (
    added,
    column_blocks,
    columns_for,
    mean_of_block,
    mix,
    shared_row,
    spread_of_block,
    taken,
)
from epidemic.host.pieces import Put, portions
from epidemic.host.sharded import Sharded
from epidemic.host.ways import UNIT, Needs, bounds_of, cuts_of, members_of
from epidemic.learner import Evaluation
from epidemic.mixing import Weights
from epidemic.workers import Workers, blocks

T = TypeVar("T")

LIMIT = 32 << 20
"""Bytes that a rank sends at once; a rank has memory for a few times as many, whatever its share."""
SLAB = 24 << 20
"""Bytes of the rows that are mixed at once. Memory of more than 32 MiB comes from the system anew each time, which takes longer than to fill it."""


class Shards:
    """This rank of several, which host the nodes of an experiment in contiguous blocks."""

    def __init__(self, nodes: int) -> None:
        self.rank, self.count = dist.get_rank(), dist.get_world_size()
        if self.count > nodes:
            raise BadInput(f"{self.count} ranks are more than nodes = {nodes}; use at most {nodes}")
        self.ways: Counter[str] = Counter()  # how many mixtures have come by each way
        self._bounds = bounds_of(nodes, self.count)

    # -- who lives where ----------------------------------------------------------------------------------------------

    def hosted(self) -> NDArray[np.int64]:
        """The nodes of this rank's block.   # (k,)"""
        return np.arange(self._bounds[self.rank], self._bounds[self.rank + 1])

    def own(self, who: IntArray | None) -> IntArray | None:
        """Those of these nodes that live here, by their place in the block.   # (k',)"""
        if who is None:
            return None
        first, last = self._bounds[self.rank], self._bounds[self.rank + 1]
        here: IntArray = who[(who >= first) & (who < last)] - first
        return here

    def _counts(self, who: IntArray | None) -> list[int]:
        """How many of these (ascending) nodes live on each rank.   # (r,)"""
        places = self._bounds if who is None else np.searchsorted(who, self._bounds)
        counts: list[int] = np.diff(places).tolist()
        return counts

    def _home(self, ids: IntArray) -> IntArray:
        """On which rank each of these nodes lives."""
        return np.searchsorted(self._bounds, ids, side="right") - 1

    # -- agreeing -----------------------------------------------------------------------------------------------------

    @contextmanager
    def together(self) -> Iterator[None]:
        """What fails inside on one rank fails on all of them, with the words of the first that failed."""
        problem: EpidemicError | None = None
        try:
            yield
        except RankLost:
            raise
        except EpidemicError as found:
            problem = found
        if not self.any(problem is not None):
            return
        word = b"" if problem is None else msgspec.json.encode((type(problem).__name__, str(problem)))
        for rank, said in enumerate(self._words(word)):
            if not said:
                continue
            kind, text = msgspec.json.decode(said, type=tuple[str, str])
            if problem is None or rank != self.rank:
                problem = getattr(errors, kind, RunFailed)(text if rank == 0 else f"rank {rank}: {text}")
            problem.agreed = True
            raise problem

    def told(self, word: bytes) -> bytes:
        """What the first rank says."""
        size = torch.tensor([len(word)])
        with self._connected():
            dist.broadcast(size, 0)
            raw = torch.zeros(int(size), dtype=torch.uint8)
            if self.rank == 0 and word:
                raw.copy_(torch.frombuffer(bytearray(word), dtype=torch.uint8))
            if len(raw):
                dist.broadcast(raw, 0)
        return raw.numpy().tobytes()

    def _words(self, word: bytes) -> list[bytes]:
        """What every rank says."""
        sizes = [int(size) for size in self._from_all(torch.tensor([len(word)]), [1] * self.count)]
        raw = torch.frombuffer(bytearray(word), dtype=torch.uint8) if word else torch.zeros(0, dtype=torch.uint8)
        whole = self._from_all(raw, sizes).numpy().tobytes()
        ends = np.cumsum(sizes)
        return [whole[end - size : end] for end, size in zip(ends, sizes, strict=True)]

    def any(self, flag: bool) -> bool:
        """Whether it holds on any rank."""
        votes = torch.tensor([int(flag)])
        with self._connected():
            dist.all_reduce(votes, dist.ReduceOp.MAX)
        return bool(votes)

    def heed(self, stop: Stop) -> None:
        """Stop here if somebody wants it on any rank."""
        if self.any(stop.wanted):
            raise KeyboardInterrupt

    # -- numbers of all nodes -----------------------------------------------------------------------------------------

    def everyones(self, values: Tensor, who: IntArray | None) -> Tensor:
        """A number (or several) of each of these nodes, in their order.   # (k', ...) -> (n', ...)"""
        return self._from_all(values, self._counts(who))

    def evaluations(self, found: Evaluation, who: IntArray | None = None) -> Evaluation:
        """What was found of each of these nodes."""
        every = torch.stack([found.loss, *found.metrics.values()], dim=1)
        loss, *metrics = self.everyones(every, who).unbind(1)
        return Evaluation(loss, dict(zip(found.metrics, metrics, strict=True)))

    def alike(self, x: Tensor) -> bool:
        """Whether all rows are those of the first one.   # (k, d)"""
        first = x[0].cpu().contiguous().clone()
        with self._connected():
            dist.broadcast(first, 0)
        return not self.any(not bool((x == first.to(x.device)).all()))

    def mean_row(self, x: Tensor, workers: Workers) -> Tensor:
        """The average of all rows, block by block as one process has it.   # (k, d) -> (1, d)"""
        mean = torch.empty(1, x.shape[1], dtype=x.dtype, device=x.device)
        for slab, cuts, found in self._of_blocks(x, mean_of_block):
            part = x.new_empty(1, 0) if found is None else found[None]
            self._to_rows(part.expand(self.count, -1), cuts, [1] * self.count, mean[:, slab])
        return mean

    def disagreement(self, x: Tensor, workers: Workers) -> float:
        """D(X) of all rows, summed block by block as one process sums it."""
        rows = sum(self._heads(x))
        columns = columns_for(rows)
        found = torch.zeros(-(-x.shape[1] // columns), dtype=torch.float64)
        for slab, cuts, spread in self._of_blocks(x, spread_of_block):
            if spread is not None:
                found[(slab.start + cuts[self.rank].start) // columns] = spread
        with self._connected():
            dist.all_reduce(found)  # each is a number on one rank and 0 on all others
        return math.fsum(found.tolist()) / rows

    def _heads(self, x: Tensor) -> list[int]:
        """How many rows every rank has."""
        counts: list[int] = self._from_all(torch.tensor([len(x)]), [1] * self.count).tolist()
        return counts

    def _of_blocks(self, x: Tensor, what: Callable[[Tensor], T]) -> Iterator[tuple[slice, list[slice], T | None]]:
        """What is found of blocks of columns of all rows, one for each rank at a time: where they are, how they are cut, and this rank's own.

        A block is let go before the next one comes.
        """
        counts = self._heads(x)
        columns = columns_for(sum(counts))

        def found(slab: slice, cuts: list[slice]) -> T | None:
            block = self._to_columns(x[:, slab], cuts, counts)
            return what(block) if block.shape[1] else None

        for slab in blocks(x.shape[1], columns * self.count):
            cuts = cuts_of(slab.stop - slab.start, self.count, columns, full=True)
            yield slab, cuts, found(slab, cuts)

    # -- all rows on the first rank -----------------------------------------------------------------------------------

    def gathered(self, x: Tensor) -> Tensor:
        """All rows, on the first rank; elsewhere those that live there.   # (k, ...) -> (n, ...)"""
        flat = x.reshape(len(x), math.prod(x.shape[1:]))
        every = self._to_columns(flat, self._all_first(flat.shape[1]), self._counts(None))
        return every.view(len(every), *x.shape[1:]) if self.rank == 0 else x

    def height(self, x: Tensor) -> int:
        """How many nodes there are."""
        return int(self._bounds[-1])

    def streamed(self, x: Tensor, put: Put) -> None:
        """Hand all rows over to the first rank, to whose `put` they are given in pieces.   # (k, ...)"""
        width = math.prod(x.shape[1:]) * x.element_size()
        for nodes, columns in portions(self.height(x), width, LIMIT):
            here, counts = self._overlap(nodes)
            own, w = _as_bytes(x[here].contiguous())[:, columns].contiguous(), columns.stop - columns.start
            received = [count * w if self.rank == 0 else 0 for count in counts]
            got = self._passed(own, [own.numel(), *[0] * (self.count - 1)], received)
            with self.together():
                if self.rank == 0:
                    put(got)

    def restored(self, found: Found | None) -> Rows:
        """The rows of a state that the first rank has found: those that live here.   # (n, ...) -> (k, ...)"""
        heads = {} if found is None else found.state
        said = {name: (str(head.dtype).removeprefix("torch."), head.shape[1:]) for name, head in heads.items()}
        about = msgspec.json.decode(self.told(msgspec.json.encode(said)), type=dict[str, tuple[str, list[int]]])
        state: Rows = {}
        for name, (dtype, shape) in about.items():
            state[name] = torch.empty(len(self.hosted()), *shape, dtype=getattr(torch, dtype))
            self._receive(_as_bytes(state[name]), None if found is None else partial(found.rows, name))
        return state

    def _receive(self, rows: Tensor, read: Callable[[slice], Tensor] | None) -> None:
        """Fill the rows of this rank from those of all nodes that the first one reads.   # (k, w) bytes"""
        none = [0] * self.count
        for nodes, columns in portions(int(self._bounds[-1]), rows.shape[1], LIMIT):
            here, counts = self._overlap(nodes)
            w = columns.stop - columns.start
            piece = rows.new_empty(0)
            with self.together():
                if read is not None:
                    piece = _as_bytes(read(nodes))[:, columns].contiguous()
            sent = none if read is None else [count * w for count in counts]
            got = self._passed(piece, sent, [counts[self.rank] * w, *none[1:]])
            rows[here, columns] = got.view(counts[self.rank], w)

    def _overlap(self, nodes: slice) -> tuple[slice, list[int]]:
        """Which of this rank's rows are among these nodes', and how many each rank has of them."""
        bounds = np.clip(self._bounds, nodes.start, nodes.stop)
        first = bounds[self.rank : self.rank + 2] - self._bounds[self.rank]
        counts: list[int] = np.diff(bounds).tolist()
        return slice(int(first[0]), int(first[1])), counts

    def _all_first(self, width: int) -> list[slice]:
        return [slice(0, width), *[slice(width, width)] * (self.count - 1)]

    def carried(self, given: Rows, donors: IntArray, takers: IntArray) -> Rows:
        """What each taker that lives here is given by its donor."""
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
            step = max(1, LIMIT // (flat.element_size() * max(1, len(donors))))
            for part in blocks(width, step):
                piece, w = flat[out.to(flat.device), part], part.stop - part.start
                arrived[:, part] = self._passed(piece, [s * w for s in sent], [g * w for g in got]).view(sum(got), w)
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
    ) -> Inbox:
        """What the hosted ones of the nodes `who` hold."""
        assert coder is None  # refused before
        return Sharded(self, message, weights, self._counts(who), who, workers, memory)

    def by_rows(self, weights: Weights, x: Tensor, needs: Needs, workers: Workers, out: Tensor) -> None:
        """W @ X of all rows, for those of this rank, into `out`: from the rows that its nodes hear.   # (k, d) -> (k, d)"""
        matrix = needs.matrix(weights, self.rank)
        for slab in self._slabs(x, needs.largest):
            added(matrix, self._with_others(x[:, slab], needs), workers, out[:, slab])

    def by_columns(self, weights: Weights, x: Tensor, counts: list[int], workers: Workers, out: Tensor) -> None:
        """The same, by the whole matrix on each rank's columns.   # (k, d) -> (k, d)"""
        for slab in self._slabs(x, max(*counts, 1)):
            cuts = cuts_of(slab.stop - slab.start, self.count, UNIT)
            columns = self._to_columns(x[:, slab], cuts, counts)
            if columns.numel():
                columns = mix(weights, columns, workers, torch.empty_like(columns))
            self._to_rows(columns, cuts, counts, out[:, slab])

    def by_sum(self, weights: Weights, x: Tensor, counts: list[int], workers: Workers, out: Tensor) -> None:
        """The same for a complete graph: its members' columns are added up where they are, and one row comes back.   # (k, d) -> (k, d)"""
        assert weights.clique is not None
        members, first = members_of(weights, counts), sum(counts[: self.rank])
        own = weights.clique[(weights.clique >= first) & (weights.clique < first + len(x))] - first
        who = slice(None) if len(own) == len(x) else torch.from_numpy(own).to(x.device)
        for slab in self._slabs(x, max(*members, 1)):
            cuts = cuts_of(slab.stop - slab.start, self.count, UNIT)
            columns = self._to_columns(x[who, slab], cuts, members)
            parts = column_blocks(columns.shape[1])
            sums = workers.map(lambda part: shared_row(weights, columns[:, part]), parts, size=columns.numel())  # noqa: B023
            row = torch.cat([columns.new_empty(1, 0), *sums], 1)
            everywhere = x.new_empty(1, slab.stop - slab.start)
            self._to_rows(row.expand(self.count, -1), cuts, [1] * self.count, everywhere)
            if len(own) < len(x):
                out[:, slab] = x[:, slab]
            out[who, slab] = taken(weights, everywhere, x[who, slab])

    def with_others(self, x: Tensor, needs: Needs) -> Tensor:
        """The rows of this rank, and those that it needs of others.   # (k, d) -> (k + m, d)"""
        found = x.new_empty(len(x) + len(needs.which[self.rank]), x.shape[1])
        for slab in self._slabs(x, needs.largest):
            found[:, slab] = self._with_others(x[:, slab], needs)
        return found

    def _with_others(self, x: Tensor, needs: Needs) -> Tensor:
        """The same at once.   # (k, w) -> (k + m, w)"""
        k, w = x.shape
        found = x.new_empty(k + len(needs.which[self.rank]), w)
        found[:k] = x
        if needs.sizes.any():
            wanted = np.concatenate([needs.of_mine(self.rank, other) for other in range(self.count)])
            send = x[torch.from_numpy(wanted).to(x.device)]
            sent, received = needs.sizes[:, self.rank] * w, needs.sizes[self.rank] * w
            self._passed(send, sent.tolist(), received.tolist(), found[k:])
        return found

    @staticmethod
    def _slabs(x: Tensor, rows: int) -> list[slice]:
        """Parts of the columns of which so many rows can be had at once."""
        return column_blocks(x.shape[1], max(1, SLAB // (x.element_size() * rows) // UNIT) * UNIT)

    # -- rows to columns, and back ------------------------------------------------------------------------------------

    def _to_columns(self, x: Tensor, cuts: list[slice], counts: list[int]) -> Tensor:
        """Each rank's cut of the columns, of all rows.   # (k, d) -> (n, w)"""
        mine, k, n = cuts[self.rank], counts[self.rank], sum(counts)
        pieces = list(self._pieces(cuts, counts, x.element_size()))
        found = x.new_empty(n, mine.stop - mine.start) if len(pieces) != 1 else None
        for parts in pieces:
            own = parts[self.rank]
            w = own.stop - own.start
            send = torch.cat([x[:, _within(c, p)].reshape(-1) for c, p in zip(cuts, parts, strict=True)])
            sizes = [k * (p.stop - p.start) for p in parts]
            got = self._passed(send, sizes, [count * w for count in counts]).view(n, w)
            if found is None:
                return got
            found[:, own] = got
        assert found is not None
        return found

    def _to_rows(self, y: Tensor, cuts: list[slice], counts: list[int], out: Tensor) -> None:
        """The other way, into `out`.   # (n, w) -> (k, d)"""
        k = counts[self.rank]
        for parts in self._pieces(cuts, counts, y.element_size()):
            own = parts[self.rank]
            w = own.stop - own.start
            sizes = [k * (p.stop - p.start) for p in parts]
            got = self._passed(y[:, own].reshape(-1), [count * w for count in counts], sizes)
            for cut, part, piece in zip(cuts, parts, torch.split(got, sizes), strict=True):
                out[:, _within(cut, part)] = piece.view(k, part.stop - part.start)

    def _pieces(self, cuts: list[slice], counts: list[int], width: int) -> Iterator[list[slice]]:
        """The cuts, a part of each at a time, so that nobody sends or receives more than the limit at once."""
        filled = sum(cut.stop > cut.start for cut in cuts)
        heads = sum(counts) if filled == 1 else max(counts) * self.count
        step = max(1, LIMIT // (width * max(1, heads)))
        longest = max(cut.stop - cut.start for cut in cuts)
        for start in range(0, longest, step):
            ends = [cut.stop - cut.start for cut in cuts]
            yield [slice(min(start, end), min(start + step, end)) for end in ends]

    # -- the process group --------------------------------------------------------------------------------------------

    def _passed(self, send: Tensor, sent: list[int], received: list[int], into: Tensor | None = None) -> Tensor:
        """What all ranks have for this one, into memory that may be given; numbers travel as the bytes that they are."""
        width = send.element_size()
        raw = send.reshape(-1).contiguous().view(torch.uint8)
        got = send.new_empty(sum(received)) if into is None else into.view(-1)
        with self._connected():
            dist.all_to_all_single(
                got.view(torch.uint8), raw, [size * width for size in received], [size * width for size in sent]
            )
        return got

    def _from_all(self, values: Tensor, counts: list[int]) -> Tensor:
        """The rows of all ranks, one rank after the other; small things only.   # (k, ...) -> (n, ...)"""
        values = values.cpu()
        padded = values.new_zeros(max(*counts, 1), *values.shape[1:])
        padded[: len(values)] = values
        every = [torch.empty_like(padded) for _ in counts]
        with self._connected():
            dist.all_gather(every, padded)
        return torch.cat([part[:count] for part, count in zip(every, counts, strict=True)])

    @contextmanager
    def _connected(self) -> Iterator[None]:
        """Say who is gone, if somebody is."""
        try:
            yield
        except RuntimeError as problem:
            raise RankLost(why_lost(self.rank, self.count, str(problem))) from problem


def _as_bytes(x: Tensor) -> Tensor:
    """The same memory, as bytes of each row.   # (k, ...) -> (k, w) uint8"""
    return x.reshape(len(x), math.prod(x.shape[1:])).view(torch.uint8)


def _within(cut: slice, part: slice) -> slice:
    return slice(cut.start + part.start, cut.start + part.stop)

"""Shards: one simulation on several processes of `torch.distributed`, each of which hosts a block of the nodes.

Rows are trained where they live. To mix, rows are turned into columns: every rank receives a part of the columns of all rows, applies the whole
matrix of the round to them, and sends the results back. So the traffic does not depend on who talks to whom, and every number is added up on one
rank in the order in which one process adds it up: results are the same to the last bit.

Columns are cut where vector instructions cannot tell (multiples of `UNIT`); sums over whole blocks, as in D(X), are of the blocks that one
process takes. What travels is cut into pieces of at most `LIMIT` bytes, because gloo fails on very large ones.

Shapes: n nodes (those of a round, where it is a round's), k of them on this rank, d columns, w of them on this rank, r ranks.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from epidemic import errors
from epidemic.algorithms import Heard, Inbox, Rows
from epidemic.errors import BadInput, EpidemicError, RankLost, RunFailed
from epidemic.graph import IntArray
from epidemic.host.coding import Coder, Memory
from epidemic.host.interrupt import Stop
from epidemic.host.joining import why_lost
from epidemic.host.mixture import COLUMNS, UNIT, mean_of_block, mix, spread_of_block
from epidemic.learner import Evaluation
from epidemic.mixing import Weights
from epidemic.workers import Workers

LIMIT = 128 << 20
"""Bytes that a rank sends at once."""


class Shards:
    """This rank of several, which host the nodes of an experiment in contiguous blocks."""

    def __init__(self, nodes: int) -> None:
        self.rank, self.count = dist.get_rank(), dist.get_world_size()
        if self.count > nodes:
            raise BadInput(f"{self.count} ranks are more than nodes = {nodes}; use at most {nodes}")
        self._bounds = np.array([nodes * rank // self.count for rank in range(self.count + 1)])
        self._device = torch.device("cpu")  # where small things are exchanged

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
        for slab, cuts, block in self._blocks(x, workers):
            part = x.new_empty(1, 0) if block is None else mean_of_block(block)[None]
            self._to_rows(part.expand(self.count, -1), cuts, [1] * self.count, mean[:, slab])
        return mean

    def disagreement(self, x: Tensor, workers: Workers) -> float:
        """D(X) of all rows, summed block by block as one process sums it."""
        found = torch.zeros(-(-x.shape[1] // COLUMNS), dtype=torch.float64)
        rows = self._heads(x)
        for slab, cuts, block in self._blocks(x, workers):
            if block is not None:
                found[(slab.start + cuts[self.rank].start) // COLUMNS] = spread_of_block(block)
        with self._connected():
            dist.all_reduce(found)  # each is a number on one rank and 0 on all others
        return math.fsum(found.tolist()) / sum(rows)

    def _heads(self, x: Tensor) -> list[int]:
        """How many rows every rank has."""
        counts: list[int] = self._from_all(torch.tensor([len(x)]), [1] * self.count).tolist()
        return counts

    def _blocks(self, x: Tensor, workers: Workers) -> Iterator[tuple[slice, list[slice], Tensor | None]]:
        """Blocks of columns of all rows, one for each rank at a time: where they are, how they are cut, and this rank's own."""
        counts = self._heads(x)
        for slab in _slices(x.shape[1], COLUMNS * self.count):
            cuts = _cut(slab.stop - slab.start, self.count, COLUMNS, full=True)
            block = self._to_columns(x[:, slab], cuts, counts)
            yield slab, cuts, block if block.shape[1] else None

    # -- all rows on the first rank -----------------------------------------------------------------------------------

    def gathered(self, x: Tensor) -> Tensor:
        """All rows, on the first rank; elsewhere those that live there.   # (k, ...) -> (n, ...)"""
        flat = x.reshape(len(x), math.prod(x.shape[1:]))
        every = self._to_columns(flat, self._all_first(flat.shape[1]), self._counts(None))
        return every.view(len(every), *x.shape[1:]) if self.rank == 0 else x

    def restored(self, tensors: dict[str, Tensor] | None) -> dict[str, Tensor]:
        """Rows of all nodes that the first rank has read: those that live here.   # (n, ...) -> (k, ...)"""
        said = {name: (str(t.dtype).removeprefix("torch."), t.shape[1:]) for name, t in (tensors or {}).items()}
        about = msgspec.json.decode(self.told(msgspec.json.encode(said)), type=dict[str, tuple[str, list[int]]])
        counts, found = self._counts(None), {}
        for name, (dtype, shape) in about.items():
            own = torch.empty(counts[self.rank], *shape, dtype=getattr(torch, dtype))
            flat = own.view(len(own), -1)
            every = tensors[name].reshape(sum(counts), -1) if tensors else flat.new_empty(sum(counts), 0)
            self._to_rows(every, self._all_first(flat.shape[1]), counts, flat)
            found[name] = own
        return found

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
            for part in _slices(width, step):
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
        return Transposed(self, message, weights, self._counts(who), workers, memory)

    def mixed(self, weights: Weights, x: Tensor, counts: list[int], workers: Workers, out: Tensor) -> Tensor:
        """W @ X of all rows, for those of this rank, into `out`.   # (k, d) -> (k, d)"""
        largest = max(*counts, 1)
        width = max(1, LIMIT // (x.element_size() * largest) // UNIT) * UNIT
        for slab in _slices(x.shape[1], width):
            cuts = _cut(slab.stop - slab.start, self.count, UNIT)
            columns = self._to_columns(x[:, slab], cuts, counts)
            if columns.numel():
                columns = mix(weights, columns, workers, torch.empty_like(columns))
            self._to_rows(columns, cuts, counts, out[:, slab])
        return out

    # -- rows to columns, and back ------------------------------------------------------------------------------------

    def _to_columns(self, x: Tensor, cuts: list[slice], counts: list[int]) -> Tensor:
        """Each rank's cut of the columns, of all rows.   # (k, d) -> (n, w)"""
        mine, k = cuts[self.rank], counts[self.rank]
        found = x.new_empty(sum(counts), mine.stop - mine.start)
        for parts in self._pieces(cuts, counts, x.element_size()):
            own = parts[self.rank]
            w = own.stop - own.start
            send = torch.cat([x[:, _within(c, p)].reshape(-1) for c, p in zip(cuts, parts, strict=True)])
            sizes = [k * (p.stop - p.start) for p in parts]
            found[:, own] = self._passed(send, sizes, [count * w for count in counts]).view(sum(counts), w)
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

    def _passed(self, send: Tensor, sent: list[int], received: list[int]) -> Tensor:
        """What all ranks have for this one; numbers travel as the bytes that they are."""
        width = send.element_size()
        raw = send.reshape(-1).contiguous().view(torch.uint8)
        got = torch.empty(sum(received) * width, dtype=torch.uint8, device=send.device)
        with self._connected():
            dist.all_to_all_single(got, raw, [size * width for size in received], [size * width for size in sent])
        return got.view(send.dtype)

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


class Transposed:
    """The inboxes of the hosted nodes, mixed by columns."""

    def __init__(
        self,
        shards: Shards,
        message: Rows,
        weights: Weights,
        counts: list[int],
        workers: Workers,
        memory: Memory,
    ) -> None:
        self._shards = shards
        self._message = message
        self._weights = weights
        self._counts = counts
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

    def _apply(self, weights: Weights, column: str) -> Tensor:
        rows = self._message[column]
        out = self._memory(column, rows)
        flat, into = (t.view(len(t), math.prod(t.shape[1:])) for t in (rows, out))
        self._shards.mixed(weights, flat, self._counts, self._workers, into)
        return out

    def each(self, column: str) -> Iterator[Heard]:
        """Letters are never in one place."""
        raise RunFailed(
            "algorithm: on several ranks only means and sums of letters can be had, not the letters themselves; run it in one process"
        )


def _slices(size: int, at_most: int) -> list[slice]:
    return [slice(start, min(start + at_most, size)) for start in range(0, size, at_most)]


def _cut(width: int, parts: int, unit: int, *, full: bool = False) -> list[slice]:
    """0..width in as many slices, at multiples of the unit; `full`: each of one whole unit, as long as there are some."""
    units = -(-width // unit)
    at = [min(r, units) if full else units * r // parts for r in range(parts + 1)]
    return [slice(min(a * unit, width), min(b * unit, width)) for a, b in itertools.pairwise(at)]


def _within(cut: slice, part: slice) -> slice:
    return slice(cut.start + part.start, cut.start + part.stop)

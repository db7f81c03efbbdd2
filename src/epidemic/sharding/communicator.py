"""Communication between the ranks of one simulation, through `torch.distributed`.

Data is cut into pieces of at most `LIMIT` bytes, because gloo fails on very large ones. Numbers travel as raw bytes.

Shapes: n rows of all ranks, k of them on this one, d columns, w of them on this rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import numpy as np
import torch
import torch.distributed as dist
from safetensors import SafetensorError
from torch import Tensor

from epidemic.core import errors
from epidemic.core.errors import EpidemicError, RankLost, RunFailed, plain
from epidemic.sharding.rendezvous import why_lost

LIMIT = 32 << 20
"""Bytes that a rank sends at once; a rank needs memory for a few times as many, whatever its share."""


class Communicator:
    """One rank's connection to the others."""

    def __init__(self) -> None:
        self.rank, self.count = dist.get_rank(), dist.get_world_size()

    # -- agreeing -----------------------------------------------------------------------------------------------------

    @contextmanager
    def together(self) -> Iterator[None]:
        """An exception inside on one rank is raised on all of them, with the message of the first that failed."""
        problem: EpidemicError | None = None
        try:
            yield
        except RankLost:
            raise
        except EpidemicError as found:
            problem = found
        except (OSError, SafetensorError) as found:  # from a file, usually in the first rank's directory
            problem = RunFailed(plain(" ".join(str(found).split()), 300))
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
        """The first rank's word, on every rank."""
        size = torch.tensor([len(word)])
        with self.connected():
            dist.broadcast(size, 0)
            raw = torch.zeros(int(size), dtype=torch.uint8)
            if self.rank == 0 and word:
                raw.copy_(torch.frombuffer(bytearray(word), dtype=torch.uint8))
            if len(raw):
                dist.broadcast(raw, 0)
        return raw.numpy().tobytes()

    def _words(self, word: bytes) -> list[bytes]:
        """The word of every rank, in order."""
        sizes = [int(size) for size in self.from_all(torch.tensor([len(word)]), [1] * self.count)]
        raw = torch.frombuffer(bytearray(word), dtype=torch.uint8) if word else torch.zeros(0, dtype=torch.uint8)
        whole = self.from_all(raw, sizes).numpy().tobytes()
        ends = np.cumsum(sizes)
        return [whole[end - size : end] for end, size in zip(ends, sizes, strict=True)]

    def any(self, flag: bool) -> bool:
        """Whether the flag is true on any rank."""
        votes = torch.tensor([int(flag)])
        with self.connected():
            dist.all_reduce(votes, dist.ReduceOp.MAX)
        return bool(votes)

    # -- rows to columns, and back ------------------------------------------------------------------------------------

    def to_columns(self, x: Tensor, cuts: list[slice], counts: list[int]) -> Tensor:
        """Each rank's columns of all rows.   # (k, d) -> (n, w)"""
        mine, k, n = cuts[self.rank], counts[self.rank], sum(counts)
        pieces = list(self._pieces(cuts, counts, x.element_size()))
        found = x.new_empty(n, mine.stop - mine.start) if len(pieces) != 1 else None
        for parts in pieces:
            own = parts[self.rank]
            w = own.stop - own.start
            send = torch.cat([x[:, _within(c, p)].reshape(-1) for c, p in zip(cuts, parts, strict=True)])
            sizes = [k * (p.stop - p.start) for p in parts]
            got = self.passed(send, sizes, [count * w for count in counts]).view(n, w)
            if found is None:
                return got
            found[:, own] = got
        assert found is not None
        return found

    def to_rows(self, y: Tensor, cuts: list[slice], counts: list[int], out: Tensor) -> None:
        """The inverse of `to_columns`, into `out`.   # (n, w) -> (k, d)"""
        k = counts[self.rank]
        for parts in self._pieces(cuts, counts, y.element_size()):
            own = parts[self.rank]
            w = own.stop - own.start
            sizes = [k * (p.stop - p.start) for p in parts]
            got = self.passed(y[:, own].reshape(-1), [count * w for count in counts], sizes)
            for cut, part, piece in zip(cuts, parts, torch.split(got, sizes), strict=True):
                out[:, _within(cut, part)] = piece.view(k, part.stop - part.start)

    def _pieces(self, cuts: list[slice], counts: list[int], width: int) -> Iterator[list[slice]]:
        """The cuts in pieces, so that no rank sends or receives more than the limit at once."""
        filled = sum(cut.stop > cut.start for cut in cuts)
        heads = sum(counts) if filled == 1 else max(counts) * self.count
        step = max(1, LIMIT // (width * max(1, heads)))
        longest = max(cut.stop - cut.start for cut in cuts)
        for start in range(0, longest, step):
            ends = [cut.stop - cut.start for cut in cuts]
            yield [slice(min(start, end), min(start + step, end)) for end in ends]

    # -- the process group --------------------------------------------------------------------------------------------

    def passed(self, send: Tensor, sent: list[int], received: list[int], into: Tensor | None = None) -> Tensor:
        """What all ranks send to this one, optionally into existing memory; numbers travel as raw bytes."""
        width = send.element_size()
        raw = send.reshape(-1).contiguous().view(torch.uint8)
        got = send.new_empty(sum(received)) if into is None else into.view(-1)
        with self.connected():
            dist.all_to_all_single(
                got.view(torch.uint8), raw, [size * width for size in received], [size * width for size in sent]
            )
        return got

    def from_all(self, values: Tensor, counts: list[int]) -> Tensor:
        """The rows of all ranks in order; for small tensors only.   # (k, ...) -> (n, ...)"""
        values = values.cpu()
        padded = values.new_zeros(max(*counts, 1), *values.shape[1:])
        padded[: len(values)] = values
        every = [torch.empty_like(padded) for _ in counts]
        with self.connected():
            dist.all_gather(every, padded)
        return torch.cat([part[:count] for part, count in zip(every, counts, strict=True)])

    @contextmanager
    def connected(self) -> Iterator[None]:
        """Report which rank is gone if the connection is lost inside."""
        try:
            yield
        except RuntimeError as problem:
            raise RankLost(why_lost(self.rank, self.count, str(problem))) from problem


def _within(cut: slice, part: slice) -> slice:
    return slice(cut.start + part.start, cut.start + part.stop)

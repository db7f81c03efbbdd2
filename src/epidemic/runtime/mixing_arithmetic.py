"""The arithmetic of an exchange: the mixtures of the hosted nodes, W @ X, on all worker threads.

Each piece of the result is computed by one thread from the same numbers in the same order, however many threads there are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from scipy.sparse import csr_array
from torch import Tensor

from epidemic.compression import Fill, Said
from epidemic.core.graph import FloatArray
from epidemic.core.workers import SMALL, Workers, blocks
from epidemic.mixing import Weights

NUMBERS = 1 << 19  # of a sparse mixture per piece, if it is cut into columns ...
ENOUGH = 8  # ... into at least this many pieces; otherwise it is cut ...
ROWS = 64  # ... into blocks of this many rows
UNIT = 64
"""Columns are cut at multiples of this, so that each has the same position in a vector register as in one process."""
COLUMNS = 1 << 14  # of a sum over all nodes per piece
LEFT = 1e-12  # a smaller share of the own row is rounding
OF_ALL = 1 << 24
"""Numbers per piece of sums over all models; with more than 1,024 nodes such a piece has fewer columns than others."""


def mix(weights: Weights, x: Tensor, workers: Workers, out: Tensor) -> Tensor:
    """W @ X, into `out`.   # (n, d) -> (n, d), or (n,) -> (n,)"""
    if x.dim() == 1:
        return mix(weights, x[:, None], workers, out[:, None])[:, 0]
    if weights.matrix is None:
        return _mix_clique(weights, x, workers, out)
    return added(weights.matrix, x, workers, out)


def mix_said(weights: Weights, own: Tensor, said: Said, fill: Fill, workers: Workers, out: Tensor) -> Tensor:
    """W @ X where a node takes its own row exactly and the others' as decoded; each coordinate from those that sent it.   # (n, d)"""
    matrix = weights.spelled_out
    messages = np.ones(matrix.nnz, dtype=bool)
    messages[matrix.indptr[:-1]] = False  # the own row comes first in each row
    first = torch.from_numpy(matrix.data[~messages]).to(own.device, own.dtype)[:, None]
    indptr = matrix.indptr - np.arange(weights.n + 1)
    rest = _Sums(csr_array((matrix.data[messages], matrix.indices[messages], indptr), shape=matrix.shape), own)

    pieces, mask = rest.pieces(), said.mask
    if mask is not None and pieces[0][0].stop < weights.n:  # cut into rows: every piece needs all of it
        mask = _numbers(mask, own.dtype)

    def one(piece: Piece) -> None:
        rows, columns = piece
        heard = None if mask is None else rest.of(_numbers(mask[:, columns], own.dtype), (rows, slice(None)))
        with_own(rest.of(said.rows, piece), heard, own[piece], first[rows], fill, out[piece])

    workers.map(one, pieces, size=rest.size * (1 if mask is None else 2))
    return out


def _numbers(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask as numbers 0 and 1; conversion from bytes is three times as fast as from booleans."""
    return (mask.view(torch.uint8) if mask.dtype == torch.bool else mask).to(dtype)


def with_own(said: Tensor, heard: Tensor | None, own: Tensor, first: Tensor, fill: Fill, out: Tensor) -> None:
    """The average of the own row and the received values, summed by their weights, into `out`.   # (..., d)

    `heard`: the total weight of the senders of each coordinate; None: all sent it. `first`: the weight of the own row.
    count: the senders share the whole weight. own: the own value gets the weight of those that did not send. Either way a coordinate that nobody sent stays
    unchanged, to the last bit.
    """
    torch.mul(own, first, out=out).add_(said)
    if heard is None:
        return
    if fill == "count":
        out.div_(heard + first)
    else:
        out.add_(own * (1 - first - heard))
    _keep(own, heard, out)


def _keep(own: Tensor, heard: Tensor, out: Tensor) -> None:
    """Restore the own number, bit by bit, where nothing was received; `torch.where`, which branches, takes five times as long."""
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[heard.element_size()]
    own, out = own.view(whole), out.view(whole)
    # 0 or 1: weights are 0.0 or more, and the bits of a positive float are a positive integer
    some = heard.view(whole).clamp(max=1)
    # an overflowing difference of integers is undone when it is added again
    torch.addcmul(own, some, out.sub_(own), out=out)


def mix_parts(weights: Sequence[Weights], cuts: Sequence[slice], x: Tensor, workers: Workers, out: Tensor) -> Tensor:
    """Mix each of these blocks of columns by its own weights, into `out`.   # (n, d) -> (n, d)"""
    found: list[tuple[_Sums, slice, Piece]] = []
    for own, cut in zip(weights, cuts, strict=True):
        if own.matrix is None:
            _mix_clique(own, x[:, cut], workers, out[:, cut])
            continue
        sums = _Sums(own.matrix, x[:, cut])
        found += [(sums, cut, piece) for piece in sums.by_columns()]

    def one(work: tuple[_Sums, slice, Piece]) -> None:
        sums, cut, piece = work
        out[:, cut][piece] = sums.of(x[:, cut], piece)

    workers.map(one, found, size=sum(sums.size for sums, _, _ in found))
    return out


def added(matrix: csr_array, x: Tensor, workers: Workers, out: Tensor) -> Tensor:
    """The product of a sparse matrix and x, each row added in its order, into `out`.   # (m, d) -> (n, d)"""
    sums = _Sums(matrix, x)

    def one(piece: Piece) -> None:
        out[piece] = sums.of(x, piece)

    workers.map(one, sums.pieces(), size=sums.size)
    return out


Piece = tuple[slice, slice]
"""Rows and columns of a result."""


class _Sums:
    """Sums of rows weighted by a matrix, piece by piece."""

    def __init__(self, matrix: csr_array, x: Tensor) -> None:
        """Prepare; `x` has the type and width of the rows to add.   # (m, d)"""
        self._indptr = matrix.indptr.astype(np.int64)
        self._indices = torch.from_numpy(matrix.indices).long().to(x.device)
        self._values = torch.from_numpy(matrix.data).to(x.device, x.dtype)
        self._rows = len(self._indptr) - 1
        self._shape = x.shape
        self.size = len(self._values) * x.shape[1]

    def of(self, x: Tensor, piece: Piece) -> Tensor:
        """Compute one piece of the result.   # (m, d) -> (rows, columns)"""
        rows, columns = piece
        edges = slice(int(self._indptr[rows.start]), int(self._indptr[rows.stop]))
        starts = torch.from_numpy(self._indptr[rows] - edges.start).to(x.device)
        values = self._values[edges]
        return F.embedding_bag(self._indices[edges], x[:, columns], starts, mode="sum", per_sample_weights=values)

    def by_columns(self) -> list[Piece]:
        """Blocks of columns of which all rows fit into a core's cache."""
        m, d = self._shape
        return [(slice(0, self._rows), block) for block in blocks(d, max(1, NUMBERS // max(1, m) // UNIT) * UNIT)]

    def pieces(self) -> list[Piece]:
        """Blocks of columns, or of rows if these were too few."""
        rows, columns = slice(0, self._rows), slice(0, self._shape[1])
        if self.size < SMALL:
            return [(rows, columns)]
        found = self.by_columns()
        if len(found) >= ENOUGH:
            return found
        return [(block, columns) for block in blocks(self._rows, min(ROWS, max(1, self._rows // 8)))]


def add(row: Tensor, message: Tensor, share: float) -> None:
    """row += share * message, rounded as `mix` rounds it: once for float32, after each of the two operations for float64."""
    if row.dtype == torch.float64:
        row.add_(message * share)
    else:
        row.add_(message, alpha=share)


def mix_member(members: Tensor, at: int, share: float, own: float) -> Tensor:
    """The row that the member at position `at` of a complete graph gets, as `mix` computes it.   # (m, d) -> (d,), or (m,) -> ()"""
    if members.dim() == 1:
        return mix_member(members[:, None], at, share, own)[0]
    parts = [members[:, part] for part in column_blocks(members.shape[1])]
    return torch.cat([_besides(_shared(part, share), part[at : at + 1], own)[0] for part in parts])


def mix_portions(members: Tensor, portions: FloatArray) -> Tensor:
    """The row that every member of a complete graph gets if each has its own weight.   # (m, d) -> (d,), or (m,) -> ()"""
    if members.dim() == 1:
        return mix_portions(members[:, None], portions)[0]
    parts = [members[:, part] for part in column_blocks(members.shape[1])]
    return torch.cat([_portioned(part, portions)[0] for part in parts])


def columns_for(n: int) -> int:
    """Columns per block of sums over n models: a process that has only some of the rows needs all of them for a block."""
    return min(COLUMNS, max(1, OF_ALL // max(1, n) // UNIT) * UNIT)


def mean_row(x: Tensor, workers: Workers) -> Tensor:
    """The average of all rows, summed in double precision.   # (n, d) -> (1, d)"""
    mean = torch.empty(1, x.shape[1], dtype=x.dtype, device=x.device)

    def one(part: slice) -> None:
        mean[0, part] = mean_of_block(x[:, part])

    workers.map(one, blocks(x.shape[1], columns_for(len(x))), size=x.numel())
    return mean


def disagreement(x: Tensor, workers: Workers) -> float:
    """D(X) in double precision, without a second copy of X."""

    def one(part: slice) -> float:
        return spread_of_block(x[:, part])

    return math.fsum(workers.map(one, blocks(x.shape[1], columns_for(len(x))), size=x.numel())) / len(x)


def mean_of_block(x: Tensor) -> Tensor:
    """The average of all rows of a block of columns.   # (n, w) -> (w,)"""
    return x.mean(0, dtype=_wide(x)).to(x.dtype)


def spread_of_block(x: Tensor) -> float:
    """The contribution of a block of columns to n D(X).   # (n, w)"""
    block = x.to(_wide(x), copy=True, memory_format=torch.contiguous_format)
    return float(block.sub_(block.mean(0)).square_().sum())


def _wide(x: Tensor) -> torch.dtype:
    return torch.float32 if x.device.type == "mps" else torch.float64


def column_blocks(width: int, at_most: int = COLUMNS) -> list[slice]:
    """Cut 0..width into slices for sums over all nodes; a single last column stays with those before it.

    Alone it would be summed in another order, and results would depend on where columns are cut.
    """
    found = blocks(width, at_most)
    if len(found) > 1 and width - found[-1].start == 1:
        found[-2:] = [slice(found[-2].start, width)]
    return found


def _mix_clique(weights: Weights, x: Tensor, workers: Workers, out: Tensor) -> Tensor:
    """Mix a complete graph: members take a share of the sum over all members; the others keep their rows."""
    assert weights.clique is not None
    everyone = len(weights.clique) == weights.n
    who = torch.from_numpy(weights.clique).to(x.device)

    def one(part: slice) -> None:
        members = x[:, part] if everyone else x[who, part]
        mixed = taken(weights, shared_row(weights, members), members)
        if everyone:
            out[:, part] = mixed
        else:
            out[:, part] = x[:, part]
            out[who, part] = mixed

    workers.map(one, column_blocks(x.shape[1]), size=x.numel())
    return out


def shared_row(weights: Weights, members: Tensor) -> Tensor:
    """The part of the result that all members of a complete graph share, summed in double precision.   # (m, d) -> (1, d)"""
    return _shared(members, weights.share) if weights.portions is None else _portioned(members, weights.portions)


def taken(weights: Weights, row: Tensor, takers: Tensor) -> Tensor:
    """The members' results: that row, plus a share of their own.   # (1, d), (t, d) -> (t, d) or (1, d)"""
    return _besides(row, takers, weights.own if weights.portions is None else 0.0)


def _portioned(members: Tensor, portions: FloatArray) -> Tensor:
    """The weighted sum over all members in double precision; equal weights give what `_shared` gives.   # (m, d) -> (1, d)"""
    if len(portions) and (portions == portions[0]).all():
        return _shared(members, float(portions[0]))
    by = torch.from_numpy(portions).to(members.device, _wide(members))
    return (by[:, None] * members.to(_wide(members))).sum(0, keepdim=True).to(members.dtype)


def _shared(members: Tensor, share: float) -> Tensor:
    """A share of the sum over all members, summed in double precision.   # (m, d) -> (1, d)"""
    return (share * members.sum(0, keepdim=True, dtype=_wide(members))).to(members.dtype)


def _besides(row: Tensor, takers: Tensor, own: float) -> Tensor:
    """A row plus a share of each taker's own.   # (1, d), (t, d) -> (t, d) or (1, d)"""
    return row + own * takers if abs(own) > LEFT else row

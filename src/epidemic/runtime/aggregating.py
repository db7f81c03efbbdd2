"""The arithmetic of aggregators that are not averages, for many receivers at once or for one.

A coordinatewise rule is computed in pieces of as many receivers and columns as fit into a core's cache; no number depends on how the work is cut. Any
other rule is called once per receiver; one that reads rows where they are gets them without a copy.

Before any rule, received rows with a number that is not finite are left out, as if they had not come.

Shapes: k receivers, d numbers of a row, m inputs of a receiver, h = m - 1 of them received, l rows that can be received.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from epidemic.aggregation import Aggregator, Coordinatewise, Heard, Mean, Rowwise
from epidemic.aggregation.base import weights_of
from epidemic.core.errors import EpidemicError, RunFailed
from epidemic.core.graph import FloatArray, IntArray
from epidemic.core.workers import Workers, blocks

MEAN = Mean()

NUMBERS = 1 << 18
"""Inputs per piece."""
UNIT = 64
"""Columns are cut at multiples of this many."""


@dataclass(frozen=True, eq=False)
class Receiver:
    """The messages of one receiver, as positions among the rows that can be received."""

    at: IntArray  # (h,)
    senders: IntArray  # (h,) their node ids, ascending
    weights: FloatArray  # (1 + h,) its own first

    def without(self, finite: NDArray[np.bool_]) -> Receiver:
        """The same without rows that are not finite; the others' weights grow alike.   # (l,)"""
        kept = finite[self.at]
        return Receiver(self.at[kept], self.senders[kept], weights_of(self.weights, kept))


def finite_rows(rows: Tensor) -> NDArray[np.bool_]:
    """Which rows have finite numbers only.   # (l, d) -> (l,)"""
    found: NDArray[np.bool_] = torch.isfinite(rows.sum(1)).cpu().numpy()  # a sum that overflows says nothing
    for i in np.flatnonzero(~found).tolist():
        found[i] = bool(torch.isfinite(rows[i]).all())
    return found


def aggregate_all(
    rule: Aggregator, receivers: Sequence[Receiver], own: Tensor, rows: Tensor, workers: Workers, out: Tensor
) -> Tensor:
    """Aggregate for all receivers, into `out`.   # (k, d), (l, d) -> (k, d), or (k,), (l,) -> (k,)"""
    if own.dim() == 1:
        return aggregate_all(rule, receivers, own[:, None], rows[:, None], workers, out[:, None])[:, 0]
    if not (finite := finite_rows(rows)).all():
        receivers = [one.without(finite) for one in receivers]
    if isinstance(rule, Coordinatewise):
        _by_coordinates(rule, [one.at for one in receivers], own, rows, workers, out)
        return out

    def one(i: int) -> None:
        found = receivers[i]
        if 1 + len(found.at) < rule.fewest:
            out[i] = own[i]
            return
        if isinstance(rule, Rowwise):
            combined(rule, own[i], [rows[j] for j in found.at.tolist()], found.weights, out[i])
            return
        received = rows[torch.from_numpy(found.at).to(rows.device)]
        out[i] = called(
            rule, Heard(own[i], received, found.senders.astype(np.int64), found.weights, _fresh(len(found.at)))
        )

    workers.map(one, range(len(receivers)))
    return out


def aggregate_everybody(rule: Coordinatewise, rows: Tensor, workers: Workers, out: Tensor) -> Tensor:
    """Aggregate for nodes that all receive each other's rows: the result is the same, so it is computed once.   # (m, d) -> (m, d)"""
    if rows.dim() == 1:
        return aggregate_everybody(rule, rows[:, None], workers, out[:, None])[:, 0]
    finite = torch.from_numpy(finite_rows(rows)).to(rows.device)
    if not finite.all():
        if finite.any():
            out[finite] = aggregate_everybody(rule, rows[finite], workers, torch.empty_like(rows[finite]))
        out[~finite] = rows[~finite]
        return out
    if len(rows) < rule.fewest:
        return out.copy_(rows)

    def one(columns: slice) -> None:
        out[:, columns] = reduced(rule, list(rows[:, columns].clone().unbind()))

    workers.map(one, _columns(rows.shape[1], len(rows)), size=rows.numel() * len(rows))
    return out


def aggregate_one(rule: Aggregator, own: Tensor, received: Sequence[Tensor], heard: Heard, out: Tensor) -> None:
    """Aggregate for one receiver whose rows came one by one, into `out`.   # (d,), h times (d,)

    `heard` has everything else about them; its tensors are not read.
    """
    finite = np.array([bool(finite_rows(row.reshape(1, -1))[0]) for row in received], dtype=bool)
    if not finite.all():
        received = [row for row, good in zip(received, finite, strict=True) if good]
        heard = heard.only(finite)
    m = 1 + len(received)
    if m < rule.fewest:
        out.copy_(own)
    elif isinstance(rule, Rowwise):
        combined(rule, own.reshape(-1), [row.reshape(-1) for row in received], heard.weights, out.view(-1))
    elif isinstance(rule, Coordinatewise):
        flat = [row.reshape(-1) for row in (own, *received)]
        into = out.view(-1)
        for columns in _columns(len(into), m):
            into[columns] = reduced(rule, [row[columns].clone() for row in flat])
    else:
        stacked = torch.stack(list(received)) if received else own.new_empty((0, *own.shape))
        out.copy_(called(rule, Heard(own, stacked, heard.senders, heard.weights, heard.ages)))


def combined(rule: Rowwise, own: Tensor, received: list[Tensor], weights: FloatArray, out: Tensor) -> None:
    """The same of a rule that reads rows where they are, into `out`."""
    try:
        rule.combine(own, received, weights, out)
    except EpidemicError:
        raise
    except Exception as problem:
        reason = " ".join(str(problem).split())
        raise RunFailed(f"aggregation: {_name(rule)} failed: {type(problem).__name__}: {reason}") from problem


def called(rule: Aggregator, heard: Heard) -> Tensor:
    """Apply a rule; an invalid result of a user's own rule ends the run with one line."""
    name = _name(rule)
    try:
        found = rule(heard)
    except EpidemicError:
        raise
    except Exception as problem:
        reason = " ".join(str(problem).split())
        raise RunFailed(f"aggregation: {name} failed: {type(problem).__name__}: {reason}") from problem
    own = heard.own
    if not isinstance(found, Tensor) or found.shape != own.shape or found.dtype != own.dtype:
        said = f"{_dtype(found)} {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
        raise RunFailed(
            f"aggregation: {name} gave {said}; it must return {_dtype(own)} {tuple(own.shape)}, as heard.own is"
        )
    return found


def reduced(rule: Coordinatewise, inputs: list[Tensor]) -> Tensor:
    """Apply a coordinatewise rule; checks as `called`."""
    shape, dtype = inputs[0].shape, inputs[0].dtype
    try:
        found = rule.reduce(inputs)
    except EpidemicError:
        raise
    except Exception as problem:
        reason = " ".join(str(problem).split())
        raise RunFailed(f"aggregation: {_name(rule)} failed: {type(problem).__name__}: {reason}") from problem
    if not isinstance(found, Tensor) or found.shape != shape or found.dtype != dtype:
        said = f"{_dtype(found)} {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
        raise RunFailed(
            f"aggregation: {_name(rule)} gave {said}; reduce must give {str(dtype)[6:]} {tuple(shape)}, as its inputs are"
        )
    return found


def _by_coordinates(
    rule: Coordinatewise, heard: Sequence[IntArray], own: Tensor, rows: Tensor, workers: Workers, out: Tensor
) -> None:
    """Aggregate for all receivers with the same number of rows together, piece by piece."""
    counts = np.array([len(at) for at in heard], dtype=np.int64)
    pieces: list[tuple[NDArray[np.int64], slice]] = []
    for h in np.unique(counts).tolist():
        group = np.flatnonzero(counts == h)
        if 1 + h < rule.fewest:
            where = torch.from_numpy(group).to(own.device)
            out[where] = own[where]
            continue
        columns = _columns(own.shape[1], 1 + h)
        together = max(1, NUMBERS // ((1 + h) * max(1, min(own.shape[1], columns[0].stop if columns else 1))))
        pieces += [(group[some], part) for some in blocks(len(group), together) for part in columns]

    def one(piece: tuple[NDArray[np.int64], slice]) -> None:
        group, part = piece
        h, width = len(heard[group[0]]), part.stop - part.start
        where = torch.from_numpy(group).to(own.device)
        at = torch.from_numpy(np.stack([heard[i] for i in group.tolist()], axis=1).ravel()).to(rows.device)  # (h k',)
        inputs = own.new_empty(1 + h, len(group), width)
        torch.index_select(own[:, part], 0, where, out=inputs[0])
        torch.index_select(rows[:, part], 0, at, out=inputs[1:].view(h * len(group), width))
        out[where, part] = reduced(rule, list(inputs.unbind()))

    workers.map(one, pieces, size=float(((counts + 1) ** 2).sum() * own.shape[1]))


def _columns(width: int, m: int) -> list[slice]:
    """Blocks of columns of which m rows fit into a core's cache."""
    return blocks(width, max(1, NUMBERS // m // UNIT) * UNIT)


def _fresh(h: int) -> NDArray[np.int64]:
    return np.zeros(h, dtype=np.int64)


def _name(rule: Aggregator) -> str:
    return type(rule).__name__


def _dtype(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")

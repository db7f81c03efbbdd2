"""Rules that decide by distances: what they share.

Such a rule is a weighted sum of its inputs, and its coefficients follow from the distances between them. So it reads the models twice: once for the
distances, once for the sum, and decides on a few numbers in between.

Distances come from the differences to the own model, never from the models themselves, which are long and close together. They are multiplied in
blocks of columns in the precision of the models and added up in double precision. Where that overflows, because somebody sent something
huge, it is all done in double precision.

Shapes: d numbers of a model, h models received, m = 1 + h inputs, the own one first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from epidemic.aggregation.base import Rowwise
from epidemic.core.workers import blocks

Numbers = NDArray[np.float64]

WIDTH = 1 << 14
"""Columns whose differences are multiplied at a time."""
SUM_WIDTH = 1 << 17
"""Columns that are added up at a time."""


class ByDistances(Rowwise):
    """A weighted sum of the inputs whose coefficients follow from the distances between all of them."""

    __slots__ = ()

    def coefficients(self, gram: Numbers) -> Numbers:
        """How much each input counts; they add up to 1.

        Args:
            gram: Inner products of the inputs minus the own one, whose row and column are therefore 0.   # (m, m)

        Returns:
            One number for each input.   # (m,)
        """
        raise NotImplementedError(f"{type(self).__name__} must have a method coefficients(gram)")

    def combine(self, own: Tensor, received: Sequence[Tensor], weights: Numbers, out: Tensor) -> None:
        """Add up the inputs by their coefficients.   # (d,), h times (d,), (1 + h,) -> (d,)"""
        add_up(self.coefficients(gram_of(own, received)), [own, *received], out)


class ByDistancesToOwn(Rowwise):
    """A weighted sum of the inputs whose coefficients follow from the distances to the own one, which takes less time."""

    __slots__ = ()

    def coefficients(self, squared: Numbers, weights: Numbers) -> Numbers:
        """How much each input counts; they add up to 1.

        Args:
            squared: Squared distances of the received models to the own one.   # (h,)
            weights: What each input counts in the weighted average, the own one first.   # (1 + h,)

        Returns:
            One number for each input.   # (1 + h,)
        """
        raise NotImplementedError(f"{type(self).__name__} must have a method coefficients(squared, weights)")

    def combine(self, own: Tensor, received: Sequence[Tensor], weights: Numbers, out: Tensor) -> None:
        """Add up the inputs by their coefficients.   # (d,), h times (d,), (1 + h,) -> (d,)"""
        add_up(self.coefficients(squared_to_own(own, received), weights), [own, *received], out)


def gram_of(own: Tensor, received: Sequence[Tensor]) -> Numbers:
    """Inner products of the inputs minus the own one.   # (d,), h times (d,) -> (m, m)"""
    found = np.zeros((1 + len(received), 1 + len(received)))
    found[1:, 1:] = _added(own, received, lambda z: z @ z.T, (len(received), len(received)))
    return found


def squared_to_own(own: Tensor, received: Sequence[Tensor]) -> Numbers:
    """Squared distances of the received models to the own one.   # (d,), h times (d,) -> (h,)"""
    return _added(own, received, lambda z: z.square_().sum(1), (len(received),))


def squared_distances(gram: Numbers) -> Numbers:
    """Squared distances between all inputs; what is too far to tell is infinitely far.   # (m, m) -> (m, m)"""
    lengths = np.diag(gram)
    with np.errstate(invalid="ignore"):
        found = lengths[:, None] + lengths[None, :] - 2 * gram
    return np.asarray(np.maximum(np.where(np.isnan(found), np.inf, found), 0))


def nearest_of(squared: Numbers, count: int) -> NDArray[np.int64]:
    """The places of the so many smallest, of equal ones the first.   # (k,) -> (count,)"""
    return np.argsort(squared, kind="stable")[:count]


def mean_of(chosen: NDArray[np.int64], m: int) -> Numbers:
    """Coefficients of the mean of these inputs.   # -> (m,)"""
    found = np.zeros(m)
    found[chosen] = 1 / len(chosen)
    return found


def add_up(coefficients: Numbers, inputs: Sequence[Tensor], out: Tensor) -> None:
    """The weighted sum, in the order of the inputs; what counts nothing is not looked at.   # (m,), m times (d,) -> (d,)"""
    counting = [(row, share) for row, share in zip(inputs, coefficients.tolist(), strict=True) if share]
    (first, its_share), *rest = counting
    for columns in blocks(len(out), SUM_WIDTH):
        into = out[columns]
        torch.mul(first[columns], its_share, out=into)
        for row, share in rest:
            into.add_(row[columns], alpha=share)


def _added(
    own: Tensor, received: Sequence[Tensor], products: Callable[[Tensor], Tensor], shape: tuple[int, ...]
) -> Numbers:
    """What `products` makes of the differences to the own model, added up over blocks of columns."""
    half = own.dtype not in (torch.float32, torch.float64)

    def precise(dtype: torch.dtype) -> Numbers:
        found = np.zeros(shape)
        for columns in blocks(len(own), WIDTH):
            ours = own[columns].to(dtype)
            z = torch.empty(len(received), len(ours), dtype=dtype, device=own.device)
            for row, into in zip(received, z, strict=True):
                torch.sub(row[columns].to(dtype), ours, out=into)
            found += products(z).double().cpu().numpy()
        return found

    if not received:
        return np.zeros(shape)
    with one_thread():
        found = precise(torch.float32 if half else own.dtype)
        return found if np.isfinite(found).all() or own.dtype == torch.float64 else precise(torch.float64)


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread inside PyTorch, whose matrix products may add up in another order on several."""
    before = torch.get_num_threads()
    if before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)

"""The interface of aggregators: how a node combines its own model with those that it received.

An aggregator is a pure function of one receiver's inputs. Its attributes declare what it needs, so that unsuitable experiments are refused before anything
runs, and tell every host how to compute it:

    linear          the weighted average: every host computes it as one W @ X
    coordinatewise  each number follows from the same number of the inputs (see `Coordinatewise`): many receivers are computed at once
    by rows         it reads the inputs where they are (see `Rowwise`), for one receiver at a time
    neither         it is called with copies of the inputs, for one receiver at a time

Shapes: d numbers of a model, h models received, m = 1 + h inputs, the own one first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Heard:
    """What one receiver holds of one column after an exchange."""

    own: Tensor  # (d,)
    received: Tensor  # (h, d) by ascending sender
    senders: NDArray[np.int64]  # (h,)
    weights: NDArray[np.float64]  # (1 + h,) of the weighted average, the own one first
    ages: NDArray[np.int64]  # (h,) rounds between sending and aggregating; without rounds microseconds

    @property
    def inputs(self) -> Tensor:
        """The own model and the received ones, in a new tensor.   # (m, d)"""
        return torch.cat([self.own[None], self.received])

    def only(self, kept: NDArray[np.bool_]) -> Heard:
        """The same with some of the received models, if it has any; the weights of the others grow alike.   # (h,)"""
        received = self.received
        if len(received) == len(kept):
            received = received[torch.from_numpy(kept).to(received.device)]
        return Heard(self.own, received, self.senders[kept], weights_of(self.weights, kept), self.ages[kept])


def weights_of(weights: NDArray[np.float64], kept: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Weights of the own model and some of those received: equal ones as if no other had come.   # (1 + h,), (h,)"""
    found = weights[np.array([True, *kept])]
    if (found == found[0]).all():
        return np.full(len(found), 1 / len(found))
    return np.asarray(found / found.sum())


class Aggregator:
    """Base of the aggregators: derive from it, write `__call__`, and declare what it needs.

    Example:
        >>> class Nearest(ep.Aggregator):
        ...     fewest = 2
        ...     def __call__(self, heard):
        ...         distance = (heard.received - heard.own).norm(dim=1)
        ...         return (heard.own + heard.received[distance.argmin()]) / 2
    """

    __slots__ = ()

    linear: ClassVar[bool] = False
    """Whether it is the weighted average. It is then never called."""
    weighted: ClassVar[bool] = False
    """Whether it uses weights. One that does not needs mixing = "uniform", because other weights would have no effect."""
    coordinatewise: ClassVar[bool] = False
    """Whether it derives from `Coordinatewise`."""
    pairs: ClassVar[bool] = True
    """Whether it differs from the average for two models."""
    fewest: int = 1
    """Inputs that it needs, the own model included; a node that has fewer keeps its own."""

    def __call__(self, heard: Heard) -> Tensor:
        """Aggregate what one receiver holds, at least `fewest` inputs.   # -> (d,)

        The same inputs must give the same numbers on every host, so it must have no memory and draw nothing. Several threads may call it at once. It may overwrite
        `heard`, except `heard.own`.
        """
        raise NotImplementedError(f"{type(self).__name__} must have a method __call__(heard)")


class Coordinatewise(Aggregator):
    """An aggregator in which each number follows from the same number of the inputs, in any order.

    It gets many receivers, or a block of a long model, at once, so it may use nothing but the tensors that it gets.
    """

    __slots__ = ()

    coordinatewise: ClassVar[bool] = True

    def reduce(self, inputs: list[Tensor]) -> Tensor:
        """One tensor of several, number by number; it may overwrite them.   # m times (...) -> (...)"""
        raise NotImplementedError(f"{type(self).__name__} must have a method reduce(inputs)")

    def __call__(self, heard: Heard) -> Tensor:
        """The same of one receiver.   # -> (d,)"""
        return self.reduce(list(heard.inputs.unbind()))


class Rowwise(Aggregator):
    """An aggregator that reads its inputs where they are, a block of columns at a time, so that nobody has to copy them into one tensor."""

    __slots__ = ()

    def combine(self, own: Tensor, received: Sequence[Tensor], weights: NDArray[np.float64], out: Tensor) -> None:
        """Aggregate what one receiver holds, at least `fewest` inputs, into `out`. The inputs must stay as they are.   # (d,), h times (d,), (1 + h,) -> (d,)"""
        raise NotImplementedError(f"{type(self).__name__} must have a method combine(own, received, weights, out)")

    def __call__(self, heard: Heard) -> Tensor:
        """The same of one receiver.   # -> (d,)"""
        out = torch.empty_like(heard.own)
        rows = heard.received.reshape(len(heard.received), out.numel())
        self.combine(heard.own.reshape(-1), list(rows.unbind()), heard.weights, out.view(-1))
        return out


def total(parts: Sequence[Tensor]) -> Tensor:
    """The sum, added in this order, in the memory of the first.   # m times (...) -> (...)"""
    first, *rest = parts
    for part in rest:
        first.add_(part)
    return first

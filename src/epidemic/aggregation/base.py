"""The interface of aggregators: how a node combines its own model with those that it received.

An aggregator is a pure function of one receiver's inputs. Its attributes declare what it needs, so that unsuitable experiments are refused before anything
runs, and tell every host how to compute it:

    linear          the weighted average: every host computes it as one W @ X
    coordinatewise  each number follows from the same number of the inputs (see `Coordinatewise`): many receivers are computed at once
    neither         it is called for one receiver at a time

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


def total(parts: Sequence[Tensor]) -> Tensor:
    """The sum, added in this order, in the memory of the first.   # m times (...) -> (...)"""
    first, *rest = parts
    for part in rest:
        first.add_(part)
    return first

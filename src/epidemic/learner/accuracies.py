"""Accuracy: how the outputs of a model become guesses, found from their shape, the targets and the loss.

| targets | outputs of a sample | guess |
|---|---|---|
| labels, (b,) | one for each class, (classes,) | the largest output |
| labels of two classes, (b,) | one, () or (1,) | whether it is above the threshold |
| whole numbers, (b, ...) | of the same shape, all targets 0 or 1 | whether each is above the threshold |
| whole numbers, (b, ...) | with one axis more, the first or the last | the largest output along that axis, at each position |

Axes of length 1 are ignored. The threshold is 0 where the outputs are logits or signed scores and 1/2 where they are probabilities; the
loss tells which. Positions with a negative target (-100, which PyTorch's cross-entropy leaves out) are not counted.
Floats are quantities to predict, and have no accuracy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from epidemic.core.errors import BadInput
from epidemic.metrics import PerSample

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs, targets) -> the mean over the batch, a scalar."""

WITHOUT = "or give the targets as floats, for which no accuracy is recorded"


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """1 for each sample whose largest output is that of its class.   # (b, classes), (b,) -> (b,)"""
    return (outputs.argmax(-1) == targets).to(torch.float32)


@dataclass(frozen=True)
class Thresholded:
    """The share of a sample's targets, 0 or 1 each, that match the side of the threshold on which the output is."""

    threshold: float

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """One number for each sample.   # (b, ...), (b, ...) -> (b,)"""
        right = (outputs.reshape(targets.shape) > self.threshold) == (targets > 0.5)
        return right.to(torch.float32).reshape(len(targets), -1).mean(1)


@dataclass(frozen=True)
class PerPosition:
    """The share of a sample's positions whose largest output is that of their class."""

    shape: tuple[int, ...]
    """Of the outputs of a sample, without axes of length 1."""
    axis: int
    """Which of these axes is that of the classes."""

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """One number for each sample.   # (b, ...), (b, ...) -> (b,)"""
        guesses = outputs.reshape(len(outputs), *self.shape).argmax(1 + self.axis).reshape(len(targets), -1)
        wanted = targets.reshape(len(targets), -1)
        counted = wanted >= 0
        return ((guesses == wanted) & counted).sum(1).to(torch.float32) / counted.sum(1)

    def check(self, targets: Tensor) -> None:
        """Refuse samples of which no position counts: they have no accuracy."""
        empty = (targets.reshape(len(targets), -1) < 0).all(1).nonzero()
        if len(empty):
            raise BadInput(
                f"evaluated sample {int(empty[0])} has a negative target at every position, which is not counted; leave it out"
            )


def accuracy_measure(
    outputs: Tensor, targets: Tensor, span: tuple[int, int], classes: int, loss: Loss
) -> PerSample | None:
    """The accuracy measure of a model; None if the targets are quantities to predict.

    Args:
        outputs: The model's outputs for a few samples.   # (b, ...)
        targets: Their targets.   # (b, ...) integers
        span: The smallest and the largest target of all samples.
        classes: Number of classes of the labels; 0 if the targets are not labels.
        loss: The training loss.

    Raises:
        BadInput: The outputs do not determine which class is predicted.
    """
    if classes and outputs.dim() == 2 and outputs.shape[1] >= classes:
        return accuracy
    shape, positions = _without_ones(outputs), _without_ones(targets)
    shapes = f"outputs of shape {tuple(outputs.shape[1:])} for each sample"
    if len(outputs) == len(targets) and shape == positions:
        if classes > 2:
            raise BadInput(
                f"the accuracy cannot be told from {shapes} and {classes} classes; give one output for each class, {WITHOUT}"
            )
        return Thresholded(_threshold(outputs, targets, loss, shapes)) if classes or span in _BINARY else None
    axes = _class_axes(shape, positions, span[1]) if len(outputs) == len(targets) and not classes else []
    if len(axes) > 1:
        axes = _preferred(outputs, targets, shape, axes, loss)
        if not axes:
            raise BadInput(
                f"the accuracy cannot be told from {shapes} and targets of shape {tuple(targets.shape[1:])}: either axis could be"
                f" that of the classes; give an output for one class more, {WITHOUT}"
            )
    if axes:
        return PerPosition(shape, axes[0])
    if classes:
        raise BadInput(
            f"the accuracy cannot be told from {shapes} and {classes} classes; give one output for each class, {WITHOUT}"
        )
    return None


_BINARY = ((0, 1), (0, 0), (1, 1))


def _without_ones(values: Tensor) -> tuple[int, ...]:
    """The shape of one sample, without axes of length 1."""
    return tuple(size for size in values.shape[1:] if size != 1)


def _class_axes(shape: tuple[int, ...], positions: tuple[int, ...], largest: int) -> list[int]:
    """The axes of the outputs that could be that of the classes: the first or the last, if the others are the positions."""
    return [
        axis
        for axis in sorted({0, max(len(shape) - 1, 0)})
        if len(shape) == len(positions) + 1 and shape[:axis] + shape[axis + 1 :] == positions and shape[axis] > largest
    ]


def _threshold(outputs: Tensor, targets: Tensor, loss: Loss, shapes: str) -> float:
    """0 for logits and signed scores, 1/2 for probabilities, by what the loss prefers for targets of 0 and of 1."""

    def at(output: float, target: int) -> float:
        try:
            return float(loss(torch.full_like(outputs, output), torch.full_like(targets, target)))
        except Exception:  # a probability of -1, for instance
            return math.nan

    signed = [at(output, target) for output in (-1.0, 1.0) for target in (0, 1)]
    if all(map(math.isfinite, signed)) and at(-1.0, 0) < at(0.0, 0) and at(1.0, 1) < at(0.0, 1):
        return 0.0
    if at(0.1, 0) < at(0.9, 0) and at(0.9, 1) < at(0.1, 1):
        return 0.5
    raise BadInput(
        f"the accuracy cannot be told from {shapes}: the loss prefers no sign of an output for a target of 1, and no side of 1/2;"
        f" use one like binary_cross_entropy_with_logits, {WITHOUT}"
    )


def _preferred(outputs: Tensor, targets: Tensor, shape: tuple[int, ...], axes: list[int], loss: Loss) -> list[int]:
    """The axis along which the loss expects the class of a position; none if it makes no difference."""

    def guessed_along(axis: int) -> float:
        guesses = torch.zeros(len(outputs), *shape, dtype=outputs.dtype, device=outputs.device)
        guesses.select(1 + axis, 0).fill_(4.0)
        try:
            return float(loss(guesses.reshape(outputs.shape), torch.zeros_like(targets)))
        except Exception:
            return math.inf

    first, second = (guessed_along(axis) for axis in axes)
    return [] if first == second or math.isnan(first + second) else axes[:1] if first < second else axes[1:]

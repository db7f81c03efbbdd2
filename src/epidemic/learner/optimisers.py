"""Optimisers: what a gradient does to a model, for the rows of many nodes at once, in PyTorch's conventions.

An optimiser is a value. Its memory (velocity, moments, the number of steps) is passed to it and changed in place: it belongs to each node, is never sent,
and is saved with the run. `clip` limits the length of each node's gradient first.

The rows come in pieces, one for each tensor of the model or one for all of it. Shapes: k rows; ... the rest of a piece.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor

Memory = Mapping[str, Tensor]
"""The memory of an optimiser by name: shaped like the rows (k, d), or one number per row (k,)."""

Piece = tuple[Tensor, Memory, Tensor]
"""A part of the rows, the memory of that part, and its gradient.   # (k, ...), by name, (k, ...)"""

Rate = float | Tensor
"""The same for all rows, or one for each.   # (k,)"""

K = TypeVar("K")

TINY = 1e-6
"""Added to the length of a gradient before it is divided by, as PyTorch does it."""


class Optimiser(Protocol):
    """What the strategies ask of an optimiser."""

    @property
    def lr(self) -> Rate:
        """The learning rate: one number, or one for each row."""
        ...

    @property
    def remembers(self) -> tuple[str, ...]:
        """The names of the entries of its memory."""
        ...

    @property
    def by_tensor(self) -> bool:
        """Whether the pieces may be the tensors of the model one by one without a loss of speed or of digits."""
        ...

    def memory(self, x: Tensor) -> dict[str, Tensor]:
        """The memory before the first step.   # (k, d)"""
        ...

    def update(self, pieces: Sequence[Piece]) -> None:
        """Do one step: change the rows and the memory in place."""
        ...


@dataclass(frozen=True)
class SGDUpdate:
    """Stochastic gradient descent; with momentum the velocity is v = momentum * v + g, and Nesterov's looks ahead by g + momentum * v."""

    lr: Rate
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    clip: float = math.inf

    @property
    def remembers(self) -> tuple[str, ...]:
        """The velocity, if there is momentum."""
        return ("velocity",) if self.momentum else ()

    @property
    def by_tensor(self) -> bool:
        """Where the whole gradient's length is not asked for."""
        return self.clip == math.inf and not isinstance(self.lr, Tensor)

    def memory(self, x: Tensor) -> dict[str, Tensor]:
        """Return what new rows remember: a velocity of zeros, if there is momentum.   # x: (k, d)"""
        return {name: torch.zeros_like(x) for name in self.remembers}

    def update(self, pieces: Sequence[Piece]) -> None:
        """Do one step in place: x -= lr * v, where v is the velocity, or the gradient without momentum."""
        shrink = shrinking(self.clip, pieces)
        if shrink is None and not isinstance(self.lr, Tensor):
            self._update_together(pieces, self.lr)
            return
        for x, memory, gradient in pieces:
            if shrink is not None:
                gradient = gradient * _beside(shrink, x)
            if self.weight_decay:
                gradient = gradient.add(x, alpha=self.weight_decay)
            if self.momentum:
                velocity = _remembered(memory, "velocity")
                velocity.mul_(self.momentum).add_(gradient)
                gradient = gradient.add(velocity, alpha=self.momentum) if self.nesterov else velocity
            if isinstance(self.lr, Tensor):
                x.sub_(gradient * _beside(self.lr, x))
            else:
                x.add_(gradient, alpha=-self.lr)

    def _update_together(self, pieces: Sequence[Piece], lr: float) -> None:
        """The same arithmetic on all pieces by one call for each operation, which takes Python's lock once."""
        x, gradients = [piece[0] for piece in pieces], [piece[2] for piece in pieces]
        if self.weight_decay:
            gradients = list(torch._foreach_add(gradients, x, alpha=self.weight_decay))
        if self.momentum:
            velocities = [_remembered(memory, "velocity") for _, memory, _ in pieces]
            torch._foreach_mul_(velocities, self.momentum)
            torch._foreach_add_(velocities, gradients)
            gradients = (
                list(torch._foreach_add(gradients, velocities, alpha=self.momentum)) if self.nesterov else velocities
            )
        torch._foreach_add_(x, gradients, alpha=-lr)


@dataclass(frozen=True)
class AdamUpdate:
    """Adam (Kingma and Ba, 2015); `decoupled` weight decay makes it AdamW (Loshchilov and Hutter, 2019)."""

    lr: Rate
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = False
    clip: float = math.inf

    @property
    def remembers(self) -> tuple[str, ...]:
        """Two moments, and how many steps each row has made."""
        return "moment", "square", "steps"

    @property
    def by_tensor(self) -> bool:
        """Its many passes are faster over all tensors at once."""
        return False

    def memory(self, x: Tensor) -> dict[str, Tensor]:
        """Return what new rows remember: both moments at zero, and no steps taken.   # x: (k, d)"""
        steps = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        return {"moment": torch.zeros_like(x), "square": torch.zeros_like(x), "steps": steps}

    def update(self, pieces: Sequence[Piece]) -> None:
        """x -= lr * m / (sqrt(s) + epsilon), both moments freed of their start at zero."""
        shrink = shrinking(self.clip, pieces)
        steps = _remembered(pieces[0][1], "steps").add_(1)  # one for all pieces
        made = steps.cpu().double()
        first, second = self.betas
        pace = _wide(self.lr) / (1 - first**made)  # (k,)
        root = (1 - second**made).sqrt()  # (k,)
        for x, memory, gradient in pieces:
            if shrink is not None:
                gradient = gradient * _beside(shrink, x)
            if self.weight_decay and self.decoupled:
                x.mul_(_beside(1 - _wide(self.lr) * self.weight_decay * torch.ones_like(made), x))
            elif self.weight_decay:
                gradient = gradient.add(x, alpha=self.weight_decay)
            moment, square = _remembered(memory, "moment"), _remembered(memory, "square")
            moment.lerp_(gradient, 1 - first)
            square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
            length = square.sqrt().div_(_beside(root, x)).add_(self.epsilon)
            x.sub_(torch.div(moment, length, out=length).mul_(_beside(pace, x)))


def shrinking(clip: float, pieces: Sequence[Piece]) -> Tensor | None:
    """The factor by which the gradient of each row must shrink; None: no clipping.   # (k,)"""
    if clip == math.inf:
        return None
    squares = torch.stack([gradient.flatten(1).square().sum(1) for _, _, gradient in pieces])  # (pieces, k)
    return (clip / (squares.sum(0).sqrt() + TINY)).clamp(max=1.0)


def of_rows(step: Optimiser, rows: slice) -> Optimiser:
    """The same optimiser for some of the rows."""
    return with_rate(step, step.lr[rows]) if isinstance(step.lr, Tensor) else step


def with_rate(step: Optimiser, lr: Rate) -> Optimiser:
    """The same optimiser at another learning rate."""
    return dataclasses.replace(step, lr=lr)  # type: ignore[type-var]


def parts_of_memory(memory: Memory, rows: slice, view: Callable[[Tensor], dict[K, Tensor]]) -> dict[K, Memory]:
    """What is remembered of some rows, for each piece that `view` cuts rows into; a number for each row belongs to all pieces."""
    found: dict[K, dict[str, Tensor]] = {}
    numbers = {name: held[rows] for name, held in memory.items() if held.dim() == 1}
    for name, held in memory.items():
        if held.dim() > 1:
            for piece, part in view(held[rows]).items():
                found.setdefault(piece, dict(numbers))[name] = part
    return dict(found)


def _remembered(memory: Memory, name: str) -> Tensor:
    if name not in memory:
        raise ValueError(f"the optimiser has no {name}: pass what step.memory(x) returns, and keep it")
    return memory[name]


def _wide(rate: Rate) -> Rate:
    return rate.cpu().double() if isinstance(rate, Tensor) else rate


def _beside(numbers: Tensor, x: Tensor) -> Tensor:
    """A number for each row, so that it can be multiplied with the rows.   # (k,) -> (k, 1, ...)"""
    return numbers.to(x.device, x.dtype).view(-1, *[1] * (x.dim() - 1))

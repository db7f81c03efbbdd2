"""What a forward pass in training shows of a module: what the choice of a strategy is made from.

Nothing here traces or times anything, and a mode for functions (not for dispatch) spares the import of PyTorch's compiler,
which takes longer than everything else before the first round.
"""

from __future__ import annotations

import copy
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_CONVOLUTIONS = frozenset(f"conv{kind}{d}d" for kind in ("", "_transpose") for d in (1, 2, 3))

_ATTENTION = frozenset({"scaled_dot_product_attention", "multi_head_attention_forward"})


@dataclass(frozen=True)
class Nature:
    """What a module does during training, as far as it matters for the strategy."""

    random: bool
    """Whether it draws random numbers (dropout)."""
    changes_buffers: bool
    """Whether it changes its buffers (BatchNorm)."""
    convolved: int
    """Numbers per sample that the largest of its convolutions puts out; 0 without any."""
    products: int
    """Multiplications per sample in its convolutions; 0 without any."""
    outputs: int
    """Numbers that it puts out per sample."""
    any_layout: bool = True
    """It takes pictures whose channels lie side by side; `x.view(n, -1)` after a convolution does not."""
    random_evaluated: bool = False
    """It draws random numbers when it is evaluated, too."""
    unseen: bool = False
    """It asks Python or NumPy for random numbers, which no tensor shows: it must be called anew for every batch."""
    recurrent: bool = False
    """It has recurrent layers, for which PyTorch has operations of its own that are faster than their steps one by one."""
    attention: bool = False
    """It has attention, for which there is a fast operation that vmap does not take."""


def nature_of(module: nn.Module, inputs: Tensor) -> Nature:
    """Run a copy of the module on these inputs (a batch) and look."""
    trained = copy.deepcopy(module).train()
    before = {n: b.clone() for n, b in trained.named_buffers()}
    state, others = torch.get_rng_state(), _other_generators()
    try:
        with torch.no_grad(), _Operations() as seen:
            outputs = trained(inputs.clone())
        between = torch.get_rng_state()
        with torch.no_grad():
            copy.deepcopy(trained).eval()(inputs.clone())
        random_evaluated = not torch.equal(between, torch.get_rng_state())
        draws = random_evaluated or not torch.equal(state, between)
    finally:
        torch.set_rng_state(state)
    changed = any(not torch.equal(b, before[n]) for n, b in trained.named_buffers())
    numbers = outputs.numel() if isinstance(outputs, Tensor) else 0
    convolved, products, out = (n // len(inputs) for n in (seen.largest, seen.products, numbers))
    layouts, unseen = _takes_any_layout(trained, inputs), _other_generators() != others
    recurrent = any(isinstance(part, nn.RNNBase) for part in module.modules())
    return Nature(
        draws, changed, convolved, products, out, layouts, random_evaluated, unseen, recurrent, seen.attention
    )


def _other_generators() -> tuple[Any, ...]:
    """Where Python's and NumPy's generators stand."""
    found: Any = np.random.get_state(legacy=True)  # noqa: NPY002 - a user's model may draw from it
    kind, keys, *rest = found
    return random.getstate(), kind, keys.tobytes(), *rest


def channels_together(x: Tensor) -> Tensor:
    """The same pictures, with the channels of a pixel side by side: convolutions and pooling are faster then on CPUs.   # (n, c, h, w)"""
    if x.shape[1] > 1:
        return x.contiguous(memory_format=torch.channels_last)
    height, width = x.shape[2:]  # PyTorch takes pictures of one channel for either, unless their strides say so
    return x.contiguous().as_strided(x.shape, (height * width, 1, width, 1))


def _takes_any_layout(module: nn.Module, inputs: Tensor) -> bool:
    if inputs.dim() != 4:
        return True
    state = torch.get_rng_state()
    try:
        with torch.no_grad():
            copy.deepcopy(module).eval()(channels_together(inputs))
    except RuntimeError:
        return False
    finally:
        torch.set_rng_state(state)
    return True


class Watched(TorchFunctionMode, ABC):
    """Intercepts every PyTorch function called inside."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Called by PyTorch in place of the function."""
        found = func(*args, **(kwargs or {}))
        self.saw(getattr(func, "__name__", ""), args, kwargs or {}, found)
        return found

    @abstractmethod
    def saw(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], found: Any) -> None:
        """A function of this name was called with these arguments, and gave what was found."""


class _Operations(Watched):
    """Counts the convolutions, called as modules or as functions, and notices attention."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = self.products = 0
        self.attention = False

    def saw(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], found: Any) -> None:
        self.attention = self.attention or name in _ATTENTION
        if name in _CONVOLUTIONS:
            given = {**dict(zip(("input", "weight"), args, strict=False)), **kwargs}
            weight, narrow = given["weight"], given["input"] if "transpose" in name else found
            self.largest = max(self.largest, found.numel())
            self.products += narrow.numel() * weight.numel() // weight.shape[0]

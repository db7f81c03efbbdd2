"""What a script hands to its node: tensors that travel, and frozen ones that must be the same everywhere.

Attached tensors are one row of numbers for everything else: the message, the aggregate, the checkpoint. Trainable parameters come first, then
float buffers. Rows of half-precision tensors are in single precision, so that averages are not rounded at every step; the messages are in the type of
the tensors.

Shapes: d numbers of a row.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Literal

import torch
from blake3 import blake3
from torch import Tensor, nn

from epidemic.compression import BFloat16, Codec, Float16
from epidemic.core.errors import BadInput, require_choice, suggestion
from epidemic.learner import Layout
from epidemic.learner.rows import RowTensor

HALF: dict[torch.dtype, Codec] = {torch.bfloat16: BFloat16(), torch.float16: Float16()}
"""Types that travel as they are, although rows are in single precision."""
LORA = {"A": re.compile(r"(^|\.)lora_a(\.|$)", re.IGNORECASE), "B": re.compile(r"(^|\.)lora_b(\.|$)", re.IGNORECASE)}
"""What names of the two factors of an adapter look like."""
MOST_TOLD = 256
"""Tensors whose shapes are told to others one by one; the rest is told as a digest."""

Names = str | Sequence[str] | None


class AttachedLayout(Layout):
    """Where each attached tensor lies in a row."""

    def __init__(self, tensors: Mapping[str, Tensor], buffers: frozenset[str], dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.entries = []
        start = 0
        for name, tensor in tensors.items():
            stop = start + tensor.numel()
            self.entries.append(RowTensor(name, tensor.shape, start, stop, name not in buffers))
            start = stop
        self.size = start
        self.trainable = sum(e.stop - e.start for e in self.entries if e.trainable)
        self.aliases: dict[str, str] = {}
        self.constants: dict[str, Tensor] = {}
        self.transient: set[str] = set()


class Attached:
    """The tensors of a script that travel, read and written in place."""

    def __init__(
        self, tensors: Mapping[str, Tensor], frozen: Mapping[str, Tensor], buffers: frozenset[str] = frozenset()
    ) -> None:
        """Prepare them.

        Args:
            tensors: Those that travel, by name; the caller's own.
            frozen: Those that stay and must be the same on all nodes.
            buffers: Which of those that travel are not trained.
        """
        self.tensors = dict(tensors)
        self.layout = AttachedLayout(self.tensors, buffers, _row_type(self.tensors))
        self._frozen = frozen

    @staticmethod
    def of(
        what: nn.Module | Mapping[str, Tensor], names: Names = None, freeze_lora: Literal["A", "B"] | None = None
    ) -> Attached:
        """What travels of a model, or of a dict of tensors.

        Args:
            what: A model, whose trainable parameters and float buffers travel; or tensors by name, all of which do.
            names: Patterns such as "*lora*"; what no pattern matches stays private.
            freeze_lora: The factor of adapters that is frozen from now on, "A" or "B".
        """
        if freeze_lora is not None:
            _freeze(what, freeze_lora)
        wanted = [names] if isinstance(names, str) else names
        if isinstance(what, nn.Module):
            if any(isinstance(p, nn.UninitializedParameter) for p in what.parameters()):
                raise BadInput("attach: the model has lazy parameters without a shape; run a batch through it before")
            tensors = {n: p.detach() for n, p in what.named_parameters() if p.requires_grad}
            buffers = {n: b.detach() for n, b in what.named_buffers() if b.is_floating_point()}
            frozen = {n: p.detach() for n, p in what.named_parameters() if not p.requires_grad}
        elif isinstance(what, Mapping) and what and all(isinstance(t, Tensor) for t in what.values()):
            tensors, buffers, frozen = {n: t.detach() for n, t in what.items()}, {}, {}
        else:
            raise BadInput(
                f"attach: {type(what).__name__} must be a torch.nn.Module or a dict of tensors that is not empty"
            )
        found = _chosen({**tensors, **buffers}, wanted)
        for name, tensor in found.items():
            if not tensor.is_floating_point() or tensor.layout is not torch.strided:
                raise BadInput(
                    f"attach: {name} is {str(tensor.dtype).removeprefix('torch.')}, {tensor.layout};"
                    " only dense tensors of float numbers can be averaged: leave it out by names=..."
                )
        return Attached(found, frozen, frozenset(buffers))

    @property
    def codec(self) -> Codec | None:
        """How messages have the type of the tensors, where rows have another; None: as rows are."""
        types = {tensor.dtype for tensor in self.tensors.values()}
        return HALF.get(types.pop()) if len(types) == 1 else None

    @property
    def both_factors(self) -> bool:
        """Whether both factors of adapters travel, whose averages are not the factors of the average."""
        return all(any(LORA[side].search(name) for name in self.tensors) for side in "AB")

    @property
    def terms(self) -> dict[str, str]:
        """What all nodes must have in common, by dotted keys: shapes and types of what travels, and a digest of what is frozen."""
        told = {
            f"attached.{name}": f"{_said(tensor.dtype)} {list(tensor.shape)}" for name, tensor in self.tensors.items()
        }
        kept = dict(list(told.items())[:MOST_TOLD])
        if len(told) > MOST_TOLD:
            rest = blake3()
            for name in list(told)[MOST_TOLD:]:
                rest.update(f"{name}\0{told[name]}\0".encode())
            kept["attached-rest"] = f"{len(told) - MOST_TOLD} tensors, {rest.hexdigest(8)}"
        if self._frozen:
            kept["frozen-base"] = f"{len(self._frozen)} tensors, {digest(self._frozen.items())}"
        return kept

    @property
    def values(self) -> str:
        """A digest of the numbers that travel."""
        return digest(self.tensors.items())

    def problem(self, largest: float) -> str | None:
        """Why the numbers cannot be sent: the first that is not finite, or larger than others take."""
        for name, tensor in self.tensors.items():
            if tensor.numel() == 0:
                continue
            low, high = (float(value) for value in tensor.aminmax())
            if not (-largest <= low and high <= largest):  # also where one is not a number
                return f"{name} has numbers from {low:g} to {high:g}, and others take none beyond network.largest = {largest:g}"
        return None

    def read(self, row: Tensor) -> None:
        """Copy the tensors into a row.   # (d,)"""
        for name, view in self.layout.views(row).items():
            view.copy_(self.tensors[name])

    def write(self, row: Tensor) -> None:
        """Copy a row into the tensors, in place.   # (d,)"""
        with torch.no_grad():
            for name, view in self.layout.views(row).items():
                self.tensors[name].copy_(view)

    def __str__(self) -> str:
        types = sorted({_said(tensor.dtype) for tensor in self.tensors.values()})
        sent = types[0] if len(types) == 1 else _said(self.layout.dtype)
        width = torch.empty((), dtype=getattr(torch, sent)).element_size()
        mixed = f" (they are {' and '.join(types)})" if len(types) > 1 else ""
        many = f"{len(self.tensors)} tensor{'s' * (len(self.tensors) != 1)}"
        return f"{many}, {self.layout.size:,} numbers, as {sent}{mixed}: {self.layout.size * width:,} bytes a message"


def digest(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """16 hex digits of names, shapes, types and numbers."""
    found = blake3()
    for name, tensor in tensors:
        found.update(f"{name}\0{tuple(tensor.shape)}\0{tensor.dtype}\0".encode())
        plain = tensor.detach().cpu().contiguous().reshape(-1)
        if plain.numel():
            found.update(plain.view(torch.uint8).numpy().data)
    return found.hexdigest(8)


def _said(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _row_type(tensors: Mapping[str, Tensor]) -> torch.dtype:
    types = {tensor.dtype for tensor in tensors.values()}
    return torch.float64 if torch.float64 in types else torch.float32


def _freeze(what: nn.Module | Mapping[str, Tensor], side: str) -> None:
    """Freeze one factor of all adapters of a model."""
    require_choice("freeze_lora", side, LORA)
    if not isinstance(what, nn.Module):
        raise BadInput(f'freeze_lora = "{side}" is for a model; leave that factor out of the dict')
    found = [parameter for name, parameter in what.named_parameters() if LORA[side].search(name)]
    if not found:
        raise BadInput(
            f'freeze_lora = "{side}": no parameter has a name with lora_{side} in it; leave it out, or set requires_grad'
            " yourself"
        )
    for parameter in found:
        parameter.requires_grad_(False)


def _chosen(tensors: Mapping[str, Tensor], wanted: Sequence[str] | None) -> dict[str, Tensor]:
    """Those that a pattern matches; all of them without patterns."""
    if not tensors:
        raise BadInput("attach: the model has no trainable parameters and no float buffers; nothing could travel")
    if wanted is None:
        return dict(tensors)
    for pattern in wanted:
        if not any(fnmatchcase(name, pattern) for name in tensors):
            raise BadInput(
                f"attach: names = {pattern!r} matches no tensor{suggestion(pattern.strip('*'), list(tensors)[:50])}"
            )
    return {name: tensor for name, tensor in tensors.items() if any(fnmatchcase(name, one) for one in wanted)}

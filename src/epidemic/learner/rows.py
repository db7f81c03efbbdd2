"""Rows: where each tensor of a module lies in a flat row of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from epidemic.core.errors import BadInput


@dataclass(frozen=True)
class RowTensor:
    """One tensor of the model within a row."""

    name: str
    shape: torch.Size
    start: int
    stop: int
    trainable: bool


class Layout:
    """Where each tensor of a module lies in a row."""

    def __init__(self, module: nn.Module) -> None:
        if any(isinstance(p, nn.UninitializedParameter) for p in module.parameters()):
            raise BadInput(
                "the model has lazy parameters without a shape; run a batch through it before handing it over"
            )
        trainable = [(n, p) for n, p in module.named_parameters() if p.requires_grad]
        buffers = [(n, b) for n, b in module.named_buffers() if b.is_floating_point()]
        if not trainable:
            raise BadInput("the model has no trainable parameters")
        types = {t.dtype for _, t in trainable + buffers}
        if len(types) > 1:
            raise BadInput(f"the model mixes {', '.join(sorted(map(str, types)))}; all parameters must be of one type")
        self.dtype = types.pop()
        self.entries: list[RowTensor] = []
        start = 0
        for i, (name, tensor) in enumerate([*trainable, *buffers]):
            stop = start + tensor.numel()
            self.entries.append(RowTensor(name, tensor.shape, start, stop, i < len(trainable)))
            start = stop
        self.size = start
        self.trainable = sum(e.stop - e.start for e in self.entries if e.trainable)
        first = {id(t): n for n, t in [*trainable, *buffers]}
        every = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
        self.aliases = {n: first[id(t)] for n, t in every if id(t) in first and first[id(t)] != n}  # tied parameters
        saved = module.state_dict()
        inside = {e.name for e in self.entries} | set(self.aliases)
        self.constants = {n: t.detach().clone() for n, t in saved.items() if n not in inside}
        self.transient = {e.name for e in self.entries if e.name not in saved}  # buffers that are not to be saved

    def row(self, module: nn.Module) -> Tensor:
        """The module's numbers as a row.   # (d,)"""
        tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        return torch.cat([tensors[e.name].detach().flatten() for e in self.entries])

    def views(self, rows: Tensor, *, trainable: bool | None = None) -> dict[str, Tensor]:
        """Named views into (..., d) rows; all of them, or only the trainable ones or the buffers."""
        lead = rows.shape[:-1]
        chosen = [e for e in self.entries if trainable is None or e.trainable == trainable]
        return {e.name: rows[..., e.start : e.stop].view((*lead, *e.shape)) for e in chosen}

    def joined(self, tensors: Sequence[Tensor], out: Tensor) -> Tensor:
        """The trainable tensors, one for each entry, side by side in `out`.   # (trainable,)"""
        torch._foreach_copy_([out[e.start : e.stop].view(e.shape) for e in self.entries if e.trainable], list(tensors))
        return out

    def state_dict(self, row: Tensor) -> dict[str, Tensor]:
        """Return a row as the state dict that `module.load_state_dict` takes.   # row: (d,)"""
        named = {n: t.clone() for n, t in self.views(row).items()}
        tied = {alias: named[name] for alias, name in self.aliases.items()}
        return {**self.constants, **{n: t for n, t in named.items() if n not in self.transient}, **tied}

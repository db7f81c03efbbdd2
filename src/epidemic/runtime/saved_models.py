"""The models of a finished run: written, read back as the rows that they were, and one of them as plain PyTorch loads it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import safetensors
import torch
from torch import Tensor, nn

from epidemic.core.errors import BadInput, argument
from epidemic.learner import Layout
from epidemic.runtime.ranks import Alone, Ranks
from epidemic.runtime.tensor_files import Fed, Head, write_tensors


class _ModelFile(msgspec.Struct):
    """What the metadata of a file of models says."""

    nodes: int
    constants: list[str]  # tensors that all nodes have in common
    aliases: dict[str, str]  # further names of a tensor (tied parameters)


def save_models(path: Path | None, layout: Layout, x: Tensor, ranks: Ranks | None = None) -> None:
    """All nodes' models: each tensor of the model with a leading axis of nodes, and what all have in common.

    `path` is None on ranks that hand over their rows to the one that writes.
    """
    ranks = Alone(len(x)) if ranks is None else ranks
    n = ranks.height(x)
    saved = [entry for entry in layout.entries if entry.name not in layout.transient]
    rows = {
        entry.name: Fed(Head(x.dtype, (n, *entry.shape)), partial(ranks.streamed, x[:, entry.start : entry.stop]))
        for entry in saved
    }
    about = msgspec.json.encode(_ModelFile(n, list(layout.constants), layout.aliases)).decode()
    write_tensors(path, layout.constants, rows, lambda _: {"epidemic": about}, together=ranks.together)


@dataclass(frozen=True, eq=False)
class SavedModels:
    """Models as a file holds them, read without the module that they are of."""

    rows: dict[str, Tensor]  # (n, ...) each tensor of the model, with a leading axis of nodes
    constants: dict[str, Tensor]  # tensors that all nodes have in common
    aliases: dict[str, str]

    @property
    def flat(self) -> Tensor:
        """All numbers that differ between nodes, a row for each.   # (n, d)"""
        return torch.cat([rows.flatten(1) for rows in self.rows.values()], dim=1)

    def write(self, path: Path) -> None:
        """Write them as `save_models` does."""
        nodes = len(next(iter(self.rows.values())))
        about = msgspec.json.encode(_ModelFile(nodes, list(self.constants), self.aliases)).decode()
        write_tensors(path, {**self.constants, **self.rows}, {}, lambda _: {"epidemic": about})


def read_models(path: Path) -> SavedModels:
    """The models in a file that `save_models` wrote."""
    try:
        with safetensors.safe_open(path, "pt") as file:
            about = msgspec.json.decode((file.metadata() or {})["epidemic"], type=_ModelFile)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise BadInput(f"{path} is missing; copy the run again") from None
    except (OSError, safetensors.SafetensorError, msgspec.DecodeError, KeyError) as problem:
        raise BadInput(f"{path} is damaged ({problem}); copy the run again") from None
    rows = {name: tensor for name, tensor in tensors.items() if name not in about.constants}
    if not rows or any(tensor.shape[:1] != (about.nodes,) for tensor in rows.values()):
        raise BadInput(f"{path} is damaged (it does not hold the models of {about.nodes} nodes); copy the run again")
    return SavedModels(rows, {name: tensors[name] for name in about.constants if name in tensors}, about.aliases)


def join_models(parts: Sequence[tuple[Path, SavedModels]]) -> SavedModels:
    """The models of several files as those of one; each comes with the path that a message names."""
    (first, known), *others = parts
    for path, other in others:
        for what in ("rows", "constants"):
            a, b = (
                {name: (tuple(t.shape[what == "rows" :]), t.dtype) for name, t in getattr(one, what).items()}
                for one in (known, other)
            )
            if a != b:
                name = min(key for key in {*a, *b} if a.get(key) != b.get(key))
                raise BadInput(f"{path} holds another model than {first} (in {name}); gather nodes of one run")
    rows = {name: torch.cat([one.rows[name] for _, one in parts]) for name in known.rows}
    return SavedModels(rows, known.constants, known.aliases)


def given_the_average(x: Tensor, live: Tensor) -> Tensor:
    """The models, with the average of the live ones in place of all others; so it is also the average of all.   # (n, d), (n,)"""
    x = x.clone()
    x[~live] = x[live].double().mean(0).to(x.dtype)
    return x


def load_models(run: Path, module: nn.Module) -> tuple[Layout, Tensor]:
    """All nodes' final models from the directory of a seed; `module` is of the same kind and says how rows are laid out.

    Buffers that a module does not save have the values that they have in `module`.

    Returns:
        The layout, and the rows.   # (n, d)
    """
    path, layout = run / "models.safetensors", Layout(module)
    saved = [entry.name for entry in layout.entries if entry.name not in layout.transient]
    try:
        with safetensors.safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in saved}
            layout.constants = {name: file.get_tensor(name).clone() for name in layout.constants}
        rows = layout.row(module).repeat(len(tensors[saved[0]]), 1)
        views = layout.views(rows)
        for name, tensor in tensors.items():
            views[name].copy_(tensor)
    except FileNotFoundError:
        raise BadInput(f"{path} is missing; delete {run} to run this seed again") from None
    except (safetensors.SafetensorError, RuntimeError) as problem:
        reason = " ".join(str(problem).split())
        raise BadInput(
            f"{path} is damaged or of another model ({reason}); delete {run} to run this seed again"
        ) from None
    return layout, rows


def export_model(run: Path, node: int | None) -> dict[str, Tensor]:
    """The state dict of one node's final model, or (None) of the average of all."""
    path = run / "models.safetensors"
    if not path.is_file():
        raise BadInput(
            f"{run} has no models.safetensors: it is not the directory of a finished seed, for example DIR/seed-1"
        )
    state: dict[str, Tensor] = {}
    try:
        with safetensors.safe_open(path, "pt") as file:
            about = msgspec.json.decode((file.metadata() or {})["epidemic"], type=_ModelFile)
            if node is not None and not 0 <= node < about.nodes:
                raise BadInput(f"{argument('node')} {node} does not exist; the nodes are 0 to {about.nodes - 1}")
            for key in file.keys():  # noqa: SIM118
                if key in about.constants:
                    state[key] = file.get_tensor(key)
                elif node is not None:
                    state[key] = file.get_slice(key)[node : node + 1][0].clone()
                else:
                    rows = file.get_tensor(key)
                    state[key] = rows.double().mean(0).to(rows.dtype)
    except (safetensors.SafetensorError, msgspec.DecodeError, KeyError) as problem:
        raise BadInput(f"{path} is damaged ({problem})") from None
    return {**state, **{alias: state[name].clone() for alias, name in about.aliases.items()}}

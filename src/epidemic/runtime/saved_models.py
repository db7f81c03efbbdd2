"""The models of a finished run: saving, loading as rows, and exporting one for plain PyTorch."""

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
    """The metadata of a file of models."""

    nodes: int
    constants: list[str]  # tensors shared by all nodes
    aliases: dict[str, str]  # further names of a tensor (tied parameters)


def save_models(path: Path | None, layout: Layout, x: Tensor, ranks: Ranks | None = None) -> None:
    """Write all nodes' models: each tensor of the model with a leading axis of nodes, and the shared tensors.

    `path` is None on ranks that send their rows to the one that writes.
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
    """Models as a file holds them, read without their module."""

    rows: dict[str, Tensor]  # (n, ...) each tensor of the model, with a leading axis of nodes
    constants: dict[str, Tensor]  # tensors shared by all nodes
    aliases: dict[str, str]

    @property
    def flat(self) -> Tensor:
        """All numbers that differ between nodes, one row per node.   # (n, d)"""
        return torch.cat([rows.flatten(1) for rows in self.rows.values()], dim=1)

    def write(self, path: Path) -> None:
        """Write them in the format of `save_models`."""
        nodes = len(next(iter(self.rows.values())))
        about = msgspec.json.encode(_ModelFile(nodes, list(self.constants), self.aliases)).decode()
        write_tensors(path, {**self.constants, **self.rows}, {}, lambda _: {"epidemic": about})


def read_models(path: Path) -> SavedModels:
    """Read a file written by `save_models`."""
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
    """Join the models of several files; each comes with its path, for messages."""
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
    """The models, with those of nodes that are not live replaced by the average of the live ones; this keeps the average.   # (n, d), (n,)"""
    x = x.clone()
    x[~live] = x[live].double().mean(0).to(x.dtype)
    return x


def load_models(run: Path, module: nn.Module) -> tuple[Layout, Tensor]:
    """All nodes' final models from the directory of a seed; `module` is of the same kind and determines the layout of rows.

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
    """The state dict of one node's final model, or (None) of the average."""
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

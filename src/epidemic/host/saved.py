"""The models of a finished run: written, read back as the rows that they were, and one of them as plain PyTorch loads it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import msgspec
import safetensors
from torch import Tensor, nn

from epidemic.errors import BadInput, argument
from epidemic.host.pieces import Fed, Head, write_tensors
from epidemic.host.ranks import Alone, Ranks
from epidemic.learner import Layout


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

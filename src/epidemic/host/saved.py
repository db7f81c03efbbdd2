"""The models of a finished run, read back as the rows that they were."""

from __future__ import annotations

from pathlib import Path

import safetensors
from torch import Tensor, nn

from epidemic.errors import BadInput
from epidemic.learner import Layout


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

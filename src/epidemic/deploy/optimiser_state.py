"""The state of a PyTorch optimiser as named tensors, which a checkpoint can hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from epidemic.core.errors import BadInput


def state_of(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """What an optimiser remembers of each parameter, as "3.exp_avg"; numbers become tensors, and what is None is left out."""
    found: dict[str, Tensor] = {}
    for i, remembered in optimiser.state_dict()["state"].items():
        for name, value in remembered.items():
            if isinstance(value, Tensor):
                found[f"{i}.{name}"] = value
            elif isinstance(value, int | float):
                found[f"{i}.{name}"] = torch.tensor(value)
            elif value is not None:
                raise BadInput(
                    f"keep: the optimiser remembers {name} as {type(value).__name__}; only tensors are kept, so put what you"
                    " need into node.extra yourself"
                )
    return found


def give_state(optimiser: torch.optim.Optimizer, saved: Mapping[str, Tensor]) -> None:
    """Give an optimiser what was saved of it; nothing is changed if nothing was."""
    if not saved:
        return
    state: dict[int, dict[str, Any]] = {}
    for key, value in saved.items():
        i, _, name = key.partition(".")
        state.setdefault(int(i), {})[name] = value
    groups = optimiser.state_dict()["param_groups"]
    if max(state) >= sum(len(group["params"]) for group in groups):
        raise BadInput("keep: the saved state is of an optimiser with more parameters; start with the one of before")
    optimiser.load_state_dict({"state": state, "param_groups": groups})

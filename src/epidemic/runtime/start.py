"""The start of a deployed run besides its experiment: its number among the runs of a cluster, and given weights.

`epidemic cluster next` writes both into a node's folder:

    start.json             the number of the run (2: the first after that of 'cluster init'), and the digest of its weights, if any
    weights.safetensors    the initial weights of all nodes

Nodes must agree on both. The number keeps messages of an earlier run with the same keys out of this one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import safetensors
import torch
from torch import Tensor, nn

from epidemic.core.errors import BadInput
from epidemic.core.files import UNREADABLE, read_bounded

START, WEIGHTS = "start.json", "weights.safetensors"
MOST_RUNS = 1_000_000


class Start(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The start of a deployed run, as in start.json: its number in the cluster, and the digest of its weights."""

    run: int
    """The number of the run, which distinguishes it from earlier ones with the same keys."""
    weights: str = ""
    """SHA-256 of weights.safetensors; empty: weights are drawn from the seed."""

    @property
    def agreement(self) -> dict[str, int | str]:
        """What nodes compare, by dotted keys."""
        return {"start.run": self.run} | ({"start.weights": self.weights[:16]} if self.weights else {})


@dataclass(frozen=True, eq=False)
class StartWeights:
    """The weights of a model, as plain PyTorch saves them."""

    path: Path
    tensors: Mapping[str, Tensor]

    @staticmethod
    def read(path: Path) -> StartWeights:
        """Read a safetensors file, for example one of `epidemic export`. Raises BadInput if its numbers are not finite."""
        if not path.is_file():
            raise BadInput(
                f"{path} {'is not a file' if path.exists() else 'does not exist'}; give a safetensors file, for example"
                " the mean model that 'epidemic export' writes"
            )
        try:
            with safetensors.safe_open(path, "pt") as file:
                if "epidemic" in (file.metadata() or {}):
                    raise BadInput(
                        f"{path} holds the models of all nodes; give the mean model that 'epidemic export' writes"
                    )
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (OSError, safetensors.SafetensorError) as problem:
            raise BadInput(f"{path} is not a whole safetensors file ({problem}); export or copy it again") from None
        for name, tensor in tensors.items():
            if not bool(torch.isfinite(tensor).all()):
                raise BadInput(f"{path}: {name} has numbers that are not finite; start from another model")
        return StartWeights(path, tensors)

    @property
    def digest(self) -> str:
        """SHA-256 of the file, as `sha256sum` prints it."""
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def put(self, module: nn.Module, largest: float) -> None:
        """Load these weights into a module. Raises BadInput if they are of another model, or larger than peers would accept."""
        wanted = module.state_dict()
        for name in sorted({*wanted, *self.tensors}):
            if name not in self.tensors:
                raise BadInput(f"{self.path} is of another model: it has no {name}, which the experiment's model has")
            if name not in wanted:
                raise BadInput(f"{self.path} is of another model: it has {name}, which the experiment's model has not")
            given, own = (
                f"{tuple(one.shape)} {str(one.dtype).removeprefix('torch.')}"
                for one in (self.tensors[name], wanted[name])
            )
            if given != own:
                raise BadInput(
                    f"{self.path} is of another model: {name} is {given}, and {own} in the experiment's model"
                )
            if wanted[name].is_floating_point() and bool((self.tensors[name].abs() > largest).any()):
                raise BadInput(
                    f"{self.path}: {name} has numbers beyond network.largest = {largest:g}, which nodes refuse; raise it for all nodes"
                )
        module.load_state_dict(dict(self.tensors))


def read_start(folder: Path) -> tuple[Start | None, StartWeights | None]:
    """The start of the run in a node's folder; (None, None) for the first run of a cluster."""
    path, weights = folder / START, folder / WEIGHTS
    try:
        start = msgspec.json.decode(read_bounded(path), type=Start)
        if not 2 <= start.run <= MOST_RUNS:
            raise ValueError(f"run = {start.run} must be 2 to {MOST_RUNS}")
    except FileNotFoundError:
        if weights.exists():
            raise BadInput(
                f"{folder} has {WEIGHTS} but no {START}; make it again with 'epidemic cluster next'"
            ) from None
        return None, None
    except UNREADABLE as problem:
        raise BadInput(
            f"{path} cannot be read ({problem}); make the folder again with 'epidemic cluster next'"
        ) from None
    if not start.weights:
        return start, None
    found = StartWeights.read(weights)
    if found.digest != start.weights:
        raise BadInput(
            f"{weights} is another file than the one that this run was made with; make the folder again with 'epidemic cluster next'"
        )
    return start, found

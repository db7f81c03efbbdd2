"""The checkpoint of a run: the state's tensors, where the run stands, and a digest of all of it.

A finished run keeps its last one, so that it can go on with more rounds. What the file of its models holds already is left out of
it then, and taken from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import safetensors
import safetensors.torch
import torch
from blake3 import blake3
from torch import Tensor

from epidemic.errors import BadInput
from epidemic.files import write_whole
from epidemic.learner import Layout

CHECKPOINT, MODELS = "checkpoint.safetensors", "models.safetensors"


class Progress(msgspec.Struct, kw_only=True):
    """Where a run stands: goes into the checkpoint beside the tensors."""

    round: int  # rounds done
    recorded: int  # the last round that has a record; -1: none
    records_bytes: int = 0
    timings_bytes: int = 0
    tallies: dict[str, int] = {}  # what a deployed node has counted, besides bytes


Found = tuple[Progress, dict[str, Tensor]]


def write_checkpoint(path: Path, progress: Progress, tensors: dict[str, Tensor]) -> None:
    """Write it to a seed's directory; what was saved before is replaced only when the new one is whole."""
    said = msgspec.json.encode(progress).decode()
    plain: dict[str, Tensor] = {}
    for key, value in tensors.items():  # one tensor under two names is saved twice
        rows = value.detach().cpu().contiguous()
        shared = any(
            rows.untyped_storage().data_ptr() == other.untyped_storage().data_ptr() for other in plain.values()
        )
        plain[key] = rows.clone() if shared else rows
    _write(path, plain, {"progress": said, "digest": _digest(said, plain)})


def thin_checkpoint(path: Path, rounds: int, models: Sequence[str]) -> None:
    """Leave those tensors out that are the models of a run which has finished after so many rounds."""
    with safetensors.safe_open(path / CHECKPOINT, "pt") as file:
        said = file.metadata()
        if not models or msgspec.json.decode(said["progress"], type=Progress).round != rounds:
            return
        rest = {key: file.get_tensor(key).clone() for key in file.keys() if key not in models}  # noqa: SIM118
    _write(path, rest, {**said, "models": " ".join(models)})


def read_checkpoint(path: Path, layout: Layout) -> Found | None:
    """That of a seed's directory, checked; None if there is none."""
    file_path = path / CHECKPOINT
    if not file_path.is_file():
        return None
    try:
        with safetensors.safe_open(file_path, "pt") as file:
            said = file.metadata()
            progress = msgspec.json.decode(said["progress"], type=Progress)
            tensors = {key: file.get_tensor(key).clone() for key in file.keys()}  # noqa: SIM118
        for name in said.get("models", "").split():
            tensors[name] = _models(path / MODELS, layout)
        if _digest(said["progress"], tensors) != said["digest"]:
            raise ValueError("its digest is another one")
    except (
        OSError,
        safetensors.SafetensorError,
        msgspec.DecodeError,
        KeyError,
        TypeError,
        ValueError,
        RuntimeError,
    ) as problem:
        raise BadInput(f"{file_path} is damaged ({problem}); delete {path} to start this seed again") from None
    return progress, tensors


def _models(path: Path, layout: Layout) -> Tensor:
    """The models of a finished run as rows.   # (n, d)"""
    with safetensors.safe_open(path, "pt") as file:
        first = file.get_tensor(layout.entries[0].name)
        rows = torch.empty(len(first), layout.size, dtype=layout.dtype)
        for name, view in layout.views(rows).items():
            view.copy_(file.get_tensor(name))
    return rows


def _write(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    write_whole(path / CHECKPOINT, lambda part: safetensors.torch.save_file(tensors, part, metadata), running=True)


def _digest(said: str, tensors: dict[str, Tensor]) -> str:
    """Of everything in a checkpoint: flipped bytes must not be gone on with."""
    digest = blake3(said.encode())
    for key, value in sorted(tensors.items()):
        digest.update(f"{key}\0{value.dtype}\0{tuple(value.shape)}\0".encode())
        raw: Any = value.reshape(-1).view(torch.uint8).numpy() if value.numel() else b""
        digest.update(raw)
    return digest.hexdigest()

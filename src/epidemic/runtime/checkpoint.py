"""The checkpoint of a run: the state's tensors, the progress, and a digest of all of it.

A finished run keeps its last one, so that it can continue with more rounds. Tensors that are also in the file of its models are left out of it, and read
from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import safetensors
import torch
from blake3 import blake3
from torch import Tensor

from epidemic.algorithms import Rows
from epidemic.core.errors import BadInput
from epidemic.learner import Layout
from epidemic.runtime.tensor_files import PIECE, Fed, Head, Put, head_of, portions, raw, rows_of, told, write_tensors

CHECKPOINT, MODELS = "checkpoint.safetensors", "models.safetensors"
STATE = "state."
"""Prefix of the names of the columns of the nodes' state."""


class Progress(msgspec.Struct, kw_only=True):
    """How far a run has come; stored in the checkpoint beside the tensors."""

    round: int  # rounds done
    recorded: int  # the last round that has a record; -1: none
    records_bytes: int = 0
    timings_bytes: int = 0
    tallies: dict[str, int] = {}  # counters of a deployed node, besides bytes


@dataclass(frozen=True, eq=False)
class Found:
    """A checkpoint that was read and checked. The rows of the nodes' state are read from its file on demand.

    The files stay open, so a checkpoint that is replaced meanwhile can still be read.
    """

    path: Path  # the seed's directory
    layout: Layout
    progress: Progress
    tensors: dict[str, Tensor]  # everything but the nodes' state
    state: dict[str, Head]  # types and shapes of the columns of that state
    in_models: frozenset[str]  # columns that are in the file of the models
    file: Any  # the checkpoint ...
    models: Any  # ... and the models of a finished run, or None

    def rows(self, name: str, part: slice) -> Tensor:
        """Some rows of a column of the state.   # (m, ...)"""
        key = STATE + name
        return _models(self.models, self.layout, part) if key in self.in_models else rows_of(self.file, key, part)

    def fed(self, name: str) -> Fed:
        """A column of the state, to be read piece by piece."""
        head = self.state[name]

        def feed(put: Put) -> None:
            for part in _pieces(head):
                put(self.rows(name, part))

        return Fed(head, feed)

    def whole(self) -> Rows:
        """The state of all nodes.   # (n, ...) each"""
        return {name: read_rows(head, partial(self.rows, name)) for name, head in self.state.items()}


def read_rows(head: Head, read: Callable[[slice], Tensor]) -> Tensor:
    """All rows of a tensor, of which `read` returns some.   # (n, ...)"""
    rows = torch.empty(head.shape, dtype=head.dtype)
    for part in _pieces(head):
        rows[part] = read(part)
    return rows


def write_checkpoint(
    path: Path | None,
    progress: Progress,
    tensors: Mapping[str, Tensor],
    state: Mapping[str, Fed],
    together: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> None:
    """Write a checkpoint to a seed's directory, replacing the earlier one only when the new one is complete.

    `path` is None on ranks that send their rows to the one that writes.
    """
    said = msgspec.json.encode(progress).decode()
    write_tensors(
        None if path is None else path / CHECKPOINT,
        tensors,
        {STATE + name: fed for name, fed in state.items()},
        lambda digest: {"progress": said, "digest": digest},
        digest=blake3(said.encode()),
        together=together,
    )


def thin_checkpoint(path: Path, rounds: int, models: Sequence[str]) -> None:
    """Remove the tensors from a checkpoint that are in the models of a run finished after `rounds` rounds."""
    with _open(path / CHECKPOINT) as file:
        said = file.metadata()
        if not models or msgspec.json.decode(said["progress"], type=Progress).round != rounds:
            return
        rest = [key for key in file.keys() if key not in models]  # noqa: SIM118
        small = {key: file.get_tensor(key).clone() for key in rest if not key.startswith(STATE)}
        fed = {key: _fed(path / CHECKPOINT, key, head_of(file, key)) for key in rest if key.startswith(STATE)}
    about = {
        "progress": said["progress"],
        "digest": said["digest"],
        "models": " ".join(models),
    }  # read in no fixed order
    write_tensors(path / CHECKPOINT, small, fed, lambda _: about)


def read_checkpoint(path: Path, layout: Layout) -> Found | None:
    """Read and check the checkpoint of a seed's directory; None if there is none."""
    file_path = path / CHECKPOINT
    if not file_path.is_file():
        return None
    try:
        found, said = _found(path, layout)
        if _digest(said["progress"], found) != said["digest"]:
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
    return found


def _found(path: Path, layout: Layout) -> tuple[Found, dict[str, str]]:
    """The content of the file, and its metadata."""
    file = _open(path / CHECKPOINT)
    said, keys = file.metadata(), list(file.keys())
    progress = msgspec.json.decode(said["progress"], type=Progress)
    tensors = {key: file.get_tensor(key).clone() for key in keys if not key.startswith(STATE)}
    state = {key.removeprefix(STATE): head_of(file, key) for key in keys if key.startswith(STATE)}
    in_models = frozenset(said.get("models", "").split())
    models = _open(path / MODELS) if in_models else None
    for key in in_models:
        rows = head_of(models, layout.entries[0].name).shape[0]
        state[key.removeprefix(STATE)] = Head(layout.dtype, (rows, layout.size))
    return Found(path, layout, progress, tensors, dict(sorted(state.items())), in_models, file, models), said


def _digest(progress: str, found: Found) -> str:
    """A digest of everything in a checkpoint, to detect corruption before a run resumes from it."""
    digest = blake3(progress.encode())
    state = {STATE + name: name for name in found.state}
    for key in sorted([*found.tensors, *state]):
        if key in state:
            digest.update(told(key, found.state[state[key]]))
            for part in _pieces(found.state[state[key]]):
                digest.update(raw(found.rows(state[key], part)).numpy().data)
        else:
            digest.update(told(key, Head.of(found.tensors[key])))
            digest.update(raw(found.tensors[key]).numpy().data)
    return digest.hexdigest()


def _models(file: Any, layout: Layout, part: slice) -> Tensor:
    """Models of a finished run as rows.   # (m, d)"""
    tensors = {entry.name: file.get_slice(entry.name)[part] for entry in layout.entries}
    rows = torch.empty(len(tensors[layout.entries[0].name]), layout.size, dtype=layout.dtype)
    for name, view in layout.views(rows).items():
        view.copy_(tensors[name])
    return rows


def _fed(path: Path, key: str, head: Head) -> Fed:
    """A tensor of a file, to be read piece by piece."""

    def feed(put: Put) -> None:
        for part in _pieces(head):
            with _open(path) as file:
                piece = rows_of(file, key, part)
            put(piece)

    return Fed(head, feed)


def _pieces(head: Head) -> Iterator[slice]:
    """Its rows in pieces that are read at once, at least one row each."""
    width = max(1, min(PIECE, head.width * head.dtype.itemsize))
    return (rows for rows, _ in portions(head.shape[0], width))


def _open(path: Path) -> Any:
    return safetensors.safe_open(path, "pt")

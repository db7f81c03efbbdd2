"""The checkpoint of a run: the state's tensors, where the run stands, and a digest of all of it.

A finished run keeps its last one, so that it can go on with more rounds. What the file of its models holds already is left out of
it then, and taken from there.
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
"""How the names of the columns of the nodes' state begin."""


class Progress(msgspec.Struct, kw_only=True):
    """Where a run stands: goes into the checkpoint beside the tensors."""

    round: int  # rounds done
    recorded: int  # the last round that has a record; -1: none
    records_bytes: int = 0
    timings_bytes: int = 0
    tallies: dict[str, int] = {}  # what a deployed node has counted, besides bytes


@dataclass(frozen=True, eq=False)
class Found:
    """A checkpoint that was found whole. The rows of the nodes' state stay in its file until they are asked for.

    The files are open all the time: a checkpoint that is replaced meanwhile is still the one that was found.
    """

    path: Path  # the seed's directory
    layout: Layout
    progress: Progress
    tensors: dict[str, Tensor]  # everything but the state of the nodes
    state: dict[str, Head]  # what the columns of that are
    in_models: frozenset[str]  # those of them that are in the file of the models
    file: Any  # the checkpoint ...
    models: Any  # ... and the models of a finished run, or None

    def rows(self, name: str, part: slice) -> Tensor:
        """Some rows of a column of the state.   # (m, ...)"""
        key = STATE + name
        return _models(self.models, self.layout, part) if key in self.in_models else rows_of(self.file, key, part)

    def fed(self, name: str) -> Fed:
        """A column of the state, piece by piece."""
        head = self.state[name]

        def feed(put: Put) -> None:
            for part in _pieces(head):
                put(self.rows(name, part))

        return Fed(head, feed)

    def whole(self) -> Rows:
        """The state of all nodes.   # (n, ...) each"""
        return {name: read_rows(head, partial(self.rows, name)) for name, head in self.state.items()}


def read_rows(head: Head, read: Callable[[slice], Tensor]) -> Tensor:
    """All rows of a tensor, of which `read` gives some.   # (n, ...)"""
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
    """Write it to a seed's directory; what was saved before is replaced only when the new one is whole.

    `path` is None on ranks that hand over their rows of the state to the one that writes.
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
    """Leave those tensors out that are the models of a run which has finished after so many rounds."""
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
    """That of a seed's directory, checked; None if there is none."""
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
    """What the file holds, and what it says about itself."""
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
    """Of everything in a checkpoint: flipped bytes must not be gone on with."""
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
    """A tensor of a file, piece by piece."""

    def feed(put: Put) -> None:
        for part in _pieces(head):
            with _open(path) as file:
                piece = rows_of(file, key, part)
            put(piece)

    return Fed(head, feed)


def _pieces(head: Head) -> Iterator[slice]:
    """Its rows, as many at a time as are read at once, but one at least."""
    width = max(1, min(PIECE, head.width * head.dtype.itemsize))
    return (rows for rows, _ in portions(head.shape[0], width))


def _open(path: Path) -> Any:
    return safetensors.safe_open(path, "pt")

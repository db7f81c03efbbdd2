"""The directory of a run: written so that whatever stops the process, what is there is whole and can go on.

    DIR/experiment.toml          the experiment, every value written out
    DIR/seed-N/run.json          resolved experiment, versions, strategy, machine
               records.jsonl     a line per evaluated round; the same bytes for the same experiment and seed
               timings.jsonl     seconds per phase
               checkpoint.safetensors   the state of an unfinished run
               nodes.json, summary.json, models.safetensors     when finished

Files appear by renaming, so none is ever half-written; records are appended, and cut back to the checkpoint when going on.
"""

from __future__ import annotations

import errno
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from epidemic import __version__
from epidemic.errors import BadInput, RunFailed
from epidemic.experiment import Experiment, same_experiment, to_toml
from epidemic.learner import Choice, Layout
from epidemic.record import Record, Summary, encode, read_records

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

CHECKPOINT, RECORDS, TIMINGS = "checkpoint.safetensors", "records.jsonl", "timings.jsonl"


class Progress(msgspec.Struct, kw_only=True):
    """Where a run stands: goes into the checkpoint beside the tensors."""

    round: int  # rounds done
    recorded: int  # the last round that has a record; -1: none
    records_bytes: int = 0
    timings_bytes: int = 0


@contextmanager
def full_disk(what: str) -> Iterator[None]:
    """Turn failing writes into one clear line."""
    try:
        yield
    except (OSError, safetensors.SafetensorError) as problem:
        if isinstance(problem, OSError) and problem.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise BadInput(f"{what} cannot be written: {problem.strerror}") from None
        raise RunFailed(f"{what} cannot be written: {problem}; the last checkpoint is kept") from None


def write_whole(path: Path, write: Callable[[Path], None]) -> None:
    """Write beside the place and rename, so that the file is there whole or not at all."""
    part = path.with_name(path.name + ".part")
    with full_disk(str(path)):
        try:
            write(part)
            with part.open("rb") as file:
                os.fsync(file.fileno())
            part.replace(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise


def write_bytes(path: Path, content: bytes) -> None:
    """Write a small file whole."""

    def write(part: Path) -> None:
        part.write_bytes(content)

    write_whole(path, write)


class Store:
    """The directory of one seed."""

    def __init__(self, root: Path, experiment: Experiment, seed: int) -> None:
        self.root = root
        self.path = root / f"seed-{seed}"
        self.experiment = experiment
        self.seed = seed
        self._lock: IO[bytes] | None = None
        self._records: IO[bytes] | None = None
        self._timings: IO[bytes] | None = None

    # -- opening ------------------------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """Whether this seed has run to its end."""
        return (self.path / "summary.json").is_file()

    def open(self, *, resume: bool) -> None:
        """Take the directory, or say why not. Nothing of another experiment is ever overwritten."""
        if self.root.exists() and not self.root.is_dir():
            raise BadInput(f"{self.root} is a file; choose a directory")
        with full_disk(str(self.path)):
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = (self.path / ".lock").open("wb")
        if fcntl is not None:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise BadInput(
                    f"{self.path} is in use by another process; wait for it or choose another directory"
                ) from None
        for path in sorted(self.root.glob("seed-*/run.json")):
            different = same_experiment((read_json(path) or {}).get("experiment", {}), self._table())
            if different:
                raise BadInput(
                    f"{path.parent} holds a different experiment (in {', '.join(different[:5])}); choose another directory"
                )
        if self.run_info() is None:
            if any(p.name not in (".lock",) for p in self.path.iterdir()):
                raise BadInput(f"{self.path} has files that are not of a run; choose another directory")
            return
        if not resume:
            state = "a finished" if self.finished else "an unfinished"
            raise BadInput(
                f"{self.root} holds {state} run of this experiment; go on with 'epidemic run --resume {self.root}'"
                " or choose another directory"
            )

    def run_info(self) -> dict[str, Any] | None:
        """What run.json says; None if this seed has not been started."""
        return read_json(self.path / "run.json")

    def begin(self, choice: Choice) -> None:
        """Write down what is about to run."""
        if self.experiment.portable:
            write_bytes(self.root / "experiment.toml", to_toml(self.experiment).encode())
        info = {
            "experiment": self._table(),
            "seed": self.seed,
            "strategy": choice.strategy,
            "strategy_reason": choice.reason,
            "draws_random_numbers": choice.draws_random_numbers,
            "versions": {
                "epidemic": __version__,
                "python": platform.python_version(),
                "torch": str(torch.__version__),
                "numpy": np.__version__,
            },
            "machine": {"system": platform.platform(), "processor": platform.machine(), "cores": os.cpu_count()},
        }
        write_bytes(self.path / "run.json", msgspec.json.format(msgspec.json.encode(info), indent=2) + b"\n")

    def known_choice(self) -> Choice | None:
        """The strategy of this seed, or of any other seed of the same directory."""
        for path in [self.path, *sorted(self.root.glob("seed-*"))]:
            info = read_json(path / "run.json")
            if info is not None:
                return Choice(info["strategy"], info["strategy_reason"], info["draws_random_numbers"])
        return None

    def _table(self) -> dict[str, Any]:
        table: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self.experiment.table()))
        return table

    # -- while it runs ------------------------------------------------------------------------------------------------

    def restore(self) -> tuple[Progress, dict[str, Tensor]] | None:
        """The checkpoint, with records and timings cut back to it; None to start from the beginning."""
        for part in self.path.glob("*.part"):
            part.unlink()
        path = self.path / CHECKPOINT
        found = None
        if path.is_file():
            try:
                with safetensors.safe_open(path, "pt") as file:
                    progress = msgspec.json.decode(file.metadata()["progress"], type=Progress)
                    found = progress, {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            except (safetensors.SafetensorError, msgspec.DecodeError, KeyError, TypeError) as problem:
                raise BadInput(f"{path} is damaged ({problem}); delete {self.path} to start this seed again") from None
        with full_disk(str(self.path)):
            self._records = self._appending(RECORDS, found[0].records_bytes if found else 0)
            self._timings = self._appending(TIMINGS, found[0].timings_bytes if found else 0)
        return found

    def _appending(self, name: str, size: int) -> IO[bytes]:
        path = self.path / name
        if not path.exists():
            path.touch()
        if path.stat().st_size < size:
            raise BadInput(f"{path} is shorter than its checkpoint says; delete {self.path} to start this seed again")
        os.truncate(path, size)
        return path.open("ab")

    def records(self) -> list[Record]:
        """The records so far."""
        return read_records(self.path / RECORDS)[0]

    def append(self, record: Record, timing: dict[str, Any]) -> None:
        """Write a record as it happens."""
        assert self._records is not None
        assert self._timings is not None
        with full_disk(str(self.path / RECORDS)):
            for file, value in ((self._records, record), (self._timings, timing)):
                file.write(encode(value))
                file.flush()

    def save_checkpoint(self, progress: Progress, tensors: dict[str, Tensor]) -> None:
        """Save the state; what was saved before is replaced only when the new one is whole."""
        assert self._records is not None
        assert self._timings is not None
        with full_disk(str(self.path)):
            os.fsync(self._records.fileno())
        progress.records_bytes, progress.timings_bytes = self._records.tell(), self._timings.tell()
        metadata = {"progress": msgspec.json.encode(progress).decode()}
        plain = {key: value.detach().cpu().contiguous() for key, value in tensors.items()}
        write_whole(self.path / CHECKPOINT, lambda part: safetensors.torch.save_file(plain, part, metadata))

    def finish(self, summary: Summary, nodes: list[dict[str, Any]], layout: Layout, x: Tensor) -> None:
        """Write the results; the summary last, because it says that all is there."""
        save_models(self.path / "models.safetensors", layout, x)
        write_bytes(self.path / "nodes.json", msgspec.json.format(msgspec.json.encode(nodes), indent=1) + b"\n")
        write_bytes(self.path / "summary.json", msgspec.json.format(msgspec.json.encode(summary), indent=2) + b"\n")
        (self.path / CHECKPOINT).unlink(missing_ok=True)

    def close(self) -> None:
        """Let go of the directory."""
        for file in (self._records, self._timings, self._lock):
            if file is not None:
                file.close()

    def summary(self) -> Summary:
        """What came out of a finished seed."""
        return msgspec.json.decode((self.path / "summary.json").read_bytes(), type=Summary)


def read_json(path: Path) -> dict[str, Any] | None:
    """A small JSON file, or None if it is not there."""
    try:
        found: dict[str, Any] = msgspec.json.decode(path.read_bytes())
        return found
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as problem:
        raise BadInput(f"{path} cannot be read: {problem}") from None


# -- models -----------------------------------------------------------------------------------------------------------


def save_models(path: Path, layout: Layout, x: Tensor) -> None:
    """All nodes' models: each tensor of the model with a leading axis of nodes, and what all have in common."""
    tensors = {name: view.detach().cpu().contiguous() for name, view in layout.views(x).items()}
    common = {f"common.{name}": tensor.cpu().contiguous() for name, tensor in layout.constants.items()}
    write_whole(path, lambda part: safetensors.torch.save_file({**tensors, **common}, part, {"nodes": str(len(x))}))


def export_model(run: Path, node: int | None) -> dict[str, Tensor]:
    """The state dict of one node's final model, or (None) of the average of all."""
    path = run / "models.safetensors"
    if not path.is_file():
        raise BadInput(
            f"{run} has no models.safetensors: it is not the directory of a finished seed, for example DIR/seed-1"
        )
    state: dict[str, Tensor] = {}
    with safetensors.safe_open(path, "pt") as file:
        nodes = int((file.metadata() or {})["nodes"])
        if node is not None and not 0 <= node < nodes:
            raise BadInput(f"--node {node} does not exist; the nodes are 0 to {nodes - 1}")
        for key in file.keys():  # noqa: SIM118
            if key.startswith("common."):
                state[key.removeprefix("common.")] = file.get_tensor(key)
            elif node is not None:
                state[key] = file.get_slice(key)[node].clone()
            else:
                rows = file.get_tensor(key)
                state[key] = rows.double().mean(0).to(rows.dtype)
    return state

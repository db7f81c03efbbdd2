"""The run directory: written so that it is valid and can be resumed whenever the process stops.

    DIR/experiment.toml          the experiment, every value written out
        places.json              where the user's own modules were found, and the base of a relative data.path, if there are such
    DIR/seed-N/run.json          resolved experiment, network, versions, strategy, machine
               records.jsonl     a line per evaluated round; the same bytes for the same experiment and seed
               timings.jsonl     seconds per phase
               state.json        running, finished, stopped, or failed and why
               checkpoint.safetensors   the state to resume from; of a finished run, what its models do not hold
               nodes.json, summary.json, models.safetensors     when finished

Files appear by renaming, so none is ever half-written; records are appended, and cut back to the checkpoint on resuming.
"""

from __future__ import annotations

import os
import platform
import shlex
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np
import torch
from filelock import FileLock

from epidemic import __version__
from epidemic.core.errors import BadInput, EpidemicError, spoken
from epidemic.core.files import UNREADABLE, full_disk, read_bounded, read_json, write_bytes
from epidemic.core.graph import IntArray
from epidemic.core.locks import held, taken
from epidemic.experiment import Experiment, changed_settings, load, note_places, same_experiment, to_toml
from epidemic.learner import Choice, Layout
from epidemic.record import Record, Summary, encode, read_records
from epidemic.runtime.checkpoint import (
    CHECKPOINT,
    Found,
    Progress,
    read_checkpoint,
    thin_checkpoint,
)
from epidemic.runtime.describe import describe_network
from epidemic.runtime.more_rounds import NODES, SUMMARY, check_longer, ended_early, rounds_of, take_back_the_end
from epidemic.runtime.more_rounds import RECORDS as RECORDS
from epidemic.runtime.more_rounds import TIMINGS as TIMINGS
from epidemic.runtime.run_state import STATE as STATE
from epidemic.runtime.run_state import RunState as RunState
from epidemic.runtime.run_state import read_state as read_state

WRITTEN = "# Written by epidemic"
MOST_NAMES = 1000
"""If there are more classes than this, their names are not written."""


def _nothing_yet(path: Path) -> bool:
    """Whether a seed's directory was prepared but no run has begun, for example because peers refused the node."""
    records = path / RECORDS
    begun = records.is_file() and records.stat().st_size > 0
    return not begun and not any((path / name).exists() for name in (CHECKPOINT, "summary.json"))


class RunDirectory:
    """The run directory of one seed."""

    def __init__(self, root: Path, experiment: Experiment, seed: int) -> None:
        self.root = root
        self.path = root / f"seed-{seed}"
        self.experiment = experiment
        self.seed = seed
        self._lock: FileLock | None = None
        self._records: IO[bytes] | None = None
        self._timings: IO[bytes] | None = None

    # -- opening ------------------------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """Whether this seed has finished all the rounds that are wanted now."""
        return self._ended and not self.behind

    @property
    def _ended(self) -> bool:
        return (self.path / SUMMARY).is_file()

    @property
    def behind(self) -> bool:
        """Whether this seed was started with fewer rounds than are wanted now."""
        return rounds_of(self.run_info(), self.experiment.rounds) < self.experiment.rounds

    def check(self, *, resume: bool) -> None:
        """Raise BadInput if this directory cannot be used. Nothing of another experiment is ever overwritten."""
        try:
            self._check(resume)
        except OSError as problem:
            raise BadInput(f"{self.root} cannot be used: {problem.strerror}; choose another directory") from None

    def _check(self, resume: bool) -> None:
        for place in (self.root, *self.root.parents):
            if place.exists() and not place.is_dir():
                raise BadInput(f"{place} is a file; choose a directory")
        if (self.root / "run.json").is_file():
            raise BadInput(f"{self.root} is the directory of one seed of a run; choose another directory")
        others = sorted(self.root.glob("seed-*/run.json"))
        if not others and not self._own_file():
            raise BadInput(f"{self.root} has an experiment.toml that is not of a run; choose another directory")
        for path in others:
            different = self._differences(path)
            if not different or (resume and _nothing_yet(path.parent)):
                continue
            if different == ["rounds"] and (resume or path.parent == self.path):
                check_longer(path.parent, rounds_of(read_json(path), 0), self.experiment.rounds)
            else:
                raise BadInput(
                    f"{path.parent} holds a different experiment (in {', '.join(different[:5])}); choose another directory"
                )
        if self.run_info() is None:
            if self.path.is_dir() and any(p.name != ".lock" and p.suffix != ".part" for p in self.path.iterdir()):
                raise BadInput(f"{self.path} has files that are not of a run; choose another directory")
        elif not resume:
            state = "a finished" if self._ended else "an unfinished"
            raise BadInput(
                f"{self.root} holds {state} run of this experiment;"
                f" choose another directory, or resume with: {self.how_to_resume(changed=True)}"
            )

    def _differences(self, path: Path) -> list[str]:
        """The settings in which the experiment of a run.json differs."""
        return same_experiment((read_json(path) or {}).get("experiment", {}), self._table())

    def how_to_resume(self, *, changed: bool = False) -> str:
        """The command that resumes this run; `changed`: with the settings that may change."""
        if not self.experiment.portable or spoken("Python", ""):
            return "simulate(..., resume=True)"
        path = self.root / "experiment.toml"
        settings = changed_settings(load(path), self.experiment) if changed and path.is_file() else []
        words = ["epidemic", "run", "--resume", str(self.root)]
        return shlex.join([*words, *(word for setting in settings for word in ("--set", setting))])

    def _own_file(self) -> bool:
        """Whether experiment.toml is absent or was written by this package."""
        try:
            return (self.root / "experiment.toml").read_text(encoding="utf-8").startswith(WRITTEN)
        except (FileNotFoundError, NotADirectoryError):
            return True
        except (OSError, UnicodeDecodeError):
            return False

    def open(self) -> None:
        """Lock the directory for this process, and remove half-written files."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = taken(self.path / ".lock")
        except OSError as problem:
            raise BadInput(f"{self.path} cannot be written: {problem.strerror}; choose another directory") from None
        if self._lock is None:
            raise BadInput(f"{self.path} is in use by another process; wait for it or choose another directory")
        for part in self.path.glob("*.part"):
            part.unlink()
        if self._ended and self.experiment.free is not None and "node" in (self.run_info() or {}):
            (self.path / CHECKPOINT).unlink(missing_ok=True)  # without rounds it cannot be extended
        elif _nothing_yet(self.path) and self._differences(self.path / "run.json"):
            (self.path / "run.json").unlink(missing_ok=True)
        if self.behind and ended_early(
            self.path
        ):  # it stays as it is: with more rounds it would have ended at the same one
            self.announce()
            self._write_info({**(self.run_info() or {}), "experiment": self._table()})

    @property
    def in_use(self) -> bool:
        """Whether a process has locked the directory."""
        return (self.path / ".lock").is_file() and held(self.path / ".lock")

    def run_info(self) -> dict[str, Any] | None:
        """The content of run.json; None if this seed has not been started."""
        return read_json(self.path / "run.json")

    def announce(self) -> None:
        """Write the experiment, so that the run can be resumed from its first moment and from any directory."""
        if self.experiment.portable:
            note_places(self.root, self._table())
            text = f"{WRITTEN}; seeds lists all that were started here.\n{to_toml(self._with_all_seeds())}"
            write_bytes(self.root / "experiment.toml", text.encode())

    def begin(
        self,
        choice: Choice,
        data: str = "",
        *,
        classes: Sequence[str] = (),
        samples: IntArray | None = None,
        node: int | None = None,
        told: int | None = None,
        device: str = "cpu",
    ) -> None:
        """Write what is about to run: all nodes, or the one that is deployed here.

        Args:
            choice: How it is computed.
            data: A description of the data.
            classes: The names of its classes; very many are left out.
            samples: Training samples of each node, if known.   # (n,)
            node: The id of the deployed node.
            told: The number of samples that it states to its peers.
            device: The type of device that computes it.
        """
        info = {
            "experiment": self._table(),
            "seed": self.seed,
            **({} if node is None else {"node": node}),
            **({} if told is None else {"samples": told}),
            "data": data,
            "classes": list(classes) if len(classes) <= MOST_NAMES else [],
            "network": describe_network(self.experiment, self.seed, samples),
            "device": device,
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
        self._write_info(info)

    def amend(self, more: dict[str, Any]) -> None:
        """Add entries to run.json."""
        info = self.run_info() or {}
        if any(info.get(key) != value for key, value in more.items()):
            self._write_info({**info, **more})

    def _write_info(self, info: dict[str, Any]) -> None:
        write_bytes(self.path / "run.json", msgspec.json.format(msgspec.json.encode(info), indent=2) + b"\n")

    def lengthen(self, layout: Layout) -> None:
        """Make this run, finished or not, an unfinished one with as many rounds as are wanted now."""
        take_back_the_end(self.path, layout, self.experiment.eval.every)
        self.mark("stopped", f"to continue to {self.experiment.rounds} rounds")
        self._write_info({**(self.run_info() or {}), "experiment": self._table()})

    def _with_all_seeds(self) -> Experiment:
        """The experiment, including the seeds that the directory already holds."""
        path = self.root / "experiment.toml"
        earlier = load(path).seeds if path.is_file() else ()
        return msgspec.structs.replace(self.experiment, seeds=tuple(dict.fromkeys((*earlier, *self.experiment.seeds))))

    @property
    def has_checkpoint(self) -> bool:
        """Whether there is a state to resume from."""
        return (self.path / CHECKPOINT).is_file()

    def known_choice(self) -> Choice | None:
        """The strategy of this seed, or of another seed in the same directory."""
        info = self._known()
        return None if info is None else Choice(info["strategy"], info["strategy_reason"], info["draws_random_numbers"])

    def known_device(self) -> str | None:
        """The type of device that this seed, or another one in the same directory, was started on."""
        info = self._known()
        device = None if info is None else info["device"]
        return None if device is None else str(device).partition(":")[0]

    def _known(self) -> dict[str, Any] | None:
        files = [self.path / "run.json", *sorted(self.root.glob("seed-*/run.json"))]
        return next((info for file in files if (info := read_json(file)) is not None), None)

    def _table(self) -> dict[str, Any]:
        return msgspec.json.decode(msgspec.json.encode(self.experiment.table()), type=dict[str, Any])

    def mark(self, state: str, why: str = "") -> None:
        """Write the state of the run: running, finished, stopped or failed."""
        with suppress(EpidemicError):  # a full disk has been reported, or will be
            write_bytes(self.path / STATE, msgspec.json.encode(RunState(state, why)) + b"\n")

    # -- while it runs ------------------------------------------------------------------------------------------------

    def restore(self, layout: Layout) -> Found | None:
        """Read the checkpoint and cut records and timings back to it; None to start from the beginning."""
        found = read_checkpoint(self.path, layout)
        self.open_records(found.progress if found else None)
        return found

    def open_records(self, progress: Progress | None = None) -> None:
        """Open the files of records and timings, cut back to a checkpoint's progress; without one they are empty."""
        with full_disk(str(self.path), running=True):
            self._records = self._appending(RECORDS, progress.records_bytes if progress else 0)
            self._timings = self._appending(TIMINGS, progress.timings_bytes if progress else 0)

    def _appending(self, name: str, size: int) -> IO[bytes]:
        path = self.path / name
        if not path.exists():
            path.touch()
        if path.stat().st_size < size:
            raise BadInput(f"{path} is shorter than its checkpoint says; delete {self.path} to start this seed again")
        os.truncate(path, size)
        return path.open("ab")

    def records(self) -> list[Record]:
        """All records written so far."""
        return read_records(self.path / RECORDS)[0]

    def append(self, record: Record, timing: dict[str, Any]) -> None:
        """Append a record and its timing."""
        assert self._records is not None
        assert self._timings is not None
        with full_disk(str(self.path / RECORDS), running=True):
            for file, value in ((self._records, record), (self._timings, timing)):
                file.write(encode(value))
                file.flush()

    def sync(self, progress: Progress) -> None:
        """Flush all records to the disk, and store their length in the progress."""
        assert self._records is not None
        assert self._timings is not None
        with full_disk(str(self.path), running=True):
            os.fsync(self._records.fileno())
        progress.records_bytes, progress.timings_bytes = self._records.tell(), self._timings.tell()

    def finish(self, summary: Summary, nodes: list[dict[str, Any]], models: Sequence[str] | None = None) -> None:
        """Write the results beside the models; the summary last, because it marks the run as finished.

        `models`: the tensors of the checkpoint that are the models, if it is to be kept for more rounds.
        """
        write_bytes(self.path / NODES, msgspec.json.format(msgspec.json.encode(nodes), indent=1) + b"\n")
        write_bytes(self.path / SUMMARY, msgspec.json.format(msgspec.json.encode(summary), indent=2) + b"\n")
        self.mark("finished", summary.ended_early)
        if models is None:
            (self.path / CHECKPOINT).unlink(missing_ok=True)
        elif self.has_checkpoint:
            thin_checkpoint(self.path, summary.rounds, models)

    def close(self) -> None:
        """Unlock the directory; remove it if nothing began."""
        for file in (self._records, self._timings):
            if file is not None:
                with suppress(OSError):  # a full disk has been reported already
                    file.close()
        if self._lock is None:
            return
        self._lock.release()
        with suppress(OSError, EpidemicError):  # what cannot be read stays
            if self.run_info() is None and not (self.root / "experiment.toml").exists():
                (self.path / ".lock").unlink()
                self.path.rmdir()
                self.root.rmdir()

    def summary(self) -> Summary:
        """The summary of a finished seed."""
        path = self.path / SUMMARY
        try:
            return msgspec.json.decode(read_bounded(path), type=Summary)
        except UNREADABLE as problem:
            raise BadInput(f"{path} cannot be read ({problem}); delete {self.path} to run this seed again") from None

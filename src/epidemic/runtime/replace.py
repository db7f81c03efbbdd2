"""Replacing the run in a directory by a new one, without ever leaving half of either.

The earlier run is first moved to DIR/.replaced. It is restored if the new one does not begin, and removed when the new one has ended. Only files that
a run writes are touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import torch.distributed as dist

from epidemic.core.errors import BadInput, RunFailed
from epidemic.core.locks import held
from epidemic.core.workers import several
from epidemic.runtime.checkpoint import CHECKPOINT, MODELS
from epidemic.runtime.more_rounds import NODES, RECORDS, SUMMARY, TIMINGS
from epidemic.runtime.run_directory import WRITTEN
from epidemic.runtime.run_state import STATE

ASIDE, MOVING = ".replaced", ".replaced-moving"
PREFIX = "old-"
"""Prefix of names there, so that nobody takes them for runs."""
OF_A_RUN = ("experiment.toml", "places.json")
LOCK = ".lock"
OF_A_SEED = {"run.json", RECORDS, TIMINGS, STATE, CHECKPOINT, MODELS, SUMMARY, NODES, LOCK}
"""The files of a seed's directory, besides those that end in .part."""


@contextmanager
def replacing(roots: Iterable[Path]) -> Iterator[None]:
    """Inside, a new run takes the place of the runs in these directories.

    Of the ranks of a simulation only the first touches files.

    Raises:
        BadInput: A run is in use, or its directory has files that no run writes; nothing has been changed then.
    """
    roots = list(roots) if not several() or dist.get_rank() == 0 else []
    for root in roots:
        _check(root)
    aside: list[Path] = []
    try:
        for root in roots:
            _recover(root, begun=bool(_seeds(root)))
            aside += [root] if _seeds(root) else []
            _put_aside(root)
    except OSError as problem:
        with suppress(OSError):
            _recover_all(aside, roots)
        raise BadInput(f"{root} cannot be overwritten: {problem.strerror}; choose another directory") from None
    try:
        yield
    except BaseException:
        with suppress(OSError):  # the error from inside must be reported
            _recover_all(aside, roots)
        raise
    try:
        _recover_all(aside, roots)
    except OSError as problem:
        raise RunFailed(f"{problem.filename}, which was overwritten, cannot be removed: {problem.strerror}") from None


def _recover_all(aside: Sequence[Path], roots: Sequence[Path]) -> None:
    begun = any(map(_seeds, roots))
    for root in aside:
        _recover(root, begun=begun)


def _seeds(root: Path) -> list[Path]:
    """The directories of seeds that have started."""
    return sorted(path.parent for path in root.glob("seed-*/run.json"))


def _check(root: Path) -> None:
    """Raise BadInput if the run in a directory cannot be overwritten."""
    for seed in _seeds(root):
        foreign = sorted(path.name for path in seed.iterdir() if path.name not in OF_A_SEED and path.suffix != ".part")
        if foreign or seed.is_symlink():
            what = f"has {foreign[0]}, which is not of a run" if foreign else "is a link"
            raise BadInput(f"{seed} {what}, so it is not overwritten; move it away or choose another directory")
        if (seed / LOCK).is_file() and held(seed / LOCK):
            raise BadInput(f"{seed} is in use by another process; wait for it or choose another directory")
    written = root / "experiment.toml"
    if _seeds(root) and written.is_file() and not written.read_bytes().startswith(WRITTEN.encode()):
        raise BadInput(f"{written} was not written by a run, so it is not overwritten; choose another directory")


def _put_aside(root: Path) -> None:
    """Move the run in a directory to ASIDE, which exists only once all of it has been moved."""
    seeds = _seeds(root)
    if seeds:
        moving = root / MOVING
        moving.mkdir()
        for path in [*seeds, *(root / name for name in OF_A_RUN if (root / name).is_file())]:
            path.rename(moving / (PREFIX + path.name))
        moving.rename(root / ASIDE)


def _recover(root: Path, *, begun: bool) -> None:
    """Remove the earlier run if the new one has begun, otherwise restore it. Can be interrupted and repeated."""
    aside, moving = root / ASIDE, root / MOVING
    if aside.is_dir() and begun:
        for old in aside.iterdir():
            _remove(old)
        aside.rmdir()
        if not any(root.iterdir()):  # of a method that the new comparison lacks
            root.rmdir()
    elif aside.is_dir():
        for path in root.glob("seed-*"):  # created by a run that did not begin
            if path.is_dir() and all(file.name == LOCK or file.suffix == ".part" for file in path.iterdir()):
                _remove(path)
        for name in OF_A_RUN:
            (root / name).unlink(missing_ok=True)
        aside.rename(moving)
    if moving.is_dir():
        for old in sorted(moving.iterdir()):
            old.rename(root / old.name.removeprefix(PREFIX))
        moving.rmdir()


def _remove(path: Path) -> None:
    """Remove a file, or the directory of a seed."""
    if not path.is_dir():
        path.unlink()
        return
    for file in path.iterdir():
        file.unlink()
    path.rmdir()

"""How the runs of a directory are: queued, running, done, stopped or failed, and why; by their directories and by what Slurm says."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from epidemic.core.errors import BadInput
from epidemic.core.files import UNREADABLE, read_bounded, read_json
from epidemic.runtime.more_rounds import SUMMARY, rounds_of
from epidemic.runtime.run_state import read_state
from epidemic.study.slurm.task import ENDED, Ended

# -- What Slurm's own commands say: which tasks wait or run, how large an array may be, which machines there are -----


PATIENCE = 60
"""Seconds that Slurm may take to answer."""
WAITING = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"}
RUNNING = {"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "STAGE_OUT", "SIGNALING", "RESIZING"}
ONE_MACHINE = {"tmpfs", "ramfs", "overlay"}
"""File systems that no other machine sees."""


class Seen(msgspec.Struct, frozen=True):
    """A task as squeue lists it."""

    state: str
    reason: str = ""


def ask(command: str, *arguments: str) -> str:
    """The output of a command of Slurm."""
    if shutil.which(command) is None:
        raise BadInput(
            f"{command} is not found: there is no Slurm here; log in to a machine that submits to one, or leave out --on slurm"
        )
    try:
        done = subprocess.run([command, *arguments], capture_output=True, text=True, timeout=PATIENCE, check=False)  # noqa: S603
    except subprocess.TimeoutExpired:
        raise BadInput(f"Slurm does not answer: {command} took more than {PATIENCE} s; try again later") from None
    if done.returncode:
        raise BadInput(f"Slurm does not answer: {' '.join(done.stderr.split())}; try again later")
    return done.stdout


def seen() -> dict[str, Seen]:
    """The tasks of this user that Slurm still knows, including those that ended some minutes ago; by id, 12 or 12_3."""
    found = {}
    for line in ask("squeue", "-h", "-r", "-t", "all", "-u", str(os.getuid()), "-o", "%F|%K|%T|%r").splitlines():
        job, index, state, reason = line.split("|", 3)
        found[f"{job}_{index}" if index.isdigit() else job] = Seen(state, "" if reason == "None" else reason)
    return found


def largest_array() -> int:
    """The number of tasks that an array may have."""
    told = re.search(r"^MaxArraySize\s*=\s*(\d+)", ask("scontrol", "show", "config"), re.MULTILINE)
    return max(1, int(told[1]) - 1) if told else 1000


def check_shared(directory: Path) -> None:
    """Refuse a directory that only this machine can see, as far as this is detectable."""
    kind = _file_system(directory)
    if kind not in ONE_MACHINE:
        return
    others = set(ask("sinfo", "-h", "-N", "-o", "%N").split()) - {socket.gethostname().partition(".")[0]}
    if others:
        raise BadInput(
            f"{directory} is on a {kind} file system, which only this machine sees, and not {min(others)};"
            " choose an --out on a disk that all machines of the cluster share"
        )


def _file_system(directory: Path) -> str:
    """The type of the file system that a directory is or will be on; empty if unknown."""
    try:
        lines = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return ""
    mounts = {Path(point.replace("\\040", " ")): kind for _, point, kind, *_ in map(str.split, lines)}
    place = directory.resolve()
    return next((mounts[one] for one in (place, *place.parents) if one in mounts), "")


FOLDER = ".slurm"
"""In the directory of a sweep: what submitit keeps, and the logs."""
TASKS = "tasks.json"
"""In that folder: the task of each run, the last one it had."""
_WORDS = {
    "TIMEOUT": "its time was over before it had saved; give it more to save in, for example --slurm signal=5m",
    "OUT_OF_MEMORY": "it took more memory than it had; give it more, for example --slurm mem=32G",
    "NODE_FAIL": "its machine failed",
    "BOOT_FAIL": "its machine did not start",
    "PREEMPTED": "its machine was needed for others",
    "CANCELLED": "it was cancelled",
    "DEADLINE": "its deadline was over",
}


class RunStatus(msgspec.Struct, frozen=True):
    """The state of one run of a directory on Slurm, and how many of its seeds are done."""

    run: str  # its directory, from that of the sweep on
    state: str  # queued, running, done, stopped, failed, or waiting: not submitted
    seeds_done: int
    seeds: int
    task: str = ""  # of Slurm, the last one it had
    why: str = ""


def tasks_of(where: Path) -> dict[str, str]:
    """The last task of each run that was ever submitted from here."""
    found = read_json(where / FOLDER / TASKS)
    return {str(run): str(task) for run, task in (found or {}).items()}


def status_of(where: Path) -> list[RunStatus]:
    """All runs of a directory. Slurm is asked only if tasks of its were submitted there and have not done all that they should.

    Raises:
        BadInput: The directory holds no run, or Slurm does not answer.
    """
    if not where.is_dir():
        raise BadInput(f"{where} {'is a file' if where.exists() else 'does not exist'}; give the directory of a sweep")
    runs = sorted(path.parent for path in where.rglob("experiment.toml") if FOLDER not in path.parts and _is_run(path))
    if not runs:
        raise BadInput(f"{where} holds no run; give the directory of a sweep")
    tasks = tasks_of(where)
    open_ones = [run for run in runs if str(run.relative_to(where)) in tasks and not _done(run)[2]]
    listed = seen() if open_ones else {}
    return [status_of_run(where, run, tasks, listed) for run in runs]


def status_of_run(where: Path, run: Path, tasks: Mapping[str, str], listed: Mapping[str, Seen]) -> RunStatus:
    """The state of one run, which may not have begun, given the submitted tasks and Slurm's list."""
    name = str(run.relative_to(where))
    done, seeds, all_done = _done(run)
    task = tasks.get(name, "")
    if all_done:
        return RunStatus(name, "done", done, seeds, task)
    # Tasks of an array that were cancelled before they began are listed together, under the number of the job.
    state, why = _by_slurm(run, listed.get(task) or listed.get(task.partition("_")[0])) if task else ("", "")
    if not state or (state == "failed" and not why):
        state, why = _by_directory(run, where / FOLDER / f"{task}_0_log.err" if task else None)
    return RunStatus(name, state, done, seeds, task, why)


def _is_run(file: Path) -> bool:
    """Whether an experiment file was written by a run; the paper's items have others beside them."""
    return any(file.parent.glob("seed-*")) or read_bounded(file)[:20].startswith(b"# Written by")


def _done(run: Path) -> tuple[int, int, bool]:
    """How many of its seeds have finished, how many there are, and whether all have."""
    try:
        table: dict[str, Any] = tomllib.loads(read_bounded(run / "experiment.toml").decode())
    except UNREADABLE:
        table = {}
    rounds, seeds = int(table.get("rounds", 0)), list(table.get("seeds", []))
    places = [run / f"seed-{seed}" for seed in seeds]
    done = sum(
        (place / SUMMARY).is_file() and rounds_of(read_json(place / "run.json"), rounds) >= rounds for place in places
    )
    return done, len(seeds), bool(seeds) and done == len(seeds)


def _by_slurm(run: Path, found: Seen | None) -> tuple[str, str]:
    """The state by Slurm's list and the task's own note; an empty reason if unknown."""
    if found is not None and found.state in WAITING:
        return "queued", found.reason
    if found is not None and found.state in RUNNING:
        return "running", ""
    try:
        ended = msgspec.json.decode(read_bounded(run / ENDED), type=Ended)
    except UNREADABLE:
        words = _WORDS.get(found.state, "") if found is not None else ""
        return "stopped" if found is not None and found.state == "CANCELLED" else "failed", words
    return "stopped" if ended.stopped else "failed", ended.why


def _by_directory(run: Path, log: Path | None) -> tuple[str, str]:
    """The state by the files of its seeds; `log` is that of an ended task."""
    states = [read_state(path.parent) for path in sorted(run.glob("seed-*/state.json"))]
    unfinished = [state for state in states if state.state not in ("finished", "unknown")]
    if log is None and not unfinished:
        return "waiting", ""
    running = [state for state in unfinished if state.state == "running"]
    if running:
        return "running", ""
    if unfinished:
        last = unfinished[-1]
        return "stopped" if last.state == "stopped" else "failed", last.why
    if log is not None and log.is_file() and not log.stat().st_size:
        return "failed", f"its task ended before it began, and its log is empty: is the disk of {run} full?"
    return "failed", (
        f"its task ended before it began; its log is {log}"
        if log is not None and log.is_file()
        else "its task ended without a word, not even a log: is the directory on a disk that all machines of the cluster share?"
    )

"""What Slurm's own commands say: which tasks wait or run, how large an array may be, which machines there are."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from pathlib import Path

import msgspec

from epidemic.core.errors import BadInput

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
    """What a command of Slurm prints."""
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
    """The tasks of this user that Slurm still knows, also those that ended some minutes ago; by id, 12 or 12_3."""
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
    """Refuse a directory that only this machine can see, as far as that can be told from here."""
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
    """The type of the file system that a directory is on, or will be; empty where nobody says."""
    try:
        lines = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return ""
    mounts = {Path(point.replace("\\040", " ")): kind for _, point, kind, *_ in map(str.split, lines)}
    place = directory.resolve()
    return next((mounts[one] for one in (place, *place.parents) if one in mounts), "")

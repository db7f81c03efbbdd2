"""What `--gpus` takes: `8x80GB`, so many GPUs of so much memory with a rank each, or `24GB`, as many as are needed."""

from __future__ import annotations

import re

import msgspec

from epidemic.core.errors import BadInput
from epidemic.estimate.memory import GpuMemory, HostMemory

MOST = 4096
"""GPUs."""
LEAST_MEMORY, MOST_MEMORY = 10**9, 10**13
"""Bytes of one."""
UNITS = {"MB": 10**6, "MIB": 2**20, "GB": 10**9, "GIB": 2**30, "TB": 10**12, "TIB": 2**40}
"""Decimal as they are written: a GPU of 80 GB has a little more than that, and its driver keeps some of it."""
_FORM = "must have the form [COUNTx]MEMORY, for example 8x80GB or 24GB"


class Wanted(msgspec.Struct, frozen=True):
    """The GPUs that `--gpus` asks for: how many, with how much memory."""

    text: str
    memory: int  # bytes of each
    count: int | None = None  # None: as many as it takes


class Gpus(msgspec.Struct, frozen=True, kw_only=True):
    """What an experiment would take on GPUs, a rank on each."""

    count: int  # for which the rest is said
    memory_of_each: int  # that it has
    memory: GpuMemory  # that a rank needs of it
    memory_in_all: int
    host: HostMemory  # that the process of a rank needs besides
    host_in_all: int
    fits: bool
    to_fit: int | None  # the fewest that would; None: not with any number of them
    least: int  # bytes of each that it takes with as many as may be


def parse_gpus(text: str) -> Wanted:
    """Read it, or say what is wrong with it."""
    found = re.fullmatch(r"(?:(-?\d+)\s*[xX*]\s*)?(-?\d+(?:\.\d+)?)\s*([KMGT]I?B)", text.strip(), re.IGNORECASE)
    if found is None or found[3].upper() not in UNITS:
        raise BadInput(f"--gpus {text!r} {_FORM}; memory in MB, GB, TB, MiB, GiB or TiB")
    count = None if found[1] is None else _bounded(found[1], "GPUs", text)
    size = float(found[2]) * UNITS[found[3].upper()]
    if not LEAST_MEMORY <= size <= MOST_MEMORY:
        raise BadInput(f"--gpus {text}: the memory of a GPU must be between 1 GB and 10 TB, for example 80GB")
    return Wanted(text.strip(), int(size), count)


def _bounded(digits: str, what: str, text: str) -> int:
    count = int(digits) if len(digits) < 10 else MOST + 1
    if not 1 <= count <= MOST:
        raise BadInput(f"--gpus {text}: the number of {what} must be between 1 and {MOST:,}, for example 8x80GB")
    return count


def asked_for(wanted: Wanted, ranks: int | None, nodes: int) -> int | None:
    """How many ranks there are to be; None: as many as it takes."""
    if wanted.count is not None and ranks is not None and wanted.count != ranks:
        raise BadInput(
            f"--ranks {ranks} and --gpus {wanted.text}: there is one rank a GPU, so leave out --ranks, or say --ranks {wanted.count}"
        )
    count = wanted.count or ranks
    if count is not None and count > nodes:
        said = f"--gpus {wanted.text}" if wanted.count else f"--ranks {count}"
        raise BadInput(f"{said}: {count} ranks must be at most nodes = {nodes}: every rank has at least one node")
    return count

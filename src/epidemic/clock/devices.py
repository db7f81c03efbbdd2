"""Device files: speeds, link capacities and sessions of machines.

A file is JSON, one device per line, every field optional:
`{"id": "a7", "ms_per_sample": 4.2, "up_kbps": 8000, "down_kbps": 20000, "on": [[0, 3600], [7200, 9000]], "period_s": 86400}`.
`ms_per_sample` is one forward pass; `on` are half-open sessions in seconds, repeated every `period_s` if given. Files are untrusted, so lines and files
are bounded, and every error names its line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np

from epidemic.clock.draws import MOST_SECONDS, FloatArray, microseconds
from epidemic.clock.timelines import Cycle
from epidemic.core.config import build
from epidemic.core.errors import BadInput, plain, require_real, suggestion
from epidemic.core.formatting import count
from epidemic.core.rng import Streams

LONGEST_LINE = 2**22
LARGEST_FILE = 2**30
MOST_DEVICES = 10**6

SHIPPED = {name: Path(__file__).parent / "shipped" / f"{name}.jsonl" for name in ("stragglers-60", "ten-regions")}
"""Device files in the package, by the name to use in clock.devices."""


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A device as a line of a file states it."""

    id: str | int | None = None
    ms_per_sample: float | None = None
    up_kbps: float | None = None
    down_kbps: float | None = None
    on: tuple[tuple[float, float], ...] | None = None
    period_s: float | None = None


@dataclass(frozen=True, eq=False)
class Device:
    """One machine; None is what its file leaves out."""

    id: str
    place: str
    """The file and line that it is from, for messages."""
    ms_per_sample: float | None = None
    up_kbps: float | None = None
    down_kbps: float | None = None
    on: FloatArray | None = None  # (sessions, 2) seconds, [start, end)
    period_s: float | None = None

    @property
    def has_links(self) -> bool:
        """Whether its link capacities are given."""
        return self.up_kbps is not None or self.down_kbps is not None

    def cycle(self) -> Cycle | None:
        """Its sessions; None: always online."""
        if self.on is None:
            return None
        sessions = [(microseconds(start), microseconds(end)) for start, end in self.on.tolist()]
        return Cycle(sessions, None if self.period_s is None else microseconds(self.period_s))


def find_devices(name: str, where: Path, said: str = "clock.devices =") -> Path:
    """The path of a device file: one in the package, or relative to `where`. `said`: the setting that names it, for messages."""
    if name in SHIPPED:
        return SHIPPED[name]
    path = where / name
    if not path.is_file():
        known = suggestion(name, SHIPPED) if "/" not in name and "." not in name else ""
        others = "; 'epidemic devices make' writes such files"
        raise BadInput(f"{said} {name!r}: there is no file {path}{known or others}")
    return path


def read_devices(path: Path) -> list[Device]:
    """Read and check all devices of a file."""
    try:
        with path.open("rb") as file:
            return checked(_lines(file, path), str(path))
    except OSError as problem:
        raise BadInput(f"{path} cannot be read: {problem.strerror}") from None


def checked(lines: Iterable[tuple[str, Any]], source: str) -> list[Device]:
    """Check decoded lines with their positions, and return the devices; refuses invalid values and repeated ids."""
    devices: list[Device] = []
    places: dict[str, str] = {}
    for place, table in lines:
        device = _device(table, place)
        if device.id in places:
            raise BadInput(f"{place}: id {device.id!r} is that of {places[device.id]}, too; ids must be different")
        if len(devices) == MOST_DEVICES:
            raise BadInput(f"{source} has more than {MOST_DEVICES:,} devices, which is the most; take a part of it")
        places[device.id] = place
        devices.append(device)
    if not devices:
        raise BadInput(f"{source} has no devices; 'epidemic devices make' writes such files")
    return devices


def assigned(devices: list[Device], n: int, reuse: bool, streams: Streams) -> list[Device]:
    """A device for each node: a random sample without replacement; with `reuse`, repeated passes in random order."""
    if n > len(devices) and not reuse:
        raise BadInput(
            f"nodes = {n}, but clock.devices has {count(len(devices), 'device')}; use fewer nodes, more devices, or clock.reuse = true"
        )
    rounds = -(-n // len(devices))
    order = [number for turn in range(rounds) for number in streams("clock-devices", turn).permutation(len(devices))]
    return [devices[number] for number in order[:n]]


def refuse_pickle(path: Path, content: bytes) -> None:
    """Raise BadInput if a file begins like a pickle, as FedScale's traces do."""
    if content[:1] == b"\x80" or content[:2] in (b"(d", b"(l", b"}q", b"]q"):
        # code for users who trust the file; nothing here executes it
        way = "import json, pickle, sys; json.dump(pickle.load(open(sys.argv[1], 'rb')), open(sys.argv[2], 'w'))"
        raise BadInput(
            f"{path} is a pickle, which can run anything and is never read; where you trust it, make JSON of it by"
            f' python -c "{way}" {path} trace.json, and convert that by epidemic devices convert'
        )


def _lines(file: BinaryIO, path: Path) -> Iterator[tuple[str, Any]]:
    """Every non-empty line, decoded, with its position."""
    read, number = 0, 0
    while line := file.readline(LONGEST_LINE + 1):
        number, read = number + 1, read + len(line)
        place = f"{path}, line {number}"
        if len(line) > LONGEST_LINE:
            raise BadInput(f"{place} has more than {LONGEST_LINE >> 20} MiB; one device per line is wanted")
        if read > LARGEST_FILE:
            raise BadInput(f"{path} has more than {LARGEST_FILE >> 30} GiB; take a part of it")
        if number == 1:
            refuse_pickle(path, line)
        if line.strip():
            try:
                yield place, msgspec.json.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
                raise BadInput(f"{place} is not JSON: {plain(str(problem))}") from None


def _device(table: Any, place: str) -> Device:
    if not isinstance(table, dict):
        raise BadInput(f'{place} must be a device, for example {{"id": "a", "up_kbps": 8000}}')
    line = build(table, Line, f"{place}: device")
    for field in ("ms_per_sample", "up_kbps", "down_kbps"):
        if getattr(line, field) is not None:
            require_real(f"{place}: {field}", getattr(line, field), high=1e12, above=0)
    if line.period_s is not None:
        require_real(f"{place}: period_s", line.period_s, 1e-6, MOST_SECONDS)
        if line.on is None:
            raise BadInput(
                f"{place}: period_s = {line.period_s:g} is about on, which is missing; add it or leave both out"
            )
    on = None if line.on is None else _sessions(line.on, line.period_s, place)
    name = place.rpartition(", ")[2] if line.id is None else plain(str(line.id), 80)
    return Device(name, place, line.ms_per_sample, line.up_kbps, line.down_kbps, on, line.period_s)


def _sessions(on: tuple[tuple[float, float], ...], period: float | None, place: str) -> FloatArray:
    """Sessions as an array; raises BadInput unless they are in order and within the period."""
    most = MOST_SECONDS if period is None else period
    sessions = np.array(on, dtype=np.float64).reshape(len(on), 2)
    for bad, fix in (
        (sessions[:, 0] < 0, "must not begin before 0"),
        (sessions[:, 1] > most, f"must end by {'period_s' if period is not None else 'the latest time'} = {most:g}"),
        (np.rint(sessions[:, 0] * 1e6) >= np.rint(sessions[:, 1] * 1e6), "must end later than it begins"),
    ):
        if bad.any():
            first = int(np.argmax(bad))
            raise BadInput(f"{place}: on[{first}] = {_shown(sessions[first])} {fix}")
    early = np.flatnonzero(sessions[1:, 0] < sessions[:-1, 1])
    if early.size:
        first = int(early[0])
        what = "overlaps" if sessions[first + 1, 1] > sessions[first, 0] else "comes before"
        raise BadInput(
            f"{place}: on[{first + 1}] = {_shown(sessions[first + 1])} {what} on[{first}] = {_shown(sessions[first])};"
            " sessions must be sorted and disjoint"
        )
    return sessions


def _shown(session: FloatArray) -> str:
    return f"[{session[0]:g}, {session[1]:g}]"

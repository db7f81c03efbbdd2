"""Where things are that the experiment file of a run names without saying it: modules of a user's own, data by a relative path, files of its clock.

Written down beside the file, so that the run goes on from any other directory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from epidemic.clock import clock_from
from epidemic.core.config import look_beside, modules_found_in, own_places
from epidemic.core.files import UNREADABLE, read_bounded, write_bytes
from epidemic.experiment.modules import references

PLACES = "places.json"


class Places(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a run remembers of where it was started."""

    modules: list[str] = []  # directories in which its own modules were found
    paths_from: str = ""  # the directory that a relative data.path begins in
    clock: str = ""  # the directory in which files of its clock were found


def note_places(directory: Path, table: Mapping[str, Any]) -> None:
    """Write down where this process has found what an experiment's table names; nothing, if all is where anybody finds it."""
    modules = modules_found_in(reference.partition(":")[0] for reference in references(table).values())
    files = _clock_files(table)
    places = Places(modules, str(Path.cwd()) if _relative(table) else "", str(found_in(files)) if files else "")
    if places != Places():
        write_bytes(directory / PLACES, msgspec.json.encode(places) + b"\n")
    else:
        (directory / PLACES).unlink(missing_ok=True)


def as_remembered(table: dict[str, Any], directory: Path) -> dict[str, Any]:
    """The tables of a file as they were meant by the run in the same directory: its modules are found, its data is where it was."""
    try:
        places = msgspec.json.decode(read_bounded(directory / PLACES), type=Places)
    except UNREADABLE:
        return table
    for place in [*places.modules, *([places.clock] if places.clock else [])]:
        look_beside(Path(place) / "any")
    path = _relative(table)
    there = Path(places.paths_from) / path
    if path and places.paths_from not in ("", str(Path.cwd())) and there.exists():
        return {**table, "data": {**table["data"], "path": str(there)}}
    return table


def found_in(files: Sequence[str]) -> Path:
    """The directory in which all these files are: the current one, or one beside a file that was read; the current one if none is."""
    places = [Path.cwd(), *own_places()]
    return next((place for place in places if all((place / file).is_file() for file in files)), Path.cwd())


def _clock_files(table: Mapping[str, Any]) -> list[str]:
    return clock_from(table["clock"]).files if table.get("clock") else []


def _relative(table: Mapping[str, Any]) -> str:
    """data.path, if it depends on the current directory."""
    data = table.get("data")
    path = data.get("path") if isinstance(data, Mapping) else None
    return path if isinstance(path, str) and not Path(path).is_absolute() else ""

"""Locations that an experiment file does not contain: the user's own modules, the base of a relative data path, files of its clock.

They are stored beside the file, so that the run can be resumed from any other directory.
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
    """The locations found when a run was started."""

    modules: list[str] = []  # directories of its own modules
    paths_from: str = ""  # base of a relative data.path
    clock: str = ""  # directory of the files of its clock


def note_places(directory: Path, table: Mapping[str, Any]) -> None:
    """Write the locations that this process has found for an experiment's table; nothing if the defaults find everything."""
    modules = modules_found_in(reference.partition(":")[0] for reference in references(table).values())
    files = _clock_files(table)
    places = Places(modules, str(Path.cwd()) if _relative(table) else "", str(found_in(files)) if files else "")
    if places != Places():
        write_bytes(directory / PLACES, msgspec.json.encode(places) + b"\n")
    else:
        (directory / PLACES).unlink(missing_ok=True)


def as_remembered(table: dict[str, Any], directory: Path) -> dict[str, Any]:
    """The tables of a file with the locations stored in its directory: modules are found, and data paths are absolute."""
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
    """The directory that has all these files: the current one, or that of a file that was read; the current one if none has."""
    places = [Path.cwd(), *own_places()]
    return next((place for place in places if all((place / file).is_file() for file in files)), Path.cwd())


def _clock_files(table: Mapping[str, Any]) -> list[str]:
    return clock_from(table["clock"]).files if table.get("clock") else []


def _relative(table: Mapping[str, Any]) -> str:
    """data.path if it depends on the current directory; otherwise empty."""
    data = table.get("data")
    path = data.get("path") if isinstance(data, Mapping) else None
    return path if isinstance(path, str) and not Path(path).is_absolute() else ""

"""Sweeps: one experiment at every point of a grid of settings, each run in a directory named by what differs.

Running the same sweep again goes on where it stopped: what is finished is skipped. A run that fails is reported at the end and
does not stop the others.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from epidemic.core.config import parse_setting
from epidemic.core.errors import BadInput, suggestion
from epidemic.experiment import Experiment, experiment_from, fingerprint, numbered_seeds, with_settings
from epidemic.study.batch import Job

MAX_POINTS = 10_000
"""More points than anybody has time for are a slip."""
NOT_IN_GRIDS = {
    "seeds": "each of them is part of every run",
    "name": "points are named by their settings",
    "format": "it says how the file is written",
    "callbacks": "callbacks are no setting, and a report could not distinguish the runs; give all of them to every run",
    "metrics": "what is measured is no setting of a run, and a report could not compare the runs; measure all of them in every run",
}
"""Keys that no grid takes, and why."""


def _refuse(key: str, where: str, seeds: str) -> None:
    """Refuse a key that is useless in a grid; `where` it is given, and how to set `seeds`."""
    part = key.split(".")[0]
    if part in NOT_IN_GRIDS:
        raise BadInput(
            f"{where} {key} cannot be used in a grid: {NOT_IN_GRIDS[part]}" + (f"; {seeds}" * (part == "seeds"))
        )


def parse_grid(texts: Sequence[str]) -> dict[str, list[Any]]:
    """`algorithm.lr=0.01,0.05` and the like: the values of each key."""
    grid: dict[str, list[Any]] = {}
    for text in texts:
        key, equals, values = text.partition("=")
        key = key.strip()
        if not equals:
            raise BadInput(f"--grid {text!r} must have the form key=value,value, for example topology.s=4,7,14")
        if key in grid:
            raise BadInput(f"--grid {key} is given twice; list its values with commas")
        _refuse(key, "--grid", "use --seeds N")
        parts = split_at_commas(values)
        if not all(part.strip() for part in parts):
            raise BadInput(f"--grid {text!r} has an empty value")
        found = [parse_setting(f"{key}={part}")[1] for part in parts]
        for i, value in enumerate(found):
            if value in found[:i]:
                raise BadInput(f"--grid {key} has the value {parts[i].strip()} twice")
        grid[key] = found
    if not grid:
        raise BadInput("a sweep needs at least one --grid key=value,value")
    return grid


def split_at_commas(text: str) -> list[str]:
    """At the commas that are not inside quotes or brackets."""
    parts, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character in "[{":
            depth += 1
        elif character in "]}":
            depth -= 1
        elif character == "," and depth == 0:
            parts.append("")
            continue
        parts[-1] += character
    return parts


def grid_jobs(
    table: Mapping[str, Any],
    grid: Mapping[str, Sequence[Any]],
    out: Path,
    seeds: int | None = None,
    settings: Sequence[str] = (),
) -> list[Job]:
    """Every combination of the values on top of an experiment's tables, checked; each in a directory of its own in `out`.

    With `seeds`, the seeds 1 to that number take the place of the file's. `settings` (key=value) hold at every point, also for a
    new kind that the grid brings.
    """
    fixed = dict(map(parse_setting, settings if seeds is None else numbered_seeds(seeds, list(settings))))
    for key in fixed:
        if key in grid:
            raise BadInput(f"--set {key} has no effect: --grid {key} gives its values; leave one out")
    if "methods" in table:
        raise BadInput("a sweep needs a file of one experiment, without [[methods]]; sweep over topology.kind instead")
    _check_size(grid)
    if (out / "run.json").is_file() or any(out.glob("seed-*/run.json")):
        raise BadInput(f"{out} is the directory of a run; choose another one for a sweep")
    jobs: dict[str, Job] = {}
    for name, _, chosen in _points(grid):
        try:
            experiment = experiment_from({**with_settings(table, copy.deepcopy({**fixed, **chosen})), "name": name})
        except BadInput as problem:
            raise BadInput(f"grid point {name}: {problem}") from None
        jobs[name] = Job(out / name, experiment)
    return list(jobs.values())


def experiment_jobs(experiment: Experiment, grid: Mapping[str, Iterable[Any]], out: Path) -> list[Job]:
    """The same for an experiment of Python: its parts and the values of the grid may be objects of the user's own."""
    values: dict[str, list[Any]] = {}
    for key, given in grid.items():
        _refuse(key, "grid:", "use seeds=...")
        if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
            raise BadInput(f"grid: {key} = {given!r} must be a list of values")
        values[key] = [value.item() if isinstance(value, np.generic) else value for value in given]
        if not values[key]:
            raise BadInput(f"grid: {key} has no value")
    if not values:
        raise BadInput("a sweep needs at least one setting with its values, for example {'topology.s': [4, 7, 14]}")
    _check_size(values)
    jobs: dict[str, Job] = {}
    for name, label, chosen in _points(values):
        try:
            there = msgspec.structs.replace(experiment, name=name, **_changes(experiment, chosen))
        except (BadInput, TypeError) as problem:
            raise BadInput(f"grid point {name}: {problem}") from None
        if name in jobs:
            raise BadInput(f"grid: {name} is given twice")
        jobs[name] = Job(out / name, there, label)
    return list(jobs.values())


def _changes(experiment: Experiment, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the experiment at a point: whole values are taken as they are, dotted ones go through the tables of a file."""
    known = [f.name for f in msgspec.structs.fields(Experiment)]
    whole = {key: value for key, value in chosen.items() if "." not in key and not isinstance(value, Mapping)}
    dotted = {key: value for key, value in chosen.items() if key not in whole}
    parts = {key.split(".")[0]: key for key in chosen}
    for part, key in parts.items():
        if part not in known:
            raise BadInput(f"{key} is not a known key{suggestion(part, known)}")
        if key in dotted and part in whole:
            raise BadInput(f"{part} and {key} contradict each other; leave one out")
    if not dotted:
        return whole
    table = {key: value for key, value in experiment.table().items() if key != "metrics"}  # no grid has them
    own = {key for key, value in table.items() if isinstance(value, dict) and "own" in value and "is" in value}
    for part, key in parts.items():
        if part in own and key in dotted:
            raise BadInput(f"{key} cannot be set in an object of your own; list whole ones: grid = {{{part!r}: [...]}}")
    named = {key: value for key, value in table.items() if key not in own}
    stand_in = {"topology": {"kind": "complete"}} if "topology" in own else {}  # only so that the tables are whole
    changes = {key: copy.deepcopy(value) if isinstance(value, Mapping) else value for key, value in dotted.items()}
    there = experiment_from(with_settings({**named, **stand_in}, changes))
    return {**whole, **{key.split(".")[0]: getattr(there, key.split(".")[0]) for key in dotted}}


def _check_size(grid: Mapping[str, Sequence[Any]]) -> None:
    count = math.prod(len(values) for values in grid.values())
    if count > MAX_POINTS:
        raise BadInput(f"the grid has {count:,} points; the limit is {MAX_POINTS:,}: use fewer values")


def _points(grid: Mapping[str, Sequence[Any]]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Every combination of the values: its directory name, its name for people, and its settings."""
    short = {key: key.rpartition(".")[2] for key in grid}
    clear = {key: name if list(short.values()).count(name) == 1 else key for key, name in short.items()}
    for values in itertools.product(*grid.values()):
        chosen = dict(zip(grid, values, strict=True))
        name = ",".join(f"{clear[key]}={_word(value)}" for key, value in chosen.items())
        objects = any(isinstance(value, msgspec.Struct) for value in values)
        label = ",".join(
            f"{clear[k]}={v!r}" if isinstance(v, msgspec.Struct) else f"{clear[k]}={_word(v)}"
            for k, v in chosen.items()
        )
        yield _fit(name, name, 180), label if objects else "", chosen


def _word(value: Any) -> str:
    """A value as part of a directory's name; if characters were replaced, a digest is added."""
    if isinstance(value, msgspec.Struct):
        text = repr(value)
    elif value is None or isinstance(value, str | int | float | list | tuple | dict):
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    else:  # an object of the user's own
        text = f"{getattr(value, '__name__', type(value).__name__)} {fingerprint(value)}"
    if re.fullmatch(r"[0-9.e+-]+", text):  # a number keeps its sign
        return text
    return _fit(re.sub(r"[^A-Za-z0-9._+-]+", "-", text).strip("-"), text, 60)


def _fit(name: str, text: str, longest: int) -> str:
    if name == text and len(name) <= longest:
        return name
    return f"{name[:longest] or 'x'}-{hashlib.blake2b(text.encode(), digest_size=3).hexdigest()}"

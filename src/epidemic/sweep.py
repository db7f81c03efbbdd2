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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from epidemic.batch import Job
from epidemic.config import parse_setting
from epidemic.errors import BadInput, require_int
from epidemic.experiment import experiment_from, with_settings

MAX_POINTS = 10_000
"""More points than anybody has time for are a slip."""


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
        if key in ("seeds", "name", "format"):
            raise BadInput(f"--grid {key} makes no sense" + ("; use --seeds N" if key == "seeds" else ""))
        parts = _split(values)
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


def _split(text: str) -> list[str]:
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
    fixed = dict(map(parse_setting, settings))
    if seeds is not None and "seeds" in fixed:
        raise BadInput("--set seeds and --seeds contradict each other; leave one out")
    for key in fixed:
        if key in grid:
            raise BadInput(f"--set {key} has no effect: --grid {key} gives its values; leave one out")
    if "methods" in table:
        raise BadInput("a sweep needs a file of one experiment, without [[methods]]; sweep over topology.kind instead")
    if seeds is not None:
        require_int("--seeds", seeds, 1, 10_000)
        table = {**table, "seeds": list(range(1, seeds + 1))}
    count = math.prod(len(values) for values in grid.values())
    if count > MAX_POINTS:
        raise BadInput(f"the grid has {count:,} points; the limit is {MAX_POINTS:,}: use fewer values")
    if (out / "run.json").is_file() or any(out.glob("seed-*/run.json")):
        raise BadInput(f"{out} is the directory of a run; choose another one for a sweep")
    short = {key: key.rpartition(".")[2] for key in grid}
    clear = {key: name if list(short.values()).count(name) == 1 else key for key, name in short.items()}
    jobs: dict[str, Job] = {}
    for values in itertools.product(*grid.values()):
        chosen = dict(zip(grid, values, strict=True))
        name = ",".join(f"{clear[key]}={_word(value)}" for key, value in chosen.items())
        name = _fit(name, name, 180)
        try:
            experiment = experiment_from({**with_settings(table, copy.deepcopy({**fixed, **chosen})), "name": name})
        except BadInput as problem:
            raise BadInput(f"grid point {name}: {problem}") from None
        jobs[name] = Job(out / name, experiment)
    return list(jobs.values())


def _word(value: Any) -> str:
    """A value as part of a directory's name; what had to be changed for that is told apart by a digest."""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    if re.fullmatch(r"[0-9.e+-]+", text):  # a number keeps its sign
        return text
    return _fit(re.sub(r"[^A-Za-z0-9._+-]+", "-", text).strip("-"), text, 60)


def _fit(name: str, text: str, longest: int) -> str:
    if name == text and len(name) <= longest:
        return name
    return f"{name[:longest] or 'x'}-{hashlib.blake2b(text.encode(), digest_size=3).hexdigest()}"

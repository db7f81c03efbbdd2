"""Experiments as TOML files.

The file is strict: an unknown key or kind is an error with the nearest valid one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from epidemic.adversary import adversary_from
from epidemic.aggregation import aggregator_from
from epidemic.algorithms import UNSAID_KIND, algorithm_from
from epidemic.clock import clock_from
from epidemic.compression import codec_from
from epidemic.core.config import build, build_kind, check_code, look_beside, parse_setting, parse_toml
from epidemic.core.errors import BadInput, argument, require_int, spoken, suggestion
from epidemic.data import PARTITIONS, SOURCES, Partition
from epidemic.experiment.locations import as_remembered
from epidemic.experiment.modules import references
from epidemic.experiment.spec import Checkpoint, Eval, Experiment, Runtime, network_from
from epidemic.faults import Faults
from epidemic.metrics import named_metrics
from epidemic.models import MODELS
from epidemic.participation import participation_from
from epidemic.topology import topology_from

MAX_SEEDS = 10_000
"""More seeds than anybody has time for are a slip."""
LARGEST_TOML = 2**26
"""Bytes of a file of settings; explicit graphs are the largest part of one."""


def experiment_from(table: Mapping[str, Any]) -> Experiment:
    """The experiment that the tables of a file describe."""
    known = [f.name for f in msgspec.structs.fields(Experiment)]
    for key in table:
        if key not in known:
            raise BadInput(f"{key} is not a known key{suggestion(key, known)}")
    for where, reference in references(table).items():
        check_code(reference, where)
    parts: dict[str, Callable[[Any], Any]] = {
        "topology": lambda t: topology_from(t, "topology"),
        "algorithm": lambda t: algorithm_from(t),
        "data": lambda t: build_kind(t, SOURCES, "data"),
        "partition": lambda t: _partition(t),
        "model": lambda t: build_kind(t, MODELS, "model"),
        "faults": lambda t: build(t, Faults, "faults"),
        "participation": lambda t: participation_from(t),
        "eval": lambda t: build(t, Eval, "eval"),
        "checkpoint": lambda t: build(t, Checkpoint, "checkpoint"),
        "runtime": lambda t: build(t, Runtime, "runtime"),
        "network": lambda t: network_from(t),
        "clock": lambda t: clock_from(t),
        "aggregation": lambda t: aggregator_from(t),
        "adversary": lambda t: adversary_from(t),
        "compression": lambda t: codec_from(t),
    }
    values = {key: parts[key](value) if key in parts else value for key, value in table.items()}
    for key in ("nodes", "rounds", "format"):
        if key in values:
            require_int(key, values[key], -(2**62))
    return Experiment(**values)


def _partition(table: Any) -> Partition:
    return build_kind(table, PARTITIONS, "partition")


def read_table(path: str | Path) -> dict[str, Any]:
    """The tables of a TOML file. Modules that they name are found beside it; what the file of a run names, where that run has found it."""
    table = read_toml(path)
    if not table:
        raise BadInput(
            f"{path} has no settings; 'epidemic init NEW.toml' writes a file to start from"
            ' (where every default is meant, name = "defaults" is enough)'
        )
    look_beside(path)
    return as_remembered(table, Path(path).parent)


def read_toml(path: str | Path) -> dict[str, Any]:
    """The tables of a TOML file that is only looked at: nothing beside it is ever imported."""
    try:
        with Path(path).open("rb") as file:
            raw = file.read(LARGEST_TOML + 1)  # a device has no end
        if len(raw) > LARGEST_TOML:
            raise BadInput(
                f"{path} has more than {LARGEST_TOML >> 20} MiB, more than any file of settings; give another one"
            )
        text = raw.decode("utf-8-sig")  # some editors begin a file with a byte order mark
    except (OSError, UnicodeDecodeError) as problem:
        reason = getattr(problem, "strerror", None) or str(problem)
        way = spoken(
            f"simulate({str(Path(path) / 'experiment.toml')!r}, {str(path)!r}, resume=True)", f"--resume {path}"
        )
        held = f"; go on with the run in it by {way}" if (Path(path) / "experiment.toml").is_file() else ""
        raise BadInput(f"{path} cannot be read: {reason}{held}") from None
    return parse_toml(text, str(path))


def load(path: str | Path, settings: list[str] | None = None) -> Experiment:
    """An experiment from a TOML file.

    Args:
        path: The file; `epidemic init FILE` writes one with every default in it.
        settings: Changes on top, as on the command line: ["topology.s=4", "rounds=50"].

    Returns:
        The experiment, checked. Modules that the file names are found beside it.

    Example:
        >>> run = ep.simulate(ep.load("experiment.toml", ["rounds=50"]))
    """
    table = read_table(path)
    if "methods" in table:
        raise BadInput(f"{path} compares several methods; run it with 'epidemic compare {path}'")
    return experiment_from(with_settings(table, settings or []))


def as_experiment(given: Any) -> Experiment:
    """An experiment as it is, or from the path of its TOML file, or from such a file's tables as a dict.

    Raises:
        BadInput: It is something else, or the file or the tables are wrong.
    """
    if isinstance(given, Experiment):
        return given
    if isinstance(given, str | Path):
        return load(given)
    if isinstance(given, Mapping):
        return experiment_from(given)
    raise BadInput(
        f"an experiment must be an Experiment, the path of its TOML file, or the tables of one as a dict, not {type(given).__name__}"
    )


def first_seeds(count: int, name: str = "seeds") -> list[int]:
    """The seeds 1 to `count`; `name` is what the user calls that number."""
    require_int(name, count, 1, MAX_SEEDS)
    return list(range(1, count + 1))


def numbered_seeds(count: int, settings: list[str]) -> list[str]:
    """The settings with the seeds 1 to `count`, as the option --seeds asks for them."""
    seeds = first_seeds(count, argument("seeds"))
    if any(parse_setting(text)[0] == "seeds" for text in settings):
        raise BadInput("--set seeds and --seeds contradict each other; leave one out")
    return [*settings, f"seeds={seeds}"]


def with_settings(table: Mapping[str, Any], settings: list[str] | Mapping[str, Any]) -> dict[str, Any]:
    """The tables with `topology.s=4` and the like applied; a new kind takes nothing over from the old one."""
    pairs = settings.items() if isinstance(settings, Mapping) else map(parse_setting, settings)
    changes: dict[str, Any] = {}
    for key, value in pairs:
        place = changes
        *path, last = key.split(".")
        for part in path:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise BadInput(f"{key} cannot be set: {part} is not a table")
        place[last] = value
    return merged(table, changes)


def merged(table: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Tables with changes on top; a table that changes its kind is replaced."""
    result = dict(table)
    for key, value in changes.items():
        old = result.get(key)
        if key == "metrics" and isinstance(old, list) and isinstance(value, Mapping):
            old = named_metrics(old)
        kind = old.get("kind", UNSAID_KIND if key == "algorithm" else None) if isinstance(old, Mapping) else None
        same_kind = isinstance(old, Mapping) and isinstance(value, Mapping) and value.get("kind", kind) == kind
        result[key] = merged(old, value) if same_kind and isinstance(old, Mapping) else value
    return result


def to_toml(experiment: Experiment) -> str:
    """The file that holds this experiment, every value written out."""
    if not experiment.portable:
        raise BadInput("an experiment with objects of your own cannot be written to a file")
    table = experiment.table()
    lines = [f"{_key(key)} = {toml_value(value)}" for key, value in table.items() if not isinstance(value, dict)]
    for key, value in table.items():
        if isinstance(value, dict):
            lines += ["", f"[{key}]", *(f"{_key(k)} = {toml_value(v)}" for k, v in value.items())]
    return "\n".join(lines) + "\n"


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else msgspec.json.encode(key).decode()


def toml_value(value: Any) -> str:
    """A value as a TOML file writes it, on one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return msgspec.json.encode(value).decode()
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(k)} = {toml_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    return repr(value)

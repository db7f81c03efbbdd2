"""Experiments as TOML files.

Reading is strict: an unknown key or kind is an error that names the nearest valid one.
"""

from __future__ import annotations

import importlib.util
import io
import pickle
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from epidemic.adversary import adversary_from
from epidemic.aggregation import aggregator_from
from epidemic.algorithms import UNSAID_KIND, algorithm_from
from epidemic.clock import clock_from
from epidemic.compression import codec_from
from epidemic.core.config import (
    build,
    build_kind,
    check_code,
    look_beside,
    modules_found_in,
    own_places,
    parse_setting,
    parse_toml,
)
from epidemic.core.errors import BadInput, argument, plain, require_int, spoken, suggestion
from epidemic.core.files import UNREADABLE, read_bounded, write_bytes
from epidemic.data import PARTITIONS, SOURCES, Partition
from epidemic.experiment.modules import references
from epidemic.experiment.spec import Checkpoint, Eval, Experiment, Runtime, network_from
from epidemic.faults import Faults
from epidemic.metrics import named_metrics
from epidemic.models import MODELS
from epidemic.participation import participation_from
from epidemic.topology import topology_from

# -- Locations that an experiment file does not contain: the user's own modules, the base of a relative data path, files of its clock --
# They are stored beside the file, so that the run can be resumed from any other directory.


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


MAX_SEEDS = 10_000
"""Most seeds of an experiment; more are a mistake."""
LARGEST_TOML = 2**26
"""Most bytes of a file of settings; explicit graphs are the largest part of one."""


def experiment_from(table: Mapping[str, Any]) -> Experiment:
    """Build the experiment that the tables of a file describe."""
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
    """Read the tables of a TOML file. Modules that it names are found beside it, or where the run of that directory found them."""
    table = read_toml(path)
    if not table:
        raise BadInput(
            f"{path} has no settings; 'epidemic init NEW.toml' writes a file to start from"
            ' (where every default is meant, name = "defaults" is enough)'
        )
    look_beside(path)
    return as_remembered(table, Path(path).parent)


def read_toml(path: str | Path) -> dict[str, Any]:
    """Read the tables of a TOML file without importing anything."""
    try:
        with Path(path).open("rb") as file:
            raw = file.read(LARGEST_TOML + 1)  # a device never ends
        if len(raw) > LARGEST_TOML:
            raise BadInput(
                f"{path} has more than {LARGEST_TOML >> 20} MiB, more than any file of settings; give another one"
            )
        text = raw.decode("utf-8-sig")  # some editors write a byte order mark
    except (OSError, UnicodeDecodeError) as problem:
        reason = getattr(problem, "strerror", None) or str(problem)
        way = spoken(
            f"simulate({str(Path(path) / 'experiment.toml')!r}, {str(path)!r}, resume=True)", f"--resume {path}"
        )
        held = f"; resume the run in it with {way}" if (Path(path) / "experiment.toml").is_file() else ""
        raise BadInput(f"{path} cannot be read: {reason}{held}") from None
    return parse_toml(text, str(path))


def load(path: str | Path, settings: list[str] | None = None) -> Experiment:
    """Read an experiment from a TOML file.

    Args:
        path: The file; `epidemic init FILE` writes one with every default in it.
        settings: Changes, as on the command line: ["topology.s=4", "rounds=50"].

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
    """An experiment from any accepted form: itself, the path of its TOML file, or such a file's tables as a dict.

    Raises:
        BadInput: It is something else, or the file or the tables are invalid.
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
    """The seeds 1 to `count`; `name` is the name of that number in messages."""
    require_int(name, count, 1, MAX_SEEDS)
    return list(range(1, count + 1))


def numbered_seeds(count: int, settings: list[str]) -> list[str]:
    """The settings with the seeds 1 to `count` added, as for the option --seeds."""
    seeds = first_seeds(count, argument("seeds"))
    if any(parse_setting(text)[0] == "seeds" for text in settings):
        raise BadInput("--set seeds and --seeds contradict each other; leave one out")
    return [*settings, f"seeds={seeds}"]


def with_settings(table: Mapping[str, Any], settings: list[str] | Mapping[str, Any]) -> dict[str, Any]:
    """The tables with settings such as `topology.s=4` applied; a new kind keeps nothing of the old one."""
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
    """The tables with changes applied; a table that changes its kind is replaced."""
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
    """The TOML file of an experiment, every value written out."""
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
    """A value in TOML, on one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return msgspec.json.encode(value).decode()
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(k)} = {toml_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    return repr(value)


# -- An experiment with objects of the user's own, as bytes for another process of the same program ------------------
# Objects are pickled: classes and functions by module and name, their content by value, so they must be importable. These bytes go from a process to those
# that it started itself, never over a network or into a file.


class _Importable(pickle.Unpickler):
    """An unpickler that refuses what another process could not import."""

    def find_class(self, module: str, name: str) -> Any:
        """The class or function of this name."""
        if module in ("__main__", "__mp_main__"):
            raise BadInput(f"{name} is defined in the script or notebook itself")
        try:
            found = importlib.util.find_spec(module)
        except (ImportError, ValueError):
            found = None
        if found is None:
            raise BadInput(f"there is no module {module} to import {name} from")
        return super().find_class(module, name)


def sent(experiment: Experiment) -> bytes:
    """Pickle an experiment for `received`.

    Raises:
        BadInput: It holds an object that another process cannot import.
    """
    for name in experiment.__struct_fields__:
        part = getattr(experiment, name)
        try:
            _Importable(io.BytesIO(pickle.dumps(part))).load()
        except BadInput as problem:
            reason = str(problem)
        except Exception as problem:  # copying a foreign object may raise anything
            reason = plain(" ".join(f"{type(problem).__name__}: {problem}".split()))
        else:
            continue
        raise BadInput(
            f"{name}: an object of your own that other processes cannot import ({reason}); define it in a module and import it"
            " from there, or use jobs = 1"
        )
    raw = pickle.dumps(experiment)
    if msgspec.json.encode(received(raw).table()) != msgspec.json.encode(experiment.table()):
        raise BadInput("an object of your own is not the same in another process, which creates it again; use jobs = 1")
    return raw


def received(raw: bytes) -> Experiment:
    """Unpickle an experiment made by `sent`."""
    experiment: Experiment = pickle.loads(raw)  # noqa: S301 - from the process that started this one
    return experiment

"""Comparing methods: the same data and seeds, several topologies or settings, one table of the paper's kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from epidemic.callbacks import Callback, all_of
from epidemic.core.errors import BadInput, argument, require_real, spoken
from epidemic.core.files import directory_name, read_json
from epidemic.core.formatting import interval, percent
from epidemic.core.workers import several
from epidemic.counting import without_rounds
from epidemic.data import Dataset
from epidemic.experiment import Experiment, experiment_from, merged
from epidemic.record import Record
from epidemic.report.curves import MethodCurve, lines_of
from epidemic.report.statistics import (
    FIRST,
    MOST,
    Interval,
    accuracy_of,
    best,
    cost,
    nodes_until,
    over_seeds,
    seconds_in_all,
)
from epidemic.runtime.run_directory import RunDirectory
from epidemic.simulator import SimulationResult, simulate
from epidemic.simulator.on_ranks import in_turn
from epidemic.topology import is_static, kind_of

DEMO: dict[str, Any] = {
    "name": "demo",
    "nodes": 128,
    "rounds": 100,
    "seeds": [1, 2, 3],
    "data": {"kind": "fashion"},
    "partition": {"kind": "dirichlet", "alpha": 0.1, "min_samples": 1},
    "model": {"kind": "mlp", "hidden": [32]},
    "algorithm": {"lr": 0.1, "local_steps": 3, "batch_size": 8},
    "eval": {"every": 10, "samples": 1000},
    "methods": [
        {"name": "complete", "topology": {"kind": "complete"}},
        {"name": "EL-Oracle", "topology": {"kind": "el-oracle", "s": 2}},
        {"name": "EL-Local", "topology": {"kind": "el-local", "s": 2}},
        {"name": "static ring", "topology": {"kind": "ring"}},
    ],
}
"""What `epidemic compare` does without a file: the same two messages a round, to neighbours that change or that stay. docs/results.md says which settings were tried."""


class MethodRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """One method of the table; intervals are over seeds. Values of simulated time are None without a clock."""

    name: str
    best_accuracy: Interval
    ahead: Interval  # best accuracy minus the baseline's, seed by seed
    best_loss: Interval
    bytes_to_target: Interval | None  # None: not all seeds reached it
    rounds_to_target: Interval | None
    seeds_reaching_target: int
    bytes_in_all: float  # per node, mean
    seconds_to_target: Interval | None = None
    first_nodes_to_target: Interval | None = (
        None  # seconds until a tenth of the nodes had reached it, each with its own model
    )
    most_nodes_to_target: Interval | None = None  # and nine tenths
    steps_to_target: Interval | None = None  # local steps of a node
    seconds_in_all: Interval | None = None
    without_rounds: bool = False  # rounds are then the number of trainings of a node


class ComparisonTable(msgspec.Struct, frozen=True):
    """Several methods on the same data and seeds: one row each, with the baseline and the target they are measured by."""

    baseline: str
    target: float
    target_from: str
    rows: list[MethodRow]


def refuse_idle_settings(table: Mapping[str, Any], settings: list[str]) -> None:
    """A --set that every method overrides would have no effect."""
    methods = [m for m in table.get("methods") or [] if isinstance(m, Mapping)]
    for text in settings:
        key = text.partition("=")[0].strip()
        for method in methods:
            if key.split(".")[0] in method:
                raise BadInput(
                    f"--set {text} has no effect: method {method.get('name')!r} sets {key.split('.')[0]} itself; change the file"
                )


def methods_from(table: Mapping[str, Any]) -> dict[str, Experiment]:
    """The experiments of a file with [[methods]]: each is the rest of the file with the method's overrides on top."""
    common = {key: value for key, value in table.items() if key != "methods"}
    methods = table.get("methods")
    if not isinstance(methods, list) or not methods:
        raise BadInput("compare needs [[methods]] in the file, each with a name and what it overrides")
    found: dict[str, Experiment] = {}
    for i, method in enumerate(methods):
        if not isinstance(method, Mapping) or not isinstance(method.get("name"), str):
            raise BadInput(f"methods[{i}].name is missing")
        name = method["name"]
        if directory_name(name) in map(directory_name, found):
            raise BadInput(f"methods[{i}].name = {name!r} occurs twice; give each method a name of its own")
        try:
            found[name] = experiment_from(
                {**merged(common, {k: v for k, v in method.items() if k != "name"}), "name": name}
            )
        except BadInput as problem:
            raise BadInput(f"method {name!r}: {problem}") from None
    check_methods(found)
    return found


def check_methods(methods: Mapping[str, Experiment]) -> None:
    """Refuse methods that cannot be compared: on other data or seeds than the first, or with names that no table can show."""
    first = next(iter(methods.values()))
    for name, experiment in methods.items():
        if not name.isprintable():
            raise BadInput(f"method {name!r} has a line break or a control character in its name; leave it out")
        if experiment.seeds != first.seeds or experiment.table()["data"] != first.table()["data"]:
            raise BadInput(f"method {name!r} has other data or seeds than the first; a comparison needs the same")


def run_methods(
    methods: Mapping[str, Experiment],
    out: Path | None,
    callbacks: Callback | Sequence[Callback] = (),
    *,
    resume: bool = False,
) -> dict[str, SimulationResult]:
    """Run them one after the other, each on all ranks where there are several. All directories are checked before anything is trained."""
    data: Dataset | None = None

    def check() -> None:
        nonlocal data
        if out is not None:
            _check_directories(methods, out, resume)
        data = load_classes(methods)

    if not several():
        check()
        return {
            name: simulate(methods[name], _place(out, name), resume=resume, callbacks=callbacks, data=data)
            for name in methods
        }
    found = {}
    with in_turn(methods, all_of(callbacks), check) as before:
        data = None  # every run cuts its own share of it
        for name, experiment in methods.items():
            before(name)
            found[name] = simulate(experiment, _place(out, name), resume=resume, callbacks=callbacks)
    return found


def places_of(methods: Mapping[str, Experiment], out: Path) -> list[Path]:
    """The directories of these methods, and of those of an earlier comparison in the same place, named by its comparison.json."""
    earlier = (read_json(out / "comparison.json") or {}).get("rows", [])
    names = [*methods, *(str(row.get("name")) for row in earlier if isinstance(row, dict))]
    return [out / name for name in dict.fromkeys(map(directory_name, names))]


def _place(out: Path | None, name: str) -> Path | None:
    return None if out is None else out / directory_name(name)


def _check_directories(methods: Mapping[str, Experiment], out: Path, resume: bool) -> None:
    for name, experiment in methods.items():
        for seed in experiment.seeds:
            run_directory = RunDirectory(out / directory_name(name), experiment, seed)
            if run_directory.run_info() is not None and not resume:
                way = spoken("resume=True", "--resume")
                raise BadInput(
                    f"{out} holds an earlier comparison; resume with {way} or choose another {argument('out')}"
                )
            run_directory.check(resume=resume)


def load_classes(methods: Mapping[str, Experiment]) -> Dataset:
    """The data that all methods share; refused if it has no classes."""
    data: Dataset = next(iter(methods.values())).load_data()
    if not data.classes:
        raise BadInput(
            "compare needs data with classes, because it compares accuracies; use 'epidemic run' for each method"
        )
    return data


def records_of(runs: Mapping[str, SimulationResult]) -> dict[str, list[list[Record]]]:
    """The records of each method, by seed."""
    return {name: [seed.records for seed in run.seeds] for name, run in runs.items()}


def compare(
    methods: Mapping[str, Experiment], records: Mapping[str, list[list[Record]]], target: float | None = None
) -> ComparisonTable:
    """The table. Without a target, it is the best mean accuracy of the static sparse baseline (or of the first method)."""
    baseline = _baseline(methods)
    if target is None:
        target, source = best(records[baseline])[0].mean, f"the best of {baseline}"
    else:
        check_target(target)
        source = "given"
    rows = []
    for name, by_seed in records.items():
        top, low = best(by_seed)
        costs = [cost(r, target) for r in by_seed]
        rows.append(
            MethodRow(
                name,
                top,
                Interval.of([_top(a) - _top(b) for a, b in zip(by_seed, records[baseline], strict=True)]),
                low,
                over_seeds([c.bytes for c in costs]),
                over_seeds([float(c.rounds) for c in costs]),
                sum(c.reached for c in costs),
                sum(r[-1].bytes.total.mean for r in by_seed) / len(by_seed),
                over_seeds([c.seconds for c in costs]),
                nodes_until(by_seed, target, FIRST),
                nodes_until(by_seed, target, MOST),
                over_seeds([c.steps for c in costs]),
                seconds_in_all(by_seed),
                without_rounds(methods[name].table()),
            )
        )
    return ComparisonTable(baseline, target, source, rows)


HEADS = ("method", "accuracy", "ahead", "loss", "rounds", "MiB", "in all")
CLOCKED = ("seconds", "10 %", "90 %", "steps", "in all (s)")


def heads_of(result: ComparisonTable) -> tuple[str, ...]:
    """What stands above the columns; under the clock there are more."""
    return (*HEADS, *CLOCKED) if _timed(result) else HEADS


def title_of(result: ComparisonTable) -> str:
    """Return the line above the table: what its numbers are, and the target."""
    return f"Mean over seeds and 95 % interval; target {percent(result.target)} ({result.target_from})"


def legend_of(result: ComparisonTable) -> str:
    """Return the lines below the table, which explain its columns."""
    said = (
        f"accuracy (%), loss: the best over rounds, mean over nodes; ahead: percentage points more than {result.baseline}, seed by"
        " seed; rounds, MiB: until the target, sent per node; in all: MiB sent per node by the end."
    )
    if _timed(result):
        said += (
            " seconds, steps: simulated time and local steps of a node until the target; 10 %, 90 %: simulated seconds until so many"
            " nodes had reached it with their own models; in all (s): simulated seconds by the end."
        )
    free = [row.name for row in result.rows if row.without_rounds]
    if free:
        said += f" Without rounds, which are the trainings of a node there: {', '.join(free)}."
    return said


def cells_of(result: ComparisonTable) -> list[list[str]]:
    """The rows of the table for people, under `heads_of`."""
    found = []
    for row in result.rows:
        if row.bytes_to_target is None or row.rounds_to_target is None:
            reached = [f"{row.seeds_reaching_target}/{row.best_accuracy.seeds} seeds", "-"]
        else:
            reached = [interval(row.rounds_to_target, digits=0), interval(row.bytes_to_target, 2**-20, 1)]
        ahead = "-" if row.name == result.baseline else interval(row.ahead, 100, 1, signed=True)
        figures = [interval(row.best_accuracy, 100, 1), ahead, interval(row.best_loss)]
        times = [row.seconds_to_target, row.first_nodes_to_target, row.most_nodes_to_target]
        clocked = [
            *(interval(t, digits=1) for t in times),
            interval(row.steps_to_target, digits=0),
            interval(row.seconds_in_all, digits=1),
        ]
        found.append(
            [row.name, *figures, *reached, f"{row.bytes_in_all / 2**20:.1f}", *(clocked if _timed(result) else ())]
        )
    return found


def _timed(result: ComparisonTable) -> bool:
    return any(row.seconds_in_all is not None for row in result.rows)


def check_target(target: float) -> None:
    """Raise `BadInput` unless the target is an accuracy from 0 to 1."""
    require_real("target", target, 0, 1)


def lines(methods: Mapping[str, Experiment], records: Mapping[str, list[list[Record]]]) -> list[MethodCurve]:
    """The methods as lines of a figure, coloured by what differs between them."""
    return lines_of([(name, methods[name].table(), by_seed) for name, by_seed in records.items()])


def _top(records: list[Record]) -> float:
    return max(accuracy_of(r) for r in records)


def _baseline(methods: Mapping[str, Experiment]) -> str:
    kinds = {name: kind_of(experiment.topology) for name, experiment in methods.items()}
    sparse = [
        n for n, e in methods.items() if is_static(e.topology) and kinds[n] not in ("complete", "none", "unlucky")
    ]
    regular = [n for n in sparse if kinds[n] == "regular"]
    return (regular or sparse or list(methods))[0]

"""Reading runs back: every seed found below some directories, as values and as one tidy table.

A run may be unfinished, even being written at this moment: its records so far are read, and a last line that was cut off is
left out and mentioned.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from epidemic.core.errors import BadInput, plain
from epidemic.core.files import UNREADABLE, read_bounded, read_json
from epidemic.counting import of_planned
from epidemic.data.images import need
from epidemic.record import LARGEST_RECORDS, AttackCounts, Living, Record, Spread, Summary, read_records
from epidemic.report.nodes import rows_of
from epidemic.report.settings import ComparedSettings, differing, method_of, settings_of
from epidemic.report.statistics import places_of
from epidemic.runtime.run_directory import RECORDS, TIMINGS, RunState, read_state


class RunInfo(msgspec.Struct, frozen=True):
    """The content of run.json of one seed."""

    experiment: dict[str, Any]  # as the tables of its file
    seed: int
    strategy: str
    versions: dict[str, str]
    machine: dict[str, Any]
    data: str = ""  # what should be known about the data that was read
    classes: list[str] = []  # their names; empty if there are none, very many, or in older runs
    network: dict[str, Any] = {}  # static; if so, connected and sigma; empty in older runs

    def __post_init__(self) -> None:
        if not isinstance(self.experiment.get("rounds"), int) or not isinstance(self.experiment.get("name"), str):
            raise ValueError("its experiment has no name or rounds")


class NodeResult(msgspec.Struct, frozen=True):
    """One node at the end of a seed."""

    node: int
    samples: int
    classes: list[int] | None  # training samples of each class
    bytes: dict[str, int]  # sent: model, header, control
    in_degree: dict[str, int]  # in how many rounds it received so many models
    final_loss: float
    final_accuracy: float | None

    @property
    def received(self) -> int:
        """How many models the node received in all rounds."""
        return sum(int(degree) * rounds for degree, rounds in self.in_degree.items())


class SeedResult(msgspec.Struct, frozen=True):
    """One seed with the records written so far."""

    path: Path
    info: RunInfo
    records: list[Record]
    cut: bool  # whether the last line of the records was cut off
    summary: Summary | None  # None: not finished
    nodes: list[NodeResult] | None
    seconds: dict[int, float]  # of computing since the start, by evaluated round
    state: RunState = RunState("unknown")

    @property
    def seed(self) -> int:
        """The seed's number, as the experiment names it."""
        return self.info.seed


class Result(msgspec.Struct, frozen=True):
    """A run as it was read back from its directory: one experiment with all its seeds."""

    label: str  # tells it apart from the others: its name, or what its directory is called
    path: Path
    experiment: dict[str, Any]
    seeds: list[SeedResult]

    @property
    def kind(self) -> str:
        """The kind of its topology, which decides its colour."""
        return method_of(self.experiment)

    @property
    def disconnected(self) -> list[int]:
        """The seeds whose graph is static and disconnected."""
        return [seed.seed for seed in self.seeds if seed.info.network.get("connected") is False]

    def settled(self) -> tuple[Result, list[str]]:
        """The seeds to average, and those left out: the ended ones, otherwise those that are furthest.

        A seed ended early by a callback counts with its result.
        """
        ends = [places[-1] for places in places_of(self.by_seed)]
        front = self.seeds[ends.index(max(ends))].records[-1]
        ended = [seed for seed in self.seeds if seed.summary is not None]
        kept = ended or [seed for seed, end in zip(self.seeds, ends, strict=True) if end == max(ends)]
        left = [
            f"seed {seed.seed} of {self.label} is at round {seed.records[-1].round}"
            f" of {self.experiment['rounds'] if ended else front.round} and left out of the means"
            for seed in self.seeds
            if seed not in kept
        ]
        for seed in kept:
            if seed.summary is not None and seed.summary.ended_early:
                early = f"seed {seed.seed} of {self.label} ended early after round {seed.summary.rounds}"
                left.append(f"{early}: {seed.summary.ended_early}")
        if len({places[-1] for places in places_of([seed.records for seed in kept])}) > 1:
            rounds = ", ".join(map(str, sorted({seed.records[-1].round for seed in kept})))
            timed = kept[0].records[-1].time is not None
            how = "were evaluated at different times" if timed else f"ended after {rounds} rounds"
            left.append(
                f"the seeds of {self.label} {how}: its curves end with the first of them, its results are of each seed's own end"
                + ("; with clock.evaluate, seeds are evaluated at the same times" if timed else "")
            )
        return Result(self.label, self.path, self.experiment, kept), left

    @property
    def by_seed(self) -> list[list[Record]]:
        """The records of each seed, in the order of the seeds."""
        return [seed.records for seed in self.seeds]

    @property
    def finished(self) -> bool:
        """Whether all seeds that have started have ended."""
        return all(seed.summary is not None for seed in self.seeds)


class NothingYet(BadInput):
    """There is no record so far, but there may be one soon."""


class Results(msgspec.Struct, frozen=True):
    """The runs found in some directories (`runs`), and remarks about them (`notes`).

    `dataframe()` is one tidy table of everything: a row for each run, seed and evaluated round.
    """

    runs: list[Result]
    notes: list[str]

    @property
    def differing(self) -> list[str]:
        """The dotted settings in which the experiments differ; their names do not count."""
        return differing([settings_of(run.experiment) for run in self.runs])

    @property
    def design(self) -> ComparedSettings:
        """The settings in which the runs differ, with their values in order."""
        return ComparedSettings.of([run.experiment for run in self.runs])

    def setting(self, run: Result, key: str) -> Any:
        """A setting of a run by its dotted key; None where it has none."""
        return settings_of(run.experiment).get(key)

    def common(self) -> dict[str, Any]:
        """The dotted settings that all experiments share."""
        differing = self.differing
        return {key: value for key, value in settings_of(self.runs[0].experiment).items() if key not in differing}

    def rows(self) -> list[dict[str, Any]]:
        """The tidy table: one row for each run, seed and evaluated round."""
        keys = ["nodes", "topology.kind"]
        keys += [key for key in self.differing if key not in keys]
        return [
            {
                "run": run.label,
                "directory": str(seed.path),
                **{key: _cell(self.setting(run, key)) for key in keys},
                "seed": seed.seed,
                **_measured(record),
            }
            for run in self.runs
            for seed in run.seeds
            for record in seed.records
        ]

    def node_rows(self) -> list[dict[str, Any]]:
        """One row for each run, seed, evaluated round and node, of runs with `eval.per_node = true`."""
        return [
            {"run": run.label, "directory": str(seed.path), "seed": seed.seed, **row}
            for run in self.runs
            for seed in run.seeds
            for record in seed.records
            for row in rows_of(record)
        ]

    def dataframe(self, *, per_node: bool = False) -> Any:
        """The tidy table as a pandas DataFrame; `per_node`: that of `node_rows`."""
        rows = self.node_rows() if per_node else self.rows()
        if per_node and not rows:
            raise BadInput(
                "per_node = True: none of these runs has eval.per_node = true, so only means over nodes are known"
            )
        return need("pandas", "Data frames", "tables").DataFrame(rows)


def read_results(*directories: str | Path) -> Results:
    """All runs in these directories and below them, finished or not.

    Args:
        directories: Of runs, comparisons or sweeps.

    Returns:
        The runs with their seeds and records, and notes on what was noticed.

    Example:
        >>> ep.read_results("runs/first").dataframe()

    Raises:
        BadInput: A directory is missing, holds no run, or only half-written ones.
    """
    notes: list[str] = []
    found: dict[Path, list[SeedResult]] = {}
    for directory in dict.fromkeys(Path(d) for d in directories):
        seeds = [seed for path in _seed_directories(directory, notes) if (seed := _read_seed(path, notes)) is not None]
        if not seeds:
            raise NothingYet(f"{directory} holds only runs without a record yet; wait for their first evaluation")
        for seed in seeds:
            others = found.setdefault(seed.path.resolve().parent, [])
            if seed.seed not in [other.seed for other in others]:
                others.append(seed)
    if not found:
        raise BadInput("no directory was given; name at least one that holds runs")
    labels = _labels({path: seeds[0].info.experiment["name"] for path, seeds in found.items()})
    runs = [Result(labels[path], s[0].path.parent, s[0].info.experiment, s) for path, s in found.items()]
    return Results(runs, notes)


def _seed_directories(directory: Path, notes: list[str]) -> list[Path]:
    if not directory.exists():
        raise BadInput(f"{directory} does not exist")
    if not directory.is_dir():
        raise BadInput(f"{directory} is a file; give the directory of a run, a comparison or a sweep")
    if not any(directory.iterdir()):
        raise NothingYet(f"{directory} is empty; give the directory of a run, a comparison or a sweep")
    found = [path.parent for path in sorted(directory.rglob("seed-*/run.json"), key=_natural)]
    if directory.resolve().name.startswith("seed-") and (directory / "run.json").is_file():
        found.insert(0, directory)
    half = [path.parent for path in sorted(directory.rglob(f"seed-*/{RECORDS}")) if path.parent not in found]
    if not found:
        if half:
            raise BadInput(f"{half[0]} is half-written: it has records but no run.json")
        raise BadInput(f"{directory} holds no run: nothing below it is called seed-N/run.json")
    notes += [f"{path} is half-written (records but no run.json) and was left out" for path in half]
    return found


def _natural(path: Path) -> list[tuple[float, str]]:
    """Sorts seed-10 after seed-9, and lr=0.05 before lr=0.1."""
    parts = re.split(r"([0-9]+(?:\.[0-9]+)?)", str(path))
    return [(float(part), "") if i % 2 else (-1.0, part) for i, part in enumerate(parts)]


def _read_seed(path: Path, notes: list[str]) -> SeedResult | None:
    try:
        info = msgspec.convert(read_json(path / "run.json"), RunInfo)
    except msgspec.ValidationError as problem:
        raise BadInput(f"{path / 'run.json'} is not that of a run: {problem}") from None
    ended = (path / "summary.json").exists()
    if not (path / RECORDS).exists() and not ended:
        notes.append(f"{path} has no records yet{_how(read_state(path))} and was left out")
        return None
    records, cut = read_records(path / RECORDS)
    if cut:
        notes.append(f"the last line of {path / RECORDS} is cut off and was left out")
    # under the clock, there may be several evaluations in a round
    order = [record.round if record.time is None else record.time.seconds for record in records]
    if order != sorted(set(order)) or (ended and not records):
        what = "has rounds twice or out of order" if order else "is empty although the run is finished"
        raise BadInput(f"{path / RECORDS} is damaged: it {what}; delete {path} to run this seed again")
    if not records:
        notes.append(f"{path} has no record yet{_how(read_state(path))} and was left out")
        return None
    summary, nodes = _optional(path / "summary.json", Summary), _optional(path / "nodes.json", list[NodeResult])
    state = read_state(path)
    if summary is None:
        where = f"round {of_planned(records[-1].round, info.experiment, ' of ')}"
        notes.append(f"{path} is not finished: {where}{_how(state)}")
    return SeedResult(path, info, records, cut, summary, nodes, _seconds(path / TIMINGS), state)


def _how(state: RunState) -> str:
    """Why a run will not continue, if that is known."""
    return f", {plain(state.state, 40)}: {plain(state.why, 500)}" if state.over and state.why else ""


class _Timing(msgspec.Struct):
    round: int
    seconds: dict[str, float]


def _seconds(path: Path) -> dict[int, float]:
    """Seconds since the start by round, all phases together; what cannot be read is left out."""
    total, found = 0.0, {}
    raw = b""
    with suppress(OSError, ValueError):
        raw = read_bounded(path, LARGEST_RECORDS)
    for line in raw.split(b"\n"):
        with suppress(msgspec.DecodeError):
            timing = msgspec.json.decode(line, type=_Timing)
            total += sum(timing.seconds.values())
            found[timing.round] = total
    return found


def _optional(path: Path, kind: Any) -> Any:
    if not path.exists():
        return None
    try:
        return msgspec.json.decode(read_bounded(path), type=kind)
    except UNREADABLE as problem:
        raise BadInput(f"{path} cannot be read: {problem}; delete {path.parent} to run this seed again") from None


def _labels(names: dict[Path, str]) -> dict[Path, str]:
    """Names if they distinguish the runs; otherwise with as much of the directory as necessary."""
    labels = dict(names)
    for name in {name for name in names.values() if list(names.values()).count(name) > 1}:
        parts = {path: path.parts for path, its in names.items() if its == name}
        depth = 1
        while len({p[-depth:] for p in parts.values()}) < len(parts):
            depth += 1
        labels |= {path: f"{name} ({'/'.join(p[-depth:])})" for path, p in parts.items()}
    return labels


def _cell(value: Any) -> Any:
    """A setting as one cell of a table."""
    return value if value is None or isinstance(value, str | int | float) else msgspec.json.encode(value).decode()


def _measured(record: Record) -> dict[str, Any]:
    def spread(name: str, value: Any) -> dict[str, float | None]:
        return {f"{name}_{part}": getattr(value, part, None) for part in Spread.__struct_fields__}

    return {
        "round": record.round,
        "alive": record.alive,
        **spread("accuracy", record.accuracy),
        **spread("loss", record.loss),
        "mean_model_accuracy": record.mean_model_accuracy,
        "mean_model_loss": record.mean_model_loss,
        "train_loss": record.train_loss,
        "disagreement": record.disagreement,
        **{
            f"bytes_{what}_{part}": getattr(getattr(record.bytes, what), part)
            for what in ("model", "header", "control", "total")
            for part in ("mean", "max")
        },
        **({} if record.bytes.wasted is None else {"bytes_wasted_mean": record.bytes.wasted.mean}),
        **({} if record.living is None else _of_the_living(record.living)),
        **({} if record.attack is None else _of_the_attack(record.attack)),
        **(record.time.numbers() if record.time is not None else {}),
        **{k: v for name, found in record.metrics.items() for k, v in spread(f"metric.{name}", found).items()},
    }


def _of_the_living(living: Living) -> dict[str, float | None]:
    """The values of the nodes that took part in the last round."""
    accuracy = None if living.accuracy is None else living.accuracy.mean
    found = {"accuracy": accuracy, "loss": living.loss.mean, "disagreement": living.disagreement}
    return {f"living_{name}": value for name, value in found.items()}


def _of_the_attack(attack: AttackCounts) -> dict[str, float | None]:
    """What an adversary has done so far."""
    names = ("aggregates", "bad", "kept", "received", "dropped")
    success = {} if attack.success is None else {"attack_success_mean": attack.success.mean}
    return {**{f"attack_{name}": getattr(attack, name) for name in names}, **success}


# -- files of the table -----------------------------------------------------------------------------------------------


def to_csv(rows: Sequence[dict[str, Any]]) -> str:
    """A table as CSV; an empty cell where there is no value."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns(rows), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def write_parquet(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """A table as Parquet; a column of mixed kinds becomes text."""
    arrow, parquet = (need(m, "Parquet tables", "tables") for m in ("pyarrow", "pyarrow.parquet"))
    names = columns(rows)
    values = {name: [row.get(name) for row in rows] for name in names}
    parquet.write_table(arrow.table({name: _one_kind(column) for name, column in values.items()}), path)


def _one_kind(column: list[Any]) -> list[Any]:
    kinds = {type(value) for value in column if value is not None}
    if len(kinds) <= 1:
        return column
    if kinds <= {int, float}:
        return [None if value is None else float(value) for value in column]
    return [None if value is None else str(value) for value in column]


def columns(rows: Iterable[dict[str, Any]]) -> list[str]:
    """All columns of the rows, in the order of their first appearance."""
    return list(dict.fromkeys(key for row in rows for key in row))

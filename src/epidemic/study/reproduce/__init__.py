"""Reproducing the paper: every table and figure by name, at the scale that a machine allows.

May be imported by: `cli/` only. An item is data (experiments at three scales) and checks of its results; the training itself is `batch.py`'s.
To add an item: an `Item` in the file of its kind (`learning.py` if it trains, `structure.py` or `beyond.py` if it does not), listed in `PAPER` or `BEYOND` here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from epidemic.core.errors import BadInput, require_choice, suggestion
from epidemic.core.files import full_disk, write_bytes
from epidemic.data import IID
from epidemic.data.base import Dataset, find_directory
from epidemic.estimate.measuring import (
    TrainingCost,
    Workload,
    exchange_of,
    in_rounds,
    kind_of,
    learning_of,
    size_of,
    stand_in,
    watched_of,
    what_decides_times,
    workload_in_rounds,
    workload_in_time,
)
from epidemic.estimate.planning import seconds_of
from epidemic.experiment import to_toml
from epidemic.report.results import to_csv
from epidemic.report.style import FORMATS, save
from epidemic.study.batch import BatchListener, Job, run_batch, run_batch_on_ranks
from epidemic.study.batch import diverged as diverged
from epidemic.study.reproduce.asynchronous import ASYNC
from epidemic.study.reproduce.base import SCALES, Check, Item, ItemResult, Request, Verdict
from epidemic.study.reproduce.beyond import CAP, CONTRACTION, DRIFT, SPECTRA
from epidemic.study.reproduce.learning import FIG1, FIG4, FIG5, FIG6, FIG7, FIG8, TABLE2_ITEM
from epidemic.study.reproduce.rivals import RIVALS_ITEM
from epidemic.study.reproduce.structure import FIG2_ITEM, FIG3_ITEM, TABLE1_ITEM, TABLE3_ITEM
from epidemic.study.reproduce.studies import REAL_DATA, real_data
from epidemic.topology import fragments_of

PAPER = (TABLE1_ITEM, TABLE2_ITEM, TABLE3_ITEM, FIG1, FIG2_ITEM, FIG3_ITEM, FIG4, FIG5, FIG6, FIG7, FIG8)
BEYOND = (CONTRACTION, DRIFT, CAP, SPECTRA, ASYNC, RIVALS_ITEM)
ITEMS: dict[str, Item] = {item.name: item for item in (*PAPER, *BEYOND)}

__all__ = ["BEYOND", "ITEMS", "PAPER", "SCALES", "Check", "Item", "ItemResult", "Request", "Verdict", "items_named", "planned", "reproduce", "stages"]  # fmt: skip


def items_named(name: str) -> list[Item]:
    """The item of a name, or all of them."""
    if name == "all":
        return list(ITEMS.values())
    if name not in ITEMS:
        raise BadInput(
            f"item {name!r} is not known{suggestion(name, [*ITEMS, 'all'])} (items: {', '.join(ITEMS)}, all)"
        )
    return [ITEMS[name]]


def planned(items: list[Item], request: Request) -> list[Job]:
    """The runs that some items need, each once."""
    require_choice("--scale", request.scale, SCALES)
    return _each_once(job for item in items for job in item.planned(request))


def stages(items: list[Item], request: Request) -> Iterator[list[Job]]:
    """The jobs in stages: first those whose results decide the settings of others, then these."""
    for stage in ([item.first for item in items], [item.jobs for item in items]):
        jobs = _each_once(job for jobs in stage if jobs is not None for job in jobs(request))
        if jobs:
            yield jobs


def _each_once(jobs: Iterable[Job]) -> list[Job]:
    return list({job.path: job for job in jobs}.values())


def run_jobs(
    jobs: list[Job], data: Path | None, watcher: BatchListener | None = None, ranks: int = 1
) -> dict[str, str]:
    """Run what is not finished, one data set after the other, each on so many ranks; returns why some failed, by name."""
    failed: dict[str, str] = {}
    for job in jobs:
        job.check()  # also the finished ones: they may be of another scale
    todo = [job for job in jobs if not job.finished]
    if ranks > 1:  # which load it themselves
        return run_batch_on_ranks(todo, ranks, watcher, data_settings(todo, data)).failed
    kinds = dict.fromkeys(map(_data_wanted, todo))
    loaded = {want: _load(*want, data) for want in kinds if want[0] in REAL_DATA}  # before the first one runs
    for want in kinds:
        part = [job for job in todo if _data_wanted(job) == want]
        failed |= run_batch(part, watcher=watcher, data=loaded.get(want)).failed
    return failed


def _load(kind: str, validation: float, place: Path | None) -> Dataset:
    """A real data set, some of its training samples set aside."""
    return msgspec.structs.replace(real_data(kind, place), validation=validation).load()


def reproduce(item: Item, request: Request, failed: dict[str, str]) -> ItemResult:
    """Evaluate what was run, and write figure, data, verdicts and experiment files to OUT/ITEM."""
    finding = item.find(request, failed)
    where = request.out / item.name
    with full_disk(str(where)):
        where.mkdir(parents=True, exist_ok=True)
    for suffix in FORMATS:
        save(finding.figure, where / f"{item.name}{suffix}")
    write_bytes(where / f"{item.name}.csv", to_csv(finding.rows).encode())
    verdicts = {"item": item.name, "scale": request.scale, "expected_from": item.expected_from, "checks": finding.checks, "notes": finding.notes}  # fmt: skip
    write_bytes(where / "checks.json", msgspec.json.format(msgspec.json.encode(verdicts), indent=2) + b"\n")
    jobs = item.planned(request)
    if jobs:
        (where / "experiments").mkdir(exist_ok=True)
    for job in jobs:
        text = to_toml(job.experiment).encode()
        write_bytes(where / "experiments" / f"{job.path.name}.toml", text)
    return finding


def check_data(jobs: list[Job], place: Path | None) -> None:
    """Refuse before anything runs if a data set that is needed is nowhere to be found."""
    for job in jobs:
        kind = _data_kind(job)
        if kind in REAL_DATA and not job.finished:
            try:
                find_directory(real_data(kind, place).path, kind)
            except BadInput as problem:
                raise BadInput(str(problem).replace("set data.path to its location", "give --data DIR")) from None


def data_settings(jobs: list[Job], place: Path | None) -> dict[Path, list[str]]:
    """Settings (`key=value`) by run directory that tell a separate process where the real data is."""
    found = {}
    for job in jobs:
        kind = _data_kind(job)
        if kind in REAL_DATA and place is not None:
            found[job.path] = [f"data.path={json.dumps(str(Path(real_data(kind, place).path or '').resolve()))}"]
    return found


def _data_kind(job: Job) -> str:
    return _data_wanted(job)[0]


def _data_wanted(job: Job) -> tuple[str, float]:
    """The kind, and which share of the training samples is set aside."""
    table = msgspec.to_builtins(job.experiment.data)
    return str(table["kind"]), float(table.get("validation", 0.0))


# -- What many runs would cost, whose data need not be there: `reproduce --dry-run` ----------------------------------


class RunCost(msgspec.Struct, frozen=True):
    """The cost of one run with all its seeds."""

    seconds: float
    sent_per_node: float  # bytes that a node would send over the network, one seed
    disk: float  # bytes of its directory


def costs(jobs: Sequence[Job]) -> dict[Path, RunCost]:
    """The cost of every job, whose data need not be available; equal workloads are measured once."""
    known: dict[str, TrainingCost] = {}
    timed: dict[bytes, Workload] = {}
    found = {}
    for job in jobs:
        given = job.experiment
        data = stand_in(given)
        experiment = msgspec.structs.replace(given, data=data, partition=IID())
        # A rate takes no time, and methods without rounds are measured alike.
        algorithm = {**in_rounds(given).table()["algorithm"], "lr": None}
        key = f"{kind_of(given)} {given.model} {given.nodes} {algorithm} {given.compression} {given.aggregation} {fragments_of(given.topology)}"
        if key not in known:
            known[key] = learning_of(experiment, data)
        learning = known[key]
        known_size = size_of(given)
        assert known_size is not None
        tests = known_size[3]
        if given.clock is None:
            work = workload_in_rounds(given, learning.message_sizes, learning.model_bytes)
            seconds = seconds_of(experiment, learning, exchange_of(experiment, learning), tests, tests)[2]
        else:
            same = what_decides_times(given)
            work = timed[same] = timed.get(same) or workload_in_time(given, learning.parameters)
            watched = work.evaluations * watched_of(given, tests)
            evaluating = (given.nodes + 1) * learning.evaluate * (watched + tests)
            training = given.nodes * learning.train * work.trainings
            seconds = len(given.seeds) * (training + evaluating + work.overhead)
        disk = len(given.seeds) * given.nodes * 4 * learning.parameters * 2.0
        found[job.path] = RunCost(seconds, work.sent, disk)
    return found

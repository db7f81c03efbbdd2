"""Reproducing the paper: every table and figure by name, at the scale that a machine allows."""

from __future__ import annotations

from pathlib import Path

import msgspec

from epidemic.batch import Job, Watcher, run_batch
from epidemic.data.base import find_directory
from epidemic.errors import BadInput, require_choice, suggestion
from epidemic.experiment import to_toml
from epidemic.files import full_disk, write_bytes
from epidemic.report.results import to_csv
from epidemic.report.style import FORMATS, save
from epidemic.reproduce.base import SCALES, Check, Finding, Item, Request, Verdict
from epidemic.reproduce.beyond import CAP, CONTRACTION, DRIFT, SPECTRA
from epidemic.reproduce.learning import FIG1, FIG4, FIG5, FIG6, FIG7, FIG8, TABLE2_ITEM
from epidemic.reproduce.structure import FIG2_ITEM, FIG3_ITEM, TABLE1_ITEM, TABLE3_ITEM
from epidemic.reproduce.studies import REAL_DATA, real_data

PAPER = (TABLE1_ITEM, TABLE2_ITEM, TABLE3_ITEM, FIG1, FIG2_ITEM, FIG3_ITEM, FIG4, FIG5, FIG6, FIG7, FIG8)
BEYOND = (CONTRACTION, DRIFT, CAP, SPECTRA)
ITEMS: dict[str, Item] = {item.name: item for item in (*PAPER, *BEYOND)}

__all__ = ["BEYOND", "ITEMS", "PAPER", "SCALES", "Check", "Finding", "Item", "Request", "Verdict", "items_named", "planned", "reproduce"]  # fmt: skip


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
    jobs = {job.path: job for item in items for job in item.planned(request)}
    return list(jobs.values())


def run_jobs(jobs: list[Job], data: Path | None, watcher: Watcher | None = None) -> dict[str, str]:
    """Run what is not finished, one data set after the other; why some failed, by name."""
    failed: dict[str, str] = {}
    for job in jobs:
        job.check()  # also the finished ones: they may be of another scale
    todo = [job for job in jobs if not job.finished]
    kinds = dict.fromkeys(map(_data_kind, todo))
    loaded = {kind: real_data(kind, data).load() for kind in kinds if kind in REAL_DATA}  # before the first one runs
    for kind in kinds:
        part = [job for job in todo if _data_kind(job) == kind]
        failed |= run_batch(part, watcher=watcher, data=loaded.get(kind)).failed
    return failed


def reproduce(item: Item, request: Request, failed: dict[str, str]) -> Finding:
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
                raise BadInput(str(problem).replace("set data.path to where it is", "give --data DIR")) from None


def _data_kind(job: Job) -> str:
    return str(msgspec.to_builtins(job.experiment.data)["kind"])

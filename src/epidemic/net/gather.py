"""Gather: the runs of deployed nodes as one run, with the same files as a simulation's, for reports and comparisons."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from epidemic.errors import BadInput
from epidemic.experiment import Experiment, load, same_experiment
from epidemic.host.checkpoint import MODELS
from epidemic.host.findings import summary_of
from epidemic.host.mixture import disagreement, mean_row
from epidemic.host.saved import save_models
from epidemic.host.setup import make_learner, prepare
from epidemic.host.store import Store
from epidemic.learner import Choice, Evaluation, Layout
from epidemic.record import Delivery, Letters, MeanMax, Moment, OwnSpread, Record, Spread, Summary, Traffic
from epidemic.workers import Workers


class _Run:
    """The finished run of one node."""

    def __init__(self, folder: Path, experiment: Experiment) -> None:
        self.store = Store(folder / "run", experiment, experiment.seeds[0])
        self.info: dict[str, Any] = self.store.run_info() or {}
        self.records = _by_time(self.store.records(), experiment)
        self.summary = self.store.summary()
        self.node: dict[str, Any] = msgspec.json.decode((self.store.path / "nodes.json").read_bytes())[0]
        self.tensors = safetensors.torch.load_file(self.store.path / "models.safetensors")


def gather(folders: Sequence[Path], out: Path) -> Summary:
    """One run from those of the nodes that have finished, in `out`."""
    finished = [folder for folder in folders if any((folder / "run").glob("seed-*/summary.json"))]
    if not finished:
        raise BadInput(f"none of {len(folders)} nodes has finished; nothing can be gathered yet")
    experiments = [load(folder / "experiment.toml") for folder in finished]
    experiment = experiments[0]
    for folder, other in zip(finished, experiments, strict=True):
        different = same_experiment(experiment.table(), other.table())
        if different:
            raise BadInput(f"{folder} holds another experiment than {finished[0]} (in {', '.join(different[:5])})")
    if experiment.network.data == "own":
        raise BadInput(
            "network.data = \"own\": the models cannot be evaluated together without the nodes' private data; show the nodes' own runs"
            " instead: epidemic report node-*/run"
        )
    store = Store(out, experiment, experiment.seeds[0])
    store.check(resume=False)
    store.open()
    try:
        runs = sorted((_Run(folder, experiment) for folder in finished), key=lambda run: int(run.node["node"]))
        return _write(store, experiment, runs)
    finally:
        store.close()


def _write(store: Store, experiment: Experiment, runs: list[_Run]) -> Summary:
    info = runs[0].info
    store.announce()
    setup = prepare(experiment, experiment.seeds[0])
    choice = Choice(info["strategy"], info["strategy_reason"], info["draws_random_numbers"])
    store.begin(choice, info.get("data", ""), classes=info.get("classes", ()), samples=setup.sizes)
    store.restore(setup.task.layout)
    workers = Workers(1)
    try:
        layout = setup.task.layout
        x = _rows(layout, [run.tensors for run in runs])
        learner, _ = make_learner(setup, workers, store.known_choice())
        mean = learner.evaluate(mean_row(x, workers), setup.test)
        common = sorted(set.intersection(*(set(run.records) for run in runs)))
        records = [_record([run.records[when] for run in runs]) for when in common]
        apart = disagreement(x, workers)
    finally:
        workers.close()
    at_end = records and (records[-1].round == experiment.rounds or records[-1].time is not None)
    if at_end:
        records[-1] = msgspec.structs.replace(records[-1], disagreement=apart)
    for record in records:
        store.append(record, {"round": record.round, "seconds": {}})
    final = Evaluation(
        torch.tensor([run.summary.final_loss.mean for run in runs], dtype=torch.float64),
        {"accuracy": torch.tensor([_mean(run.summary.final_accuracy) for run in runs], dtype=torch.float64)}
        if runs[0].summary.final_accuracy is not None
        else {},
    )
    for name in runs[0].summary.final_metrics:
        final.metrics[name] = torch.tensor(_own([run.summary.final_metrics for run in runs], name), dtype=torch.float64)
    last = records[-1]
    rounds, seconds = (experiment.rounds, None) if last.time is None else (last.round, last.time.seconds)
    summary = summary_of(setup, records, final, mean, rounds=rounds, bytes=last.bytes, seconds=seconds)
    save_models(store.path / MODELS, layout, x)
    store.finish(summary, [_line(run) for run in runs], layout)
    return summary


def _line(run: _Run) -> dict[str, Any]:
    """What is said of a node among all; which messages came to it is in its own summary."""
    found = run.summary.delivery
    return run.node if found is None else run.node | {"delivery": found}


def _by_time(records: list[Record], experiment: Experiment) -> dict[float, Record]:
    """Records of a node by when they were made, as far as that is the same for all nodes: by rounds or, without, by time; the last is the last."""
    if not records or records[-1].time is None:
        return {record.round: record for record in records}
    every = experiment.clock.evaluate if experiment.clock is not None else 0.0
    found: dict[float, Record] = {}
    for record in records[:-1]:
        if every and record.time is not None:
            found.setdefault(round(record.time.seconds / every), record)
        else:
            found[record.round] = record
    return found | {math.inf: records[-1]}


def _moment(parts: list[Record]) -> Moment | None:
    """Where nodes without rounds stood, together: letters of all, and the mean of what each says."""
    found = [part.time for part in parts if part.time is not None]
    if not found:
        return None
    letters = (sum(getattr(one.letters, name) for one in found) for name in Letters.__struct_fields__)
    return Moment(
        seconds=float(np.mean([one.seconds for one in found])),
        steps=float(np.mean([one.steps for one in found])),
        letters=Letters(*letters),
        busy=float(np.mean([one.busy for one in found])),
        online=min(one.online for one in found),
        accuracies=[accuracy for one in found for accuracy in one.accuracies],
    )


def _rows(layout: Layout, models: list[dict[str, Tensor]]) -> Tensor:
    """Saved models as rows; buffers that are not saved are zero.   # (n, d)"""
    x = torch.zeros(len(models), layout.size, dtype=layout.dtype)
    for name, view in layout.views(x).items():
        for i, tensors in enumerate(models):
            if name in tensors:
                view[i] = tensors[name][0]
    return x


def _record(parts: list[Record]) -> Record:
    """The records of several nodes for one round, or moment, as one."""
    accuracies = [part.accuracy.mean for part in parts if part.accuracy is not None]
    losses = [part.train_loss for part in parts if part.train_loss is not None]

    def over(what: str) -> MeanMax:
        values = [getattr(part.bytes, what).max for part in parts]
        return MeanMax(float(np.mean(values)), max(values))

    return Record(
        round=round(np.mean([part.round for part in parts])),
        seed=parts[0].seed,
        alive=min(part.alive for part in parts),
        accuracy=Spread.of(accuracies) if accuracies else None,
        loss=Spread.of([part.loss.mean for part in parts]),
        train_loss=float(np.mean(losses)) if losses else None,
        bytes=Traffic(*(over(what) for what in ("model", "header", "control", "total"))),
        metrics={name: OwnSpread.of(_own([part.metrics for part in parts], name)) for name in parts[0].metrics},
        time=_moment(parts),
        delivery=Delivery.total(part.delivery for part in parts if part.delivery is not None),
    )


def _own(found: Sequence[dict[str, OwnSpread]], name: str) -> list[float]:
    """A metric of several nodes; not a number where it is undefined."""
    return [math.nan if (mean := one[name].mean) is None else mean for one in found]


def _mean(spread: Spread | None) -> float:
    assert spread is not None
    return spread.mean

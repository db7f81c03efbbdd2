"""Gather: the runs of deployed nodes as one run, with the same files as a simulation, for reports and comparisons."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from epidemic.core.errors import BadInput
from epidemic.core.files import read_bounded, read_json
from epidemic.core.graph import IntArray
from epidemic.core.workers import Workers
from epidemic.experiment import Experiment, different_for_nodes, load
from epidemic.learner import Choice, Evaluation, Layout
from epidemic.record import (
    HeardCounts,
    MeanMax,
    MessageCounts,
    Moment,
    NodeNumbers,
    OwnSpread,
    Record,
    Spread,
    Summary,
    Traffic,
)
from epidemic.runtime.checkpoint import MODELS
from epidemic.runtime.evaluations import summary_of, summary_without_data
from epidemic.runtime.mixing_arithmetic import disagreement, mean_row
from epidemic.runtime.more_rounds import rounds_of
from epidemic.runtime.run_directory import RunDirectory
from epidemic.runtime.saved_models import SavedModels, join_models, read_models, save_models
from epidemic.runtime.setup import make_learner, prepare
from epidemic.runtime.start import START, read_start

OWN_DATA = "every node has data of its own: its accuracy and loss are on its own test samples, and the average model was not evaluated"
"""Note for runs whose nodes have data of their own."""


class _Run:
    """The finished run of one node."""

    def __init__(self, folder: Path, experiment: Experiment) -> None:
        self.run_directory = RunDirectory(folder / "run", experiment, experiment.seeds[0])
        self.folder = folder
        self.info: dict[str, Any] = self.run_directory.run_info() or {}
        self.records = _by_time(self.run_directory.records(), experiment)
        self.summary = self.run_directory.summary()
        self.node: dict[str, Any] = msgspec.json.decode(read_bounded(self.run_directory.path / "nodes.json"))[0]
        self.models = read_models(self.run_directory.path / MODELS)


def gather(folders: Sequence[Path], out: Path) -> Summary:
    """Write the finished runs of several nodes to `out` as one run, and return its summary.

    If nodes have data of their own, the average model is written but cannot be evaluated: it has no accuracy and no loss.
    """
    finished = [folder for folder in folders if any((folder / "run").glob("seed-*/summary.json"))]
    if not finished:
        raise BadInput(f"none of {len(folders)} nodes has finished; nothing can be gathered yet")
    experiments = [_experiment_of(folder) for folder in finished]
    experiment = experiments[0]
    for folder, other in zip(finished, experiments, strict=True):
        different = different_for_nodes(experiment, other)
        if different:
            raise BadInput(f"{folder} holds another experiment than {finished[0]} (in {', '.join(different[:5])})")
    run_directory = RunDirectory(out, experiment, experiment.seeds[0])
    run_directory.check(resume=False)
    runs = sorted((_Run(folder, experiment) for folder in finished), key=lambda run: int(run.node["node"]))
    models = join_models([(run.run_directory.path / MODELS, run.models) for run in runs])
    run_directory.open()
    try:
        own = experiment.own_data
        return _write_own(run_directory, experiment, runs, models) if own else _write(run_directory, experiment, runs)
    finally:
        run_directory.close()


def _experiment_of(folder: Path) -> Experiment:
    """The experiment of a node's folder, with the number of rounds that its run has; the folder may ask for more."""
    experiment = load(folder / "experiment.toml")
    info = read_json(folder / "run" / f"seed-{experiment.seeds[0]}" / "run.json")
    return msgspec.structs.replace(experiment, rounds=rounds_of(info, experiment.rounds))


def _write(run_directory: RunDirectory, experiment: Experiment, runs: list[_Run]) -> Summary:
    """Write the run of nodes with a common data set, on which their average model is evaluated."""
    start, weights = read_start(runs[0].folder)
    began = runs[0].info.get("start")
    if began != (None if start is None else msgspec.to_builtins(start)):
        raise BadInput(
            f"{runs[0].folder} has a run that began from something else than its {START} says; copy the node's whole folder"
        )
    setup = prepare(experiment, experiment.seeds[0], weights=weights)
    _begin(run_directory, runs, runs[0].info.get("data", ""), setup.sizes)
    layout = setup.task.layout
    run_directory.open_records()
    workers = Workers(1)
    try:
        x = _rows(layout, [run.models.rows for run in runs])
        learner, _ = make_learner(setup, workers, run_directory.known_choice())
        mean = learner.evaluate(mean_row(x, workers), setup.test)
        records = _records(runs, experiment, disagreement(x, workers))
    finally:
        workers.close()
    for record in records:
        run_directory.append(record, {"round": record.round, "seconds": {}})
    rounds, seconds = _lasted(records, experiment)
    summary = summary_of(setup, records, _final(runs), mean, rounds=rounds, bytes=records[-1].bytes, seconds=seconds)
    save_models(run_directory.path / MODELS, layout, x)
    run_directory.finish(summary, [_line(run) for run in runs])
    return summary


def _write_own(run_directory: RunDirectory, experiment: Experiment, runs: list[_Run], models: SavedModels) -> Summary:
    """Write the run of nodes with data of their own, from what they measured and saved."""
    _begin(run_directory, runs, OWN_DATA, None)
    run_directory.open_records()
    workers = Workers(1)
    try:
        records = _records(runs, experiment, disagreement(models.flat, workers))
    finally:
        workers.close()
    for record in records:
        run_directory.append(record, {"round": record.round, "seconds": {}})
    rounds, seconds = _lasted(records, experiment)
    summary = summary_without_data(
        experiment, experiment.seeds[0], records, _final(runs), tested=sum(run.summary.test_samples for run in runs),
        rounds=rounds, bytes=records[-1].bytes, seconds=seconds,
    )  # fmt: skip
    models.write(run_directory.path / MODELS)
    run_directory.finish(summary, [_line(run) for run in runs])
    return summary


def _begin(run_directory: RunDirectory, runs: list[_Run], data: str, samples: IntArray | None) -> None:
    info = runs[0].info
    run_directory.announce()
    choice = Choice(info["strategy"], info["strategy_reason"], info["draws_random_numbers"])
    run_directory.begin(choice, data, classes=info.get("classes", ()), samples=samples)
    run_directory.amend({key: info[key] for key in ("start", "columns") if key in info})


def _records(runs: list[_Run], experiment: Experiment, apart: float) -> list[Record]:
    """One record for each that all nodes have; the last one has their disagreement."""
    common = sorted(set.intersection(*(set(run.records) for run in runs)))
    records = [_record([run.records[when] for run in runs]) for when in common]
    if not records:
        raise BadInput("the nodes have no record of the same round; nothing can be gathered")
    if records[-1].round == experiment.rounds or records[-1].time is not None:
        records[-1] = msgspec.structs.replace(records[-1], disagreement=apart)
    return records


def _final(runs: list[_Run]) -> Evaluation:
    """The final evaluation of each node on its full test set."""
    final = Evaluation(
        torch.tensor([run.summary.final_loss.mean for run in runs], dtype=torch.float64),
        {"accuracy": torch.tensor([_mean(run.summary.final_accuracy) for run in runs], dtype=torch.float64)}
        if all(run.summary.final_accuracy is not None for run in runs)
        else {},
    )
    for name in runs[0].summary.final_metrics:
        final.metrics[name] = torch.tensor(_own([run.summary.final_metrics for run in runs], name), dtype=torch.float64)
    return final


def _lasted(records: list[Record], experiment: Experiment) -> tuple[int, float | None]:
    """The length of the run: (rounds, None), or (trainings, seconds)."""
    last = records[-1]
    return (experiment.rounds, None) if last.time is None else (last.round, last.time.seconds)


def _line(run: _Run) -> dict[str, Any]:
    """The summary of one node among all; its own summary has the messages that it received."""
    found = run.summary.delivery
    return run.node if found is None else run.node | {"delivery": found}


def _by_time(records: list[Record], experiment: Experiment) -> dict[float, Record]:
    """A node's records by round, or by time for asynchronous methods; the last record is always the last."""
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
    """The state of asynchronous nodes at one time: summed messages, mean of the rest."""
    found = [part.time for part in parts if part.time is not None]
    if not found:
        return None
    messages = (sum(getattr(one.messages, name) for one in found) for name in MessageCounts.__struct_fields__)
    return Moment(
        seconds=float(np.mean([one.seconds for one in found])),
        steps=float(np.mean([one.steps for one in found])),
        messages=MessageCounts(*messages),
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
    """One record from those of several nodes for the same round or time."""
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
        per_node=NodeNumbers.joined([part.per_node for part in parts if part.per_node is not None])
        if all(part.per_node is not None for part in parts)
        else None,
        delivery=HeardCounts.total(part.delivery for part in parts if part.delivery is not None),
    )


def _own(found: Sequence[dict[str, OwnSpread]], name: str) -> list[float]:
    """A metric of several nodes; NaN where it is undefined."""
    return [math.nan if (mean := one[name].mean) is None else mean for one in found]


def _mean(spread: Spread | None) -> float:
    assert spread is not None
    return spread.mean

"""Records, summaries, one line per node, and timings, from evaluations of the hosted nodes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from epidemic.core.graph import IntArray
from epidemic.experiment import Experiment
from epidemic.learner import Evaluation
from epidemic.record import (
    AttackCounts,
    HeardCounts,
    Living,
    Moment,
    NodeNumbers,
    OwnSpread,
    Record,
    Spread,
    Summary,
    Traffic,
)
from epidemic.runtime.counters import Counters
from epidemic.runtime.setup import Setup


def record_of(
    setup: Setup,
    found: Evaluation,
    mean: Evaluation | None,
    *,
    ids: IntArray,
    round: int,
    alive: int,
    train_loss: float | None,
    disagreement: float | None,
    bytes: Traffic,
    living: Living | None = None,
    time: Moment | None = None,
    delivery: HeardCounts | None = None,
    attack: AttackCounts | None = None,
) -> Record:
    """Make the record of a round: `found` has the evaluations of the nodes `ids` (of one, if all are the same), `mean` that of the average model."""
    hosted = len(ids)
    return Record(
        round=round,
        seed=setup.seed,
        alive=alive,
        accuracy=_spread(found, "accuracy", hosted),
        loss=Spread.of(found.loss.expand(hosted)),
        mean_model_accuracy=_first(mean, "accuracy"),
        mean_model_loss=None if mean is None else float(mean.loss[0]),
        train_loss=train_loss,
        disagreement=disagreement,
        living=living,
        bytes=bytes,
        metrics={name: OwnSpread.of(found.metrics[name].expand(hosted)) for name in setup.experiment.own_metrics()},
        time=None if time is None else _with_accuracies(time, found, hosted),
        delivery=delivery,
        attack=attack,
        per_node=_per_node(setup, of_everybody(found, hosted), ids) if setup.experiment.eval.per_node else None,
    )


def _per_node(setup: Setup, found: Evaluation, ids: IntArray) -> NodeNumbers:
    accuracy = found.metrics.get("accuracy")
    own = {name: found.metrics[name].tolist() for name in setup.experiment.own_metrics()}
    return NodeNumbers(
        ids.tolist(),
        found.loss.tolist(),
        None if accuracy is None else accuracy.tolist(),
        {name: [value if math.isfinite(value) else None for value in values] for name, values in own.items()},
    )


def _with_accuracies(moment: Moment, found: Evaluation, n: int) -> Moment:
    if "accuracy" not in found.metrics:
        return moment
    return msgspec.structs.replace(moment, accuracies=found.metrics["accuracy"].expand(n).tolist())


def living_of(found: Evaluation, up: NDArray[np.bool_], apart: Callable[[NDArray[np.bool_]], float]) -> Living | None:
    """The evaluation of the nodes that are up; None if all are, or none is.

    `found` is of all nodes, or of one if all are the same; `apart` returns D(X) of a set of nodes.
    """
    if up.all() or not up.any():
        return None
    part, alive = among(of_everybody(found, len(up)), up), int(up.sum())
    return Living(_spread(part, "accuracy", alive), Spread.of(part.loss), apart(up))


def of_everybody(found: Evaluation, n: int) -> Evaluation:
    """The evaluations of n nodes, from those or from that of the one model that they all have."""
    return Evaluation(found.loss.expand(n), {name: values.expand(n) for name, values in found.metrics.items()})


def among(found: Evaluation, up: NDArray[np.bool_]) -> Evaluation:
    """The evaluations of some of the nodes."""
    return Evaluation(found.loss[up], {name: values[up] for name, values in found.metrics.items()})


def summary_of(
    setup: Setup,
    records: list[Record],
    final: Evaluation,
    mean: Evaluation | None,
    *,
    rounds: int,
    bytes: Traffic,
    seconds: float | None = None,
    ended_early: str = "",
    living: Evaluation | None = None,
    attack: AttackCounts | None = None,
) -> Summary:
    """Make the summary: `final` is of the hosted nodes, `mean` of the average model, both on the full test set.

    `living`: of the nodes that took part in the last round, if not all did. `attack`: what an adversary did.
    """
    found = summary_without_data(
        setup.experiment,
        setup.seed,
        records,
        final,
        tested=len(setup.test[0]),
        rounds=rounds,
        bytes=bytes,
        seconds=seconds,
    )
    return msgspec.structs.replace(
        found,
        final_mean_model_accuracy=_first(mean, "accuracy"),
        final_mean_model_loss=None if mean is None else float(mean.loss[0]),
        ended_early=ended_early,
        final_living_accuracy=None if living is None else _spread(living, "accuracy", len(living.loss)),
        attack=attack,
        malicious=[] if attack is None else setup.malicious.tolist(),
    )


def summary_without_data(
    experiment: Experiment,
    seed: int,
    records: list[Record],
    final: Evaluation,
    *,
    tested: int,
    rounds: int,
    bytes: Traffic,
    seconds: float | None = None,
) -> Summary:
    """The part of a summary that follows from earlier measurements, without the average model.

    `final` is of each node on its full test set of `tested` samples.
    """
    best = max((r for r in records if r.accuracy), key=_accuracy, default=None)
    lowest = min(records, key=lambda r: r.loss.mean)
    hosted = len(final.loss)
    return Summary(
        name=experiment.name,
        seed=seed,
        rounds=rounds,
        best_accuracy=None if best is None else _accuracy(best),
        best_accuracy_round=None if best is None else best.round,
        best_loss=lowest.loss.mean,
        best_loss_round=lowest.round,
        final_accuracy=_spread(final, "accuracy", hosted),
        final_loss=Spread.of(final.loss),
        final_mean_model_accuracy=None,
        final_mean_model_loss=None,
        final_disagreement=records[-1].disagreement,
        final_metrics={name: OwnSpread.of(final.metrics[name]) for name in experiment.metrics},
        test_samples=tested,
        bytes=bytes,
        seconds=seconds,
        delivery=records[-1].delivery,
    )


def held_of(setup: Setup) -> Tensor:
    """The number of training samples of each hosted node, in all and, if there are classes, per class.   # (k, 1 + classes)"""
    targets, classes = setup.data.train.targets, len(setup.data.classes)
    counts = torch.zeros(len(setup.parts), 1 + classes, dtype=torch.int64)
    for row, part in zip(counts, setup.parts, strict=True):
        row[0] = len(part)
        if classes:
            row[1:] = torch.from_numpy(np.bincount(targets[part], minlength=classes))
    return counts


def nodes_of(setup: Setup, final: Evaluation, counters: Counters, ids: IntArray, held: Tensor) -> list[dict[str, Any]]:
    """One line for each of these nodes; `held`: their numbers of samples as `held_of` returns them.   # (k, 1 + classes)"""
    nodes = []
    took_part = counters.rounds
    for i, node in enumerate(ids.tolist()):
        samples, *classes = held[i].tolist()
        nodes.append(
            {
                "node": node,
                "samples": samples,
                "classes": classes if setup.data.classes else None,
                "bytes": {k: int(getattr(counters, k)[i]) for k in ("model", "header", "control")},
                "in_degree": {str(k): int(v[i]) for k, v in sorted(counters.degrees.items()) if v[i]},
                "final_loss": float(final.loss[i]),
                "final_accuracy": float(final.metrics["accuracy"][i]) if "accuracy" in final.metrics else None,
            }
        )
        if setup.experiment.participation.partial:
            rounds = int(took_part[i])
            nodes[-1] |= {"rounds": rounds, "steps": rounds * setup.experiment.algorithm.local_steps}
        if own := [name for name in final.metrics if name != "accuracy"]:
            values = {name: float(final.metrics[name][i]) for name in own}
            nodes[-1]["final_metrics"] = {name: v if math.isfinite(v) else None for name, v in values.items()}
    return nodes


def _accuracy(record: Record) -> float:
    assert record.accuracy is not None
    return record.accuracy.mean


def _spread(found: Evaluation, metric: str, n: int) -> Spread | None:
    return Spread.of(found.metrics[metric].expand(n)) if metric in found.metrics else None


def _first(found: Evaluation | None, metric: str) -> float | None:
    return float(found.metrics[metric][0]) if found is not None and metric in found.metrics else None


class Stopwatch:
    """Measures seconds per phase since the last record."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Measure the time spent inside under the name of a phase."""
        start = time.perf_counter()
        yield
        self._seconds[phase] = self._seconds.get(phase, 0.0) + time.perf_counter() - start

    def taken(self) -> dict[str, float]:
        """The measured seconds by phase; resets them."""
        seconds, self._seconds = self._seconds, {}
        return {phase: round(value, 6) for phase, value in seconds.items()}
